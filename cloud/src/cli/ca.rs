//! `csi-cloud ca`.

use crate::config::arguments::CaCommand;
use crate::pki::ca;
use crate::pki::install::{Use, use_ca};

/// Makes certificates.
///
/// # Errors
/// A file exists already, cannot be read or written, or does not fit the others. It also fails if a
/// name or a host cannot be used.
pub(super) fn run(command: CaCommand) -> anyhow::Result<()> {
    match command {
        CaCommand::Init { dir, hosts, days } => ca::init(&dir, &hosts, days),
        CaCommand::Issue { front: Some(front), dir, days, .. } => {
            ca::issue_front(&dir, &front, days)
        }
        CaCommand::Issue { node: Some(node), front: None, dir, days } => {
            ca::issue(&dir, &node, days)
        }
        CaCommand::Use { cert, key, root, dir, hosts, days } => {
            let from = Use {
                cert: &cert,
                key: &key,
                root: root.as_deref(),
                dir: &dir,
                hosts: &hosts,
                days,
            };
            println!("{}", use_ca(&from)?);
            Ok(())
        }
        // `run` asks the running csi-cloud; and clap requires one of the others.
        CaCommand::Rotate(_) | CaCommand::Issue { node: None, front: None, .. } => Ok(()),
    }
}
