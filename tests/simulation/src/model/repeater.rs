//! A caller with an old memory, beside a liar: it deletes again what is gone, and what never was.
//! The liar may claim that, and gets no secrets for it.

use proto::csi::{DeleteSnapshotRequest, DeleteVolumeRequest};

use super::caller::Caller;
use super::world::World;
use crate::dice::Dice;

/// How ids begin that nobody ever had.
pub const NEVER: &str = "never-";

/// Repeats deletes until it is dropped.
pub async fn keep(world: World) {
    let mut dice = Dice::new(world.seed, "repeater");
    let mut caller = Caller::new("repeater", &world);
    loop {
        let wait = dice.time(10_000, 300_000);
        tokio::time::sleep(wait).await;
        let (volumes, snapshots) = world.api.read(|objects| {
            let volumes = objects.claims.iter().filter_map(|claim| claim.volume.as_ref());
            let volumes = volumes.filter(|volume| volume.gone).map(|volume| volume.id.clone());
            let snapshots = objects.snapshots.iter().filter(|snapshot| snapshot.gone);
            let snapshots = snapshots.filter_map(|snapshot| snapshot.id.clone());
            (volumes.collect::<Vec<_>>(), snapshots.collect::<Vec<_>>())
        });
        let is_snapshot = dice.chance(30);
        let gone = if is_snapshot { snapshots } else { volumes };
        let never = format!("{NEVER}{}", dice.below(5));
        let gone = gone.get(dice.below(gone.len())).cloned();
        let id = gone.filter(|_| dice.chance(70)).unwrap_or(never);
        world.liar.count("repeated delete", 1);
        // Its answer says nothing to anybody.
        if is_snapshot {
            let request = DeleteSnapshotRequest { snapshot_id: id.clone(), ..Default::default() };
            drop(caller.call("DeleteSnapshot", &id, &request).await);
        } else {
            let request = DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
            drop(caller.call("DeleteVolume", &id, &request).await);
        }
    }
}
