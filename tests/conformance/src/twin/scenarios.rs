//! The scenarios: what is done to a driver, what is measured, and what is allowed.

use std::time::Duration;

use anyhow::ensure;
use futures_util::future::{FutureExt, LocalBoxFuture, join_all, try_join_all};
use harness::twin::Bound;
use harness::wait::until;
use proto::csi;
use tokio::time::{Instant, sleep};

use super::scene::{Entry, NODE, Scene, capability, creation, must_fail, repeated, within};

/// The deadline of a kubelet's calls.
const KUBELET: Duration = Duration::from_secs(120);
/// What no scenario takes.
const LONG: Duration = Duration::from_secs(60);

/// A scenario.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// What the numbers are.
    pub(super) unit: &'static str,
    pub(super) bound: Bound,
    /// The driver's flags.
    pub(super) flags: &'static [&'static str],
    /// The nodes with the driver.
    pub(super) nodes: &'static [&'static str],
    /// True if it does not wait until calls reach the driver.
    pub(super) is_start: bool,
    pub(super) run: fn(&mut Scene) -> LocalBoxFuture<'_, anyhow::Result<f64>>,
}

impl Scenario {
    pub(super) const fn new(
        name: &'static str,
        bound: Bound,
        run: fn(&mut Scene) -> LocalBoxFuture<'_, anyhow::Result<f64>>,
    ) -> Self {
        Self { name, unit: "s", bound, flags: &[], nodes: &[NODE], is_start: false, run }
    }
}

/// All of them.
pub(super) const ALL: &[Scenario] = &[
    Scenario::new("20 pods of one volume end, 2 s each", Bound::AtMost(3.0), |scene| {
        twenty_pods(scene).boxed_local()
    }),
    Scenario::new("30 nodes attach one volume, 2 s each", Bound::AtMost(3.0), |scene| {
        thirty_nodes(scene).boxed_local()
    }),
    Scenario::new("a pod beside a hung NodeGetVolumeStats", Bound::More(0.5), |scene| {
        beside_stats(scene).boxed_local()
    }),
    Scenario::new("a pod beside another's hung unmount", Bound::More(0.5), |scene| {
        beside_unmount(scene).boxed_local()
    }),
    Scenario::new("a pod beside a hung CreateSnapshot", Bound::More(0.5), |scene| {
        beside_snapshot(scene).boxed_local()
    }),
    Scenario::new("a hung attach of 3 s is free at the driver", Bound::More(1.0), |scene| {
        hung_attach(scene).boxed_local()
    }),
    Scenario {
        flags: &["--max-streams=10"],
        ..Scenario::new("a mount beside ten hung calls of ten streams", Bound::More(1.0), |scene| {
            beside_ten(scene).boxed_local()
        })
    },
    Scenario {
        unit: "calls failed",
        flags: &["--max-age=1s"],
        ..Scenario::new("connections of 1 s, beside a call of 6 s", Bound::AtMost(0.0), |scene| {
            connections_of_a_second(scene).boxed_local()
        })
    },
    Scenario::new("a create of 8 s under a timeout of 2 s", Bound::AtMost(16.0), |scene| {
        slow_create(scene).boxed_local()
    }),
    Scenario {
        flags: &["--slow-info=8s"],
        is_start: true,
        ..Scenario::new("a driver whose NodeGetInfo takes 8 s", Bound::AtMost(10.5), |scene| {
            slow_introduction(scene).boxed_local()
        })
    },
    Scenario {
        flags: &["--fail-info"],
        is_start: true,
        ..Scenario::new("a mount while NodeGetInfo fails", Bound::More(1.0), |scene| {
            without_info(scene).boxed_local()
        })
    },
    Scenario::new("a stuck process, and a new one at its path", Bound::AtMost(5.0), |scene| {
        replaced(scene).boxed_local()
    }),
];

pub(super) async fn publish(scene: &Scene, volume: &str, target: &str) -> anyhow::Result<()> {
    let request = csi::NodePublishVolumeRequest {
        volume_id: volume.into(),
        staging_target_path: "/staging".into(),
        target_path: target.into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    scene.node().await?.node_publish_volume(within(KUBELET, request)).await?;
    Ok(())
}

async fn unpublish(scene: &Scene, volume: &str, target: &str) -> anyhow::Result<()> {
    let volume_id = volume.into();
    let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path: target.into() };
    scene.node().await?.node_unpublish_volume(within(KUBELET, request)).await?;
    Ok(())
}

pub(super) async fn stage(scene: &Scene, volume: &str) -> anyhow::Result<()> {
    let request = csi::NodeStageVolumeRequest {
        volume_id: volume.into(),
        staging_target_path: "/staging".into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    scene.node().await?.node_stage_volume(within(Duration::from_secs(2), request)).await?;
    Ok(())
}

pub(super) async fn attach(
    scene: &Scene,
    volume: &str,
    node: &str,
    within_s: u64,
) -> anyhow::Result<()> {
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: volume.into(),
        node_id: node.into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    let request = within(Duration::from_secs(within_s), request);
    scene.controller().await?.controller_publish_volume(request).await?;
    Ok(())
}

pub(super) async fn stats(scene: &Scene, volume: &str) -> anyhow::Result<()> {
    let request = csi::NodeGetVolumeStatsRequest {
        volume_id: volume.into(),
        volume_path: "/pods/a".into(),
        ..Default::default()
    };
    scene.node().await?.node_get_volume_stats(within(LONG, request)).await?;
    Ok(())
}

/// The seconds that work takes while so many calls that never end are at the driver.
async fn beside(
    scene: &Scene,
    count: usize,
    hung: impl Future<Output = anyhow::Result<()>>,
    work: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let work = async {
        scene.hung(count).await?;
        let begun = Instant::now();
        work().await?;
        Ok(begun.elapsed().as_secs_f64())
    };
    tokio::select! {
        biased;
        took = work => took,
        ended = hung => anyhow::bail!("what should hang has ended: {ended:?}"),
    }
}

async fn twenty_pods(scene: &Scene) -> anyhow::Result<f64> {
    let volume = "NodeUnpublishVolume=take-2s v";
    let begun = Instant::now();
    let unmounts = (0..20).map(|pod| async move {
        let target = format!("/pods/{pod}");
        repeated(LONG * 2, async || unpublish(scene, volume, &target).await).await
    });
    try_join_all(unmounts).await?;
    Ok(begun.elapsed().as_secs_f64())
}

async fn thirty_nodes(scene: &Scene) -> anyhow::Result<f64> {
    let volume = "ControllerPublishVolume=take-2s v";
    scene.create(volume).await?;
    let begun = Instant::now();
    let attaches = (0..30).map(|node| async move {
        let node = format!("node-{node}");
        repeated(LONG * 2, async || attach(scene, volume, &node, 15).await).await
    });
    try_join_all(attaches).await?;
    Ok(begun.elapsed().as_secs_f64())
}

async fn beside_stats(scene: &Scene) -> anyhow::Result<f64> {
    let volume = "NodeGetVolumeStats=hang v";
    beside(scene, 1, stats(scene, volume), async || {
        repeated(LONG, async || stage(scene, volume).await).await?;
        repeated(LONG, async || publish(scene, volume, "/pods/b").await).await?;
        repeated(LONG, async || unpublish(scene, volume, "/pods/b").await).await
    })
    .await
}

async fn beside_unmount(scene: &Scene) -> anyhow::Result<f64> {
    let volume = "NodeUnpublishVolume=hang v";
    beside(scene, 1, unpublish(scene, volume, "/pods/a"), async || {
        repeated(LONG, async || publish(scene, volume, "/pods/b").await).await
    })
    .await
}

async fn beside_snapshot(scene: &Scene) -> anyhow::Result<f64> {
    let volume = "beside-a-snapshot";
    scene.create(volume).await?;
    let snapshot = async {
        let request = csi::CreateSnapshotRequest {
            name: "hang s".into(),
            source_volume_id: volume.into(),
            ..Default::default()
        };
        scene.controller().await?.create_snapshot(within(LONG, request)).await?;
        Ok(())
    };
    beside(scene, 1, snapshot, async || {
        repeated(LONG, async || attach(scene, volume, "n1", 15).await).await?;
        repeated(LONG, async || stage(scene, volume).await).await?;
        repeated(LONG, async || publish(scene, volume, "/pods/b").await).await
    })
    .await
}

async fn hung_attach(scene: &Scene) -> anyhow::Result<f64> {
    let volume = "ControllerPublishVolume=hang v";
    scene.create(volume).await?;
    ensure!(attach(scene, volume, "n1", 3).await.is_err(), "it did not hang");
    let detach = csi::ControllerUnpublishVolumeRequest {
        volume_id: volume.into(),
        node_id: "n1".into(),
        ..Default::default()
    };
    repeated(LONG, async || {
        let detach = within(Duration::from_secs(15), detach.clone());
        Ok(scene.controller().await?.controller_unpublish_volume(detach).await?)
    })
    .await?;
    // Reset streams are cancelled at the driver, which may hear of it after the detach.
    let ended = || async { scene.span("ControllerPublishVolume", volume) };
    let (begun, ended) = until("the end of the attach", ended).await?;
    Ok(ended - begun)
}

async fn beside_ten(scene: &Scene) -> anyhow::Result<f64> {
    let volumes: Vec<_> = (0..10).map(|of| format!("NodeGetVolumeStats=hang {of}")).collect();
    let hung = async {
        join_all(volumes.iter().map(|volume| stats(scene, volume))).await;
        Ok(())
    };
    beside(scene, 10, hung, async || {
        repeated(LONG, async || stage(scene, "another").await).await?;
        repeated(LONG, async || publish(scene, "another", "/pods/b").await).await
    })
    .await
}

async fn connections_of_a_second(scene: &Scene) -> anyhow::Result<f64> {
    let long = publish(scene, "take-6s v", "/pods/long");
    let others = async {
        let mut failed = 0.0;
        for number in 0..50 {
            let volume = format!("v-{number}");
            if let Err(error) = publish(scene, &volume, "/pods/b").await {
                eprintln!("  {volume}: {error:#}");
                failed += 1.0;
            }
            sleep(Duration::from_millis(100)).await;
        }
        failed
    };
    let (long, failed) = tokio::join!(long, others);
    long?;
    Ok(failed)
}

async fn slow_create(scene: &Scene) -> anyhow::Result<f64> {
    let name = "take-8s v";
    let begun = Instant::now();
    let create = async || {
        let request = within(Duration::from_secs(2), creation(name));
        Ok(scene.controller().await?.create_volume(request).await?)
    };
    // Alone it never ends: each attempt begins anew.
    let _ = repeated(Duration::from_secs(20), create).await;
    let took = begun.elapsed().as_secs_f64();
    if scene.is_behind_us() {
        let (_, made) = scene.span("CreateVolume", name)?;
        let before =
            |entry: &&Entry| entry.event == "begin" && entry.about == name && entry.at < made;
        let attempts = scene.log()?.iter().filter(before).count();
        ensure!(attempts == 1, "{attempts} creates of one name were at the driver at once");
    }
    Ok(took)
}

async fn slow_introduction(scene: &Scene) -> anyhow::Result<f64> {
    let begun = Instant::now();
    scene.ready().await?;
    stage(scene, "v").await?;
    Ok(begun.elapsed().as_secs_f64())
}

async fn without_info(scene: &Scene) -> anyhow::Result<f64> {
    let begun = Instant::now();
    repeated(LONG, async || stage(scene, "v").await).await?;
    repeated(LONG, async || publish(scene, "v", "/pods/a").await).await?;
    Ok(begun.elapsed().as_secs_f64())
}

async fn replaced(scene: &mut Scene) -> anyhow::Result<f64> {
    scene.freeze_driver()?;
    // Its threads stop one after another.
    until("a driver that does not answer", || async { must_fail(hung_stage(scene).await) }).await?;
    let begun = Instant::now();
    scene.start_driver(&[])?;
    repeated(LONG, async || stage(scene, "v").await).await?;
    Ok(begun.elapsed().as_secs_f64())
}

async fn hung_stage(scene: &Scene) -> Result<(), tonic::Status> {
    let staged = stage(scene, "v").await;
    staged.map_err(|error| error.downcast().unwrap_or_else(|_| tonic::Status::unknown("")))
}
