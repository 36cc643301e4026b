//! `csi-cloud replicas`: the csi-clouds that share a store.

use crate::admin::replicas::{DRAIN, LIST, PROMOTE, ReplicaOrder, ReplicaView, UNDRAIN};
use crate::cli::cells::optional;
use crate::cli::output::{change, whole};
use crate::config::replica_arguments::{ReplicaCommand, Replicas};

const HEADERS: &[&str] = &["NAME", "LEADER", "EPOCH", "LAG", "VERSION", "DRAINED", "ENDPOINTS"];

/// Lists them, or gives an order.
///
/// # Errors
/// csi-cloud does not answer, refuses or changes nothing; or the output fails.
pub(super) async fn run(command: Replicas) -> anyhow::Result<()> {
    let (path, name, reach) = match command.command {
        None => return whole(&command.show, LIST, HEADERS, row).await.map(drop),
        Some(ReplicaCommand::Promote { name, reach }) => (PROMOTE, name, reach),
        Some(ReplicaCommand::Drain { name, reach }) => (DRAIN, name, reach),
        Some(ReplicaCommand::Undrain { name, reach }) => (UNDRAIN, name, reach),
    };
    change(&reach, path, &ReplicaOrder { name }).await
}

fn row(replica: &ReplicaView) -> Vec<String> {
    let yes = |is: bool| if is { "yes".to_owned() } else { String::new() };
    vec![
        replica.name.clone(),
        yes(replica.leads),
        optional(replica.epoch),
        replica.lag.to_string(),
        replica.version.clone().unwrap_or_else(|| "not running".into()),
        yes(replica.drained),
        replica.endpoints.join(" "),
    ]
}
