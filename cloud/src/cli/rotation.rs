//! `csi-cloud ca rotate`.

use std::io;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use proto::admin::client::Client;
use proto::admin::output::Output;
use proto::admin::table::Table;

use crate::admin::ca_rotation::{
    CURRENT, FINISH, FinishRotation, NodeCaView, RotationView, START, STATUS, StartRotation,
};
use crate::cli::output::{PROGRAM, change, no_parameters};
use crate::config::admin_arguments::RotateCommand;
use crate::config::show_arguments::Show;

const HEADERS: &[&str] = &["NODE", "LINK", "CA"];

/// Runs a step of a rotation.
///
/// # Errors
/// A file cannot be read; or csi-cloud does not answer, refuses or changes nothing; or the output
/// fails.
pub(super) async fn run(command: RotateCommand) -> anyhow::Result<()> {
    match command {
        RotateCommand::Start { cert, key, root, reach } => {
            let root = root.as_deref().map(read).transpose()?;
            let request = StartRotation { cert: read(&cert)?, key: read(&key)?, root };
            change(&reach, START, &request).await
        }
        RotateCommand::Status(show) => status(&show).await,
        RotateCommand::Finish { yes_lock_out, reach } => {
            change(&reach, FINISH, &FinishRotation { lock_out: yes_lock_out }).await
        }
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

async fn status(show: &Show) -> anyhow::Result<()> {
    let mut client = Client::connect(PROGRAM, &show.reach.socket()).await?;
    let view: RotationView = client.ask(STATUS, &no_parameters()).await?;
    let mut out = io::stdout().lock();
    if show.output == Output::Json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&view)?)?);
    }
    let mut table = Table::new(HEADERS);
    table.rows(&mut out, &view.nodes.iter().map(row).collect::<Vec<_>>())?;
    Ok(writeln!(out, "\n{}", verdict(&view))?)
}

fn row(node: &NodeCaView) -> Vec<String> {
    let link = if node.linked { "linked" } else { "away" };
    vec![node.node.to_string(), link.into(), node.ca.clone()]
}

/// The meaning of the table, and advice.
fn verdict(view: &RotationView) -> String {
    let behind = view.nodes.iter().filter(|node| node.ca != CURRENT).count();
    let of_all = format!("{behind} of {} nodes", view.nodes.len());
    let finish = "`csi-cloud ca rotate finish`";
    match (view.rotating, behind) {
        (false, 0) => "No CA is taking over.".into(),
        (false, _) => format!("No CA is taking over; {of_all} may not have csi-cloud's CAs."),
        (true, 0) => format!("All nodes have the new CA: {finish} is safe."),
        (true, _) => format!("{of_all} lack the new CA: {finish} would lock them out."),
    }
}
