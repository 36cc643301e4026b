//! Scenarios of several nodes: where a volume is made and found, and what one node that is away
//! costs the calls of the others.
//!
//! Alone, each call goes to the driver at the node that it is for, as with `--node-deployment`.

use anyhow::{Context, ensure};
use futures_util::future::FutureExt;
use harness::twin::Bound;
use proto::csi;
use proto::csi::volume_content_source::{SnapshotSource, Type};
use tokio::time::Instant;

use super::scenarios::Scenario;
use super::scene::{Scene, capability, creation, repeated, topology, within};

/// The nodes of each scenario.
const NODES: &[&str] = &["n1", "n2", "n3"];
/// The deadline of a sidecar's calls.
const SIDECAR: std::time::Duration = std::time::Duration::from_secs(15);
/// What no scenario takes.
const LONG: std::time::Duration = std::time::Duration::from_secs(60);
/// The entries of a node's list.
const LISTED: usize = 10;

/// All of them.
pub(super) const PLACES: &[Scenario] = &[
    Scenario {
        unit: "elsewhere",
        flags: &["--topology"],
        nodes: NODES,
        ..Scenario::new("a volume of which the first of 3 is away", Bound::AtMost(0.0), |scene| {
            first_away(scene).boxed_local()
        })
    },
    Scenario {
        flags: &["--topology"],
        nodes: NODES,
        ..Scenario::new("two deletes while another node is away", Bound::More(1.0), |scene| {
            deleted_twice(scene).boxed_local()
        })
    },
    Scenario {
        flags: &["--topology"],
        nodes: NODES,
        ..Scenario::new("a detach of an unknown volume, one away", Bound::More(1.0), |scene| {
            unknown_detach(scene).boxed_local()
        })
    },
    Scenario {
        flags: &["--topology", "--validates"],
        nodes: NODES,
        ..Scenario::new("a static volume at one of 3 nodes", Bound::More(1.0), |scene| {
            static_volume(scene).boxed_local()
        })
    },
    Scenario {
        flags: &["--topology", "--snapshots"],
        nodes: NODES,
        ..Scenario::new("a restore of a static snapshot at one of 3", Bound::More(1.0), |scene| {
            restored(scene).boxed_local()
        })
    },
    Scenario {
        unit: "missing",
        flags: &["--topology", "--list=10", "--foreign"],
        nodes: NODES,
        ..Scenario::new("a list of 3 nodes with lost+found at each", Bound::AtMost(0.0), |scene| {
            foreign_entries(scene).boxed_local()
        })
    },
];

/// A request that prefers these nodes in this order.
fn preferring(name: &str, nodes: &[&str]) -> csi::CreateVolumeRequest {
    let all: Vec<_> = nodes.iter().map(|node| topology(node)).collect();
    let requirement = csi::TopologyRequirement { requisite: all.clone(), preferred: all };
    csi::CreateVolumeRequest { accessibility_requirements: Some(requirement), ..creation(name) }
}

/// Creates a volume at a node, as a sidecar that repeats it, and returns its topology.
async fn created(
    scene: &Scene,
    node: &str,
    request: &csi::CreateVolumeRequest,
) -> anyhow::Result<Vec<csi::Topology>> {
    repeated(LONG, async || {
        let request = within(SIDECAR, request.clone());
        let answer = scene.controller_of(node).await?.create_volume(request).await?;
        Ok(answer.into_inner().volume.context("no volume")?.accessible_topology)
    })
    .await
}

/// Returns 1 if the answer does not say where the volume was made. The driver takes the first node
/// that the caller prefers for its place, which is away.
async fn first_away(scene: &mut Scene) -> anyhow::Result<f64> {
    scene.take_away("n2").await?;
    let place = created(scene, "n1", &preferring("v", &["n2", "n3", "n1"])).await?;
    let made = scene.who_got("CreateVolume", "v")?;
    ensure!(made.len() == 1, "it was made at {made:?}");
    let said: Vec<_> = made.into_iter().map(topology).collect();
    Ok(f64::from(u8::from(place != said)))
}

/// The seconds of a delete and its repetition. No other node is told of them.
async fn deleted_twice(scene: &mut Scene) -> anyhow::Result<f64> {
    created(scene, "n1", &preferring("v", &["n1"])).await?;
    scene.take_away("n3").await?;
    let begun = Instant::now();
    for _ in 0..2 {
        delete(scene, "n1", "v").await?;
    }
    let took = begun.elapsed().as_secs_f64();
    let told = scene.who_got("DeleteVolume", "v")?;
    ensure!(told == ["n1"], "{told:?} were told");
    Ok(took)
}

async fn delete(scene: &Scene, node: &str, volume: &str) -> anyhow::Result<()> {
    let request = csi::DeleteVolumeRequest { volume_id: volume.into(), ..Default::default() };
    scene.controller_of(node).await?.delete_volume(within(SIDECAR, request)).await?;
    Ok(())
}

async fn detach(scene: &Scene, node: &str, volume: &str) -> anyhow::Result<()> {
    let request = csi::ControllerUnpublishVolumeRequest {
        volume_id: volume.into(),
        node_id: node.into(),
        ..Default::default()
    };
    let request = within(SIDECAR, request);
    scene.controller_of(node).await?.controller_unpublish_volume(request).await?;
    Ok(())
}

/// The seconds of a detach of what nobody knows, from a node that is there.
async fn unknown_detach(scene: &mut Scene) -> anyhow::Result<f64> {
    scene.take_away("n3").await?;
    let begun = Instant::now();
    detach(scene, "n2", "never").await?;
    let took = begun.elapsed().as_secs_f64();
    let told = scene.who_got("ControllerUnpublishVolume", "never")?;
    ensure!(told == ["n2"], "{told:?} were told");
    Ok(took)
}

/// The seconds of the life of a volume at the second node that nobody created here, until it is
/// deleted twice.
async fn static_volume(scene: &Scene) -> anyhow::Result<f64> {
    let volume = "static@n2";
    let begun = Instant::now();
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: volume.into(),
        node_id: "n2".into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    let request = within(SIDECAR, request);
    scene.controller_of("n2").await?.controller_publish_volume(request).await?;
    detach(scene, "n2", volume).await?;
    for _ in 0..2 {
        delete(scene, "n2", volume).await?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// The seconds until a volume is made of a snapshot at the second node. The caller prefers another
/// node, but for a sidecar at the node itself.
async fn restored(scene: &Scene) -> anyhow::Result<f64> {
    let source = Type::Snapshot(SnapshotSource { snapshot_id: "static@n2".into() });
    let preferred = if scene.is_behind_us() { NODES } else { &["n2"] };
    let request = csi::CreateVolumeRequest {
        volume_content_source: Some(csi::VolumeContentSource { r#type: Some(source) }),
        ..preferring("restored", preferred)
    };
    let begun = Instant::now();
    let place = created(scene, "n2", &request).await?;
    let took = begun.elapsed().as_secs_f64();
    ensure!(place == [topology("n2")], "it is said to be elsewhere than its source");
    Ok(took)
}

/// How many volumes of all nodes are missing in the lists. The driver at each node also lists a
/// directory that belongs to no volume.
async fn foreign_entries(scene: &Scene) -> anyhow::Result<f64> {
    let mut missing = NODES.len() * LISTED;
    for node in scene.controllers() {
        let listed = repeated(LONG, async || {
            let request = within(SIDECAR, csi::ListVolumesRequest::default());
            Ok(scene.controller_of(node).await?.list_volumes(request).await?.into_inner())
        });
        let volumes = listed.await?.entries.into_iter().filter_map(|entry| entry.volume);
        missing -= volumes.filter(|volume| volume.volume_id.starts_with("listed-")).count();
    }
    Ok(missing as f64)
}
