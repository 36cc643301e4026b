//! Reconciles as csi-edge does when it starts, and says what became of each volume.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::volumes;
use super::volumes::{Standing, Volume};
use crate::device::host::Host;
use crate::lease::exclusive::Leases;
use crate::records::lock::StateLock;
use crate::runtimes::mount_info::Root;
use crate::runtimes::{PATIENCE, Roots, Runtimes};
use crate::service::reconcile;
use crate::volume::node::Node;

/// What became of a volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The volume's id.
    pub volume_id: String,
    /// Its driver's CSI name.
    pub driver: String,
    /// Where it is published.
    pub target: PathBuf,
    /// How it stood before.
    pub before: Standing,
    /// How it stands now.
    pub after: Standing,
    /// What was done, for people.
    pub did: &'static str,
}

/// Reconciles the entries of runtimes with the records. No driver is called.
///
/// # Errors
/// A csi-edge works on the state directory, or something cannot be read.
pub async fn reconcile(state: &Path, roots: Roots) -> anyhow::Result<Vec<Change>> {
    let _lock = StateLock::take(state)?;
    let root = Root::new(roots.entries.clone());
    let runtimes = Runtimes::new(roots, PATIENCE);
    let before = volumes::all(state, &runtimes).await?;
    let node = Arc::new(Node::new(Some(state.to_owned()), Host::default(), root));
    let leases = Leases::new(node.clone(), Arc::default(), Arc::default());
    reconcile::reconcile(&node, &leases).await;
    let after = volumes::all(state, &runtimes).await?;
    let ours = before.into_iter().filter(|volume| volume.standing != Standing::Foreign);
    Ok(ours.map(|volume| change(volume, &after)).collect())
}

fn change(volume: Volume, after: &[Volume]) -> Change {
    let Volume { volume_id, driver, target, standing: before, .. } = volume;
    let now = after.iter().find(|now| now.target == target).map_or(before, |now| now.standing);
    let did = match (before, now) {
        (Standing::Lost, Standing::Published) => "handed over again",
        (Standing::Published, Standing::Lost) => {
            "taken back, its device is not there; publish it again"
        }
        (Standing::Lost, Standing::Lost) => {
            "cannot be handed over; the log says why, publish it again"
        }
        (Standing::Fenced, _) => "taken from this node by an operator; delete its pod",
        (Standing::Begun, _) => {
            "its publication was interrupted; the kubelet ends or takes back what was begun"
        }
        (_, Standing::NotTaken) => {
            "shared by its runtime instead of taken; csi-edge direct check, and delete its pod"
        }
        _ => "as it should be",
    };
    Change { volume_id, driver, target, before, after: now, did }
}
