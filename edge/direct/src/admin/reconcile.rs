//! Reconciles as csi-edge does when it starts, and says what became of each volume.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::volumes;
use super::volumes::{DirectVolume, Standing};
use crate::device::host::Host;
use crate::lease::exclusive::Leases;
use crate::records::lock::StateLock;
use crate::runtimes::mount_info::Root;
use crate::runtimes::{PATIENCE, Roots, Runtimes};
use crate::service::reconcile;
use crate::volume::node::Node;

/// The result of reconciling a volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The volume's id.
    pub volume_id: String,
    /// Its driver's CSI name.
    pub driver: String,
    /// The target at which it is published.
    pub target: PathBuf,
    /// Its standing before.
    pub before: Standing,
    /// Its standing now.
    pub after: Standing,
    /// The action, for people.
    pub did: &'static str,
    /// The remaining fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
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
    let leases = Leases::new(node.clone(), Arc::default());
    reconcile::reconcile(&node, &leases).await;
    let after = volumes::all(state, &runtimes).await?;
    let ours = before.into_iter().filter(is_ours);
    Ok(ours.map(|volume| change(volume, &after)).collect())
}

/// True if csi-edge has a record of it: an entry without one is left alone.
fn is_ours(volume: &DirectVolume) -> bool {
    volume.standing != Standing::Foreign || !volume.volume_id.is_empty()
}

fn change(volume: DirectVolume, after: &[DirectVolume]) -> Change {
    let DirectVolume { volume_id, driver, target, standing: before, damage, .. } = volume;
    let now = after.iter().filter(|now| is_ours(now)).find(|now| {
        let is_same = (&now.volume_id, &now.driver, &now.target) == (&volume_id, &driver, &target);
        // Several records that cannot be read have no names.
        is_same && (!volume_id.is_empty() || now.damage == damage)
    });
    let damage = now.map_or(damage, |now| now.damage.clone());
    let now = now.map_or(before, |now| now.standing);
    let did = match (before, now) {
        (_, Standing::Damaged) if volume_id.is_empty() => {
            "its record cannot be read; put it right, or remove it when no guest has the volume"
        }
        (before, now) => did(before, now),
    };
    Change { volume_id, driver, target, before, after: now, did, damage }
}

/// What was done about a volume, and what its operator does next.
fn did(before: Standing, after: Standing) -> &'static str {
    match (before, after) {
        (_, Standing::Damaged) => "cannot be put right; the log says why",
        (_, Standing::Foreign) => {
            "something of somebody else's is in place of its entry; remove it if nothing uses it"
        }
        (_, Standing::Withheld) => "withheld, because a guest may have it; the fault says which",
        (_, Standing::Withdrawing) => "being unpublished; its guest still has it",
        (Standing::Lost | Standing::Withheld | Standing::Withdrawing, Standing::Published) => {
            "handed over again"
        }
        (Standing::Damaged, Standing::Published) => "its entry was damaged, and is written again",
        (
            Standing::Published
            | Standing::NotTaken
            | Standing::Damaged
            | Standing::Withheld
            | Standing::Withdrawing,
            Standing::Lost,
        ) => "taken back, its device is not there; publish it again",
        (Standing::Lost | Standing::Foreign, Standing::Lost) => {
            "cannot be handed over; the log says why, publish it again"
        }
        (Standing::Fenced, _) => "taken from this node by an operator; delete its pod",
        (Standing::Begun, _) => {
            "its publication was interrupted; the kubelet ends or takes back what was begun"
        }
        (_, Standing::NotTaken) => {
            "shared by its runtime instead of taken; csi-edge direct check, and delete its pod"
        }
        (Standing::Published | Standing::NotTaken | Standing::Foreign, Standing::Published)
        | (
            Standing::Published
            | Standing::NotTaken
            | Standing::Lost
            | Standing::Damaged
            | Standing::Withheld
            | Standing::Withdrawing
            | Standing::Foreign,
            Standing::Begun | Standing::Fenced,
        ) => "as it should be",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_never_as_it_should_be() {
        let standings = [
            Standing::Published,
            Standing::Begun,
            Standing::Lost,
            Standing::Damaged,
            Standing::Foreign,
            Standing::Fenced,
            Standing::NotTaken,
            Standing::Withheld,
            Standing::Withdrawing,
        ];
        for before in standings {
            for after in standings.into_iter().filter(|after| after.is_fault()) {
                assert_ne!(did(before, after), "as it should be", "{before:?} to {after:?}");
            }
        }
    }
}
