//! The scenarios: what is done with claims, what is measured, and what is allowed.

use anyhow::ensure;
use futures_util::future::{FutureExt, LocalBoxFuture};
use harness::twin::Bound;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::time::Instant;

use super::plane::NODES;
use super::scene::ClaimScene;
use super::strangers;

/// The claims of a scenario.
const CLAIMS: [&str; 6] = ["claim-0", "claim-1", "claim-2", "claim-3", "claim-4", "claim-5"];

/// A scenario.
pub(super) struct ClaimScenario {
    pub(super) name: &'static str,
    /// What the numbers are.
    pub(super) unit: &'static str,
    pub(super) bound: Bound,
    pub(super) run: fn(&mut ClaimScene) -> LocalBoxFuture<'_, anyhow::Result<f64>>,
}

/// All of them.
pub(super) const ALL: &[ClaimScenario] = &[
    ClaimScenario {
        name: "6 claims that bind at once",
        unit: "s",
        bound: Bound::More(5.0),
        run: |scene| at_once(scene).boxed_local(),
    },
    ClaimScenario {
        name: "6 claims for which a node is chosen",
        unit: "s",
        bound: Bound::More(5.0),
        run: |scene| chosen(scene).boxed_local(),
    },
    ClaimScenario {
        name: "6 claims that bind at once, n1 is full",
        unit: "s",
        bound: Bound::More(5.0),
        run: |scene| one_full(scene).boxed_local(),
    },
    ClaimScenario {
        name: "6 claims that bind at once, n2 is away",
        unit: "s",
        bound: Bound::More(5.0),
        run: |scene| one_away(scene).boxed_local(),
    },
    ClaimScenario {
        name: "6 claims, preferred[0] may be full or away",
        unit: "misplaced",
        bound: Bound::AtMost(0.0),
        run: |scene| echoed(scene).boxed_local(),
    },
    ClaimScenario {
        name: "6 claims are deleted",
        unit: "s",
        bound: Bound::More(5.0),
        run: |scene| deleted(scene).boxed_local(),
    },
    ClaimScenario {
        name: "a static PersistentVolume is deleted",
        unit: "s",
        bound: Bound::More(5.0),
        run: |scene| static_volume(scene).boxed_local(),
    },
    ClaimScenario {
        name: "one of two static PVs of one handle is deleted",
        unit: "lost",
        bound: Bound::AtMost(0.0),
        run: |scene| one_handle(scene).boxed_local(),
    },
    ClaimScenario {
        name: "a claim of a static snapshot at n2",
        unit: "s",
        bound: Bound::More(5.0),
        run: |scene| strangers::restored(scene).boxed_local(),
    },
    ClaimScenario {
        name: "a volume that is gone is deleted again",
        unit: "s",
        bound: Bound::More(5.0),
        run: |scene| strangers::deleted_again(scene).boxed_local(),
    },
    ClaimScenario {
        name: "a detach of an unknown volume, n3 is away",
        unit: "s",
        bound: Bound::More(5.0),
        run: |scene| strangers::unknown_detach(scene).boxed_local(),
    },
];

/// The seconds until all claims are bound, and their volumes.
async fn bound(
    scene: &ClaimScene,
    is_chosen: bool,
) -> anyhow::Result<(f64, Vec<PersistentVolume>)> {
    let begun = Instant::now();
    for (claim, node) in CLAIMS.iter().zip(NODES.iter().cycle()) {
        scene.claim(claim, is_chosen.then_some(*node)).await?;
    }
    let volumes = scene.bound(&CLAIMS).await?;
    Ok((begun.elapsed().as_secs_f64(), volumes))
}

/// The seconds until all claims are bound, each to a volume at the node that it says.
async fn at_once(scene: &ClaimScene) -> anyhow::Result<f64> {
    let (took, volumes) = bound(scene, false).await?;
    let misplaced = scene.misplaced(&volumes)?;
    ensure!(misplaced.is_empty(), "{misplaced:?}");
    Ok(took)
}

/// The same of claims for which the scheduler has chosen a node.
async fn chosen(scene: &ClaimScene) -> anyhow::Result<f64> {
    let (took, volumes) = bound(scene, true).await?;
    let misplaced = scene.misplaced(&volumes)?;
    ensure!(misplaced.is_empty(), "{misplaced:?}");
    for (volume, node) in volumes.iter().zip(NODES.iter().cycle()) {
        let made = scene.who_did("CreateVolume", &volume.name_any())?;
        ensure!(made == [*node], "{node} was chosen, and it was made at {made:?}");
    }
    Ok(took)
}

async fn one_full(scene: &ClaimScene) -> anyhow::Result<f64> {
    scene.fill("n1").await?;
    at_once(scene).await
}

async fn one_away(scene: &mut ClaimScene) -> anyhow::Result<f64> {
    scene.take_away("n2").await?;
    at_once(scene).await
}

/// How many volumes are elsewhere than they say. The driver takes the first node that the caller
/// prefers for its place, and only the third node can have one.
async fn echoed(scene: &mut ClaimScene) -> anyhow::Result<f64> {
    scene.fill("n1").await?;
    scene.take_away("n2").await?;
    let (_, volumes) = bound(scene, false).await?;
    Ok(scene.misplaced(&volumes)?.len() as f64)
}

/// The seconds until the volumes of deleted claims are gone, each at the node that had it.
async fn deleted(scene: &ClaimScene) -> anyhow::Result<f64> {
    let (_, volumes) = bound(scene, false).await?;
    let begun = Instant::now();
    for claim in CLAIMS {
        scene.delete(claim).await?;
    }
    for volume in &volumes {
        scene.gone(&volume.name_any()).await?;
    }
    let took = begun.elapsed().as_secs_f64();
    for volume in volumes.iter().map(ResourceExt::name_any) {
        let made = scene.who_did("CreateVolume", &volume)?;
        let deleted = scene.who_did("DeleteVolume", &volume)?;
        ensure!(made == deleted, "made at {made:?}, deleted at {deleted:?}");
    }
    Ok(took)
}

/// The seconds until a volume that nobody made here is deleted, at its own node alone.
async fn static_volume(scene: &ClaimScene) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let volume = scene.write_volume("by-hand", "n2", "Delete").await?;
    scene.gone(&volume).await?;
    let took = begun.elapsed().as_secs_f64();
    let deleted = scene.who_did("DeleteVolume", "by-hand")?;
    ensure!(deleted == ["n2"], "it was deleted at {deleted:?}");
    Ok(took)
}

/// How many volumes of other nodes are lost with one that is deleted. Behind us it is not deleted
/// before an operator says which node's it is.
async fn one_handle(scene: &ClaimScene) -> anyhow::Result<f64> {
    scene.write_volume("by-hand", "n2", "Retain").await?;
    let volume = scene.write_volume("by-hand", "n1", "Delete").await?;
    if scene.is_behind_us() {
        scene.delete_failed(&volume).await?;
        scene.adopt("by-hand", "n1").await?;
    }
    scene.gone(&volume).await?;
    let deleted = scene.who_did("DeleteVolume", "by-hand")?;
    ensure!(deleted.contains(&"n1"), "it was deleted at {deleted:?}");
    Ok((deleted.len() - 1) as f64)
}
