//! Scenarios of what servers do to all calls: pings that are too many, errors with all that they
//! can have, compressed answers, a controller that is served elsewhere.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::FutureExt;
use harness::twin::Bound;
use harness::wait::until;
use proto::csi;
use proto::csi::method::Method;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use super::raw::{Encoding, encoding_of};
use super::scenarios::{Scenario, attach, publish, stage, stats};
use super::scene::{NODE, Scene, creation, repeated, topology, within};

/// The pause between calls.
const IDLE: Duration = Duration::from_secs(5);
/// The most that a registration may take.
const REGISTERED: Duration = Duration::from_secs(10);

/// The pause between two pages of a list.
const BETWEEN_PAGES: Duration = Duration::from_secs(2);
/// The most that a list may take.
const LISTED: Duration = Duration::from_secs(20);

/// All of them.
pub(super) const HABITS: &[Scenario] = &[
    Scenario {
        unit: "calls failed",
        flags: &["--min-ping=5m"],
        ..Scenario::new("20 s beside a driver that takes no pings", Bound::AtMost(0.0), |scene| {
            without_pings(scene).boxed_local()
        })
    },
    Scenario {
        unit: "errors differ",
        ..Scenario::new("each code, with a message and trailers", Bound::AtMost(0.0), |scene| {
            errors(scene).boxed_local()
        })
    },
    Scenario {
        unit: "unreadable",
        flags: &["--gzip=asked"],
        ..Scenario::new("gzip, which the caller takes", Bound::AtMost(0.0), |scene| {
            compressed(scene).boxed_local()
        })
    },
    Scenario {
        unit: "unreadable",
        flags: &["--gzip=always"],
        is_start: true,
        ..Scenario::new("gzip, which nobody asked for", Bound::AtMost(0.0), |scene| {
            compressed_unasked(scene).boxed_local()
        })
    },
    Scenario {
        flags: &["--controller=absent"],
        is_start: true,
        ..Scenario::new("a node whose controller is absent", Bound::More(1.0), |scene| {
            node_only(scene).boxed_local()
        })
    },
    Scenario {
        flags: &["--controller=failing"],
        is_start: true,
        ..Scenario::new("a node whose controller fails", Bound::More(1.0), |scene| {
            node_only(scene).boxed_local()
        })
    },
    Scenario {
        unit: "elsewhere",
        flags: &["--topology"],
        ..Scenario::new("a volume whose first node is away", Bound::AtMost(0.0), |scene| {
            preferred(scene).boxed_local()
        })
    },
    Scenario {
        flags: &["--list=700", "--page=300", "--stale-tokens=1"],
        ..Scenario::new("a list of 700 in pages, once ABORTED", Bound::More(2.0), |scene| {
            list(scene).boxed_local()
        })
    },
    Scenario {
        flags: &["--list=700", "--stale-tokens=1000000"],
        ..Scenario::new("a list of 700 whose tokens are never valid", Bound::More(2.0), |scene| {
            list(scene).boxed_local()
        })
    },
    Scenario {
        unit: "refused",
        flags: &["--topology", "--list=700", "--page=300", "--last-tokens"],
        ..Scenario::new("pages whose tokens another list ends", Bound::AtMost(0.0), |scene| {
            pages(scene).boxed_local()
        })
    },
    Scenario::new("a static volume, without Validate", Bound::More(1.0), |scene| {
        static_volume(scene).boxed_local()
    }),
    Scenario {
        flags: &["--validates"],
        ..Scenario::new("a static volume, when Validate confirms all", Bound::More(1.0), |scene| {
            static_volume(scene).boxed_local()
        })
    },
];

/// Counts failures of calls with pauses, and of one that takes all the time: it ends with its
/// connection.
async fn without_pings(scene: &Scene) -> anyhow::Result<f64> {
    let long = publish(scene, "take-20s v", "/pods/long");
    let others = async {
        let mut failed = 0.0;
        for number in 0..4 {
            let volume = format!("v-{number}");
            for done in [publish(scene, &volume, "/pods/a").await, scene.create(&volume).await] {
                if let Err(error) = done {
                    eprintln!("  {volume}: {error:#}");
                    failed += 1.0;
                }
            }
            sleep(IDLE).await;
        }
        failed
    };
    let (long, failed) = tokio::join!(long, others);
    if let Err(error) = &long {
        eprintln!("  the long call: {error:#}");
    }
    Ok(failed + f64::from(u8::from(long.is_err())))
}

/// Counts the errors that are not what the driver said. Those with an odd code are in trailers
/// alone, the others come after the headers of an answer.
async fn errors(scene: &Scene) -> anyhow::Result<f64> {
    let mut differ = 0.0;
    for code in 1..=16 {
        let word = if code % 2 == 0 { "head" } else { "fail" };
        let about = |method: &str| format!("{method}={word}-{code} v");
        let volume = about("ControllerPublishVolume");
        scene.create(&volume).await?;
        let calls = [
            ("CreateVolume", scene.create(&about("CreateVolume")).await),
            ("ControllerPublishVolume", attach(scene, &volume, NODE, 15).await),
            ("NodeStageVolume", stage(scene, &about("NodeStageVolume")).await),
            ("NodePublishVolume", publish(scene, &about("NodePublishVolume"), "/pods/a").await),
            ("NodeGetVolumeStats", stats(scene, &about("NodeGetVolumeStats")).await),
        ];
        for (method, ended) in calls {
            let status = ended.err().context("it was OK")?.downcast::<Status>()?;
            if !is_what_it_said(&status, code) {
                eprintln!("  {method}, code {code}: {status:?}");
                differ += 1.0;
            }
        }
    }
    Ok(differ)
}

fn is_what_it_said(status: &Status, code: i32) -> bool {
    let trailer = status.metadata().get("x-field").is_some_and(|value| value == "kept");
    let message = format!("100% of „disk“ is away ({code})\nask again");
    trailer && status.code() == Code::from_i32(code) && status.message() == message
}

async fn compressed(scene: &Scene) -> anyhow::Result<f64> {
    let (controller, node) = (scene.controller_socket(), scene.node_socket());
    let info = csi::NodeGetInfoRequest {};
    let answers = [
        encoding_of(&controller, Method::CreateVolume, &creation("v")).await,
        encoding_of(&node, Method::NodeGetInfo, &info).await,
    ];
    let alone = answers.iter().all(|answer| matches!(answer, Ok(Encoding::Gzip)));
    ensure!(scene.is_behind_us() || alone, "the driver does not compress: {answers:?}");
    let mut unreadable = 0.0;
    for answer in answers {
        if let Err(error) = answer {
            eprintln!("  {error:#}");
            unreadable += 1.0;
        }
    }
    Ok(unreadable)
}

/// The same of a driver that the clients of other scenarios cannot read.
async fn compressed_unasked(scene: &Scene) -> anyhow::Result<f64> {
    let socket = scene.controller_socket();
    until("the driver", || async {
        encoding_of(&socket, Method::CreateVolume, &creation("ready")).await.map(drop)
    })
    .await?;
    compressed(scene).await
}

/// The seconds until a kubelet has what it needs to register the driver.
async fn node_only(scene: &Scene) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let registered = until("NodeGetInfo", || async {
        let request = within(REGISTERED, csi::NodeGetInfoRequest {});
        let info = scene.node().await?.node_get_info(request).await?;
        ensure!(info.get_ref().node_id == NODE, "{:?}", info.get_ref().node_id);
        Ok(())
    });
    timeout(REGISTERED, registered).await.context("a kubelet cannot register it")??;
    Ok(begun.elapsed().as_secs_f64())
}

/// The seconds of the life of a volume that nobody created here, until it is deleted twice.
async fn static_volume(scene: &Scene) -> anyhow::Result<f64> {
    let begun = Instant::now();
    attach(scene, "static", NODE, 15).await?;
    stage(scene, "static").await?;
    publish(scene, "static", "/pods/a").await?;
    let detach = csi::ControllerUnpublishVolumeRequest {
        volume_id: "static".into(),
        node_id: NODE.into(),
        ..Default::default()
    };
    scene.controller().await?.controller_unpublish_volume(detach).await?;
    for _ in 0..2 {
        let delete = csi::DeleteVolumeRequest { volume_id: "static".into(), ..Default::default() };
        scene.controller().await?.delete_volume(delete).await?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// The seconds until a caller has a whole list. It asks for all entries at once, as sidecars do.
async fn list(scene: &Scene) -> anyhow::Result<f64> {
    let begun = Instant::now();
    repeated(LISTED, async || {
        let mut count = 0;
        let mut starting_token = String::new();
        loop {
            let list = page(scene, starting_token).await?;
            let listed = list.entries.iter().flat_map(|entry| &entry.volume);
            count += listed.filter(|volume| volume.volume_id.starts_with("listed-")).count();
            if list.next_token.is_empty() {
                break;
            }
            starting_token = list.next_token;
        }
        ensure!(count == 700, "{count} are listed");
        Ok(())
    })
    .await?;
    Ok(begun.elapsed().as_secs_f64())
}

async fn page(scene: &Scene, starting_token: String) -> anyhow::Result<csi::ListVolumesResponse> {
    let request = csi::ListVolumesRequest { max_entries: 0, starting_token };
    Ok(scene.controller().await?.list_volumes(within(LISTED, request)).await?.into_inner())
}

/// Returns 1 if a caller that takes its time between two pages is refused the second one. The
/// driver knows the tokens of the last list alone, so nobody else may list it meanwhile.
async fn pages(scene: &Scene) -> anyhow::Result<f64> {
    let first = page(scene, String::new()).await?;
    ensure!(first.entries.len() == 300, "{} are on the first page", first.entries.len());
    sleep(BETWEEN_PAGES).await;
    let second = page(scene, first.next_token).await;
    if let Err(error) = &second {
        eprintln!("  the second page: {error:#}");
    }
    Ok(f64::from(u8::from(second.is_err())))
}

/// Returns 1 if the answer says that the volume is not at this node alone. The caller prefers
/// another one, which is away, and the driver takes the first for the place of the volume.
async fn preferred(scene: &Scene) -> anyhow::Result<f64> {
    let all = vec![topology("n2"), topology(NODE)];
    let requirement = csi::TopologyRequirement { requisite: all.clone(), preferred: all };
    let request =
        csi::CreateVolumeRequest { accessibility_requirements: Some(requirement), ..creation("v") };
    let created = scene.controller().await?.create_volume(request).await?.into_inner();
    let volume = created.volume.context("no volume")?;
    Ok(f64::from(u8::from(volume.accessible_topology != [topology(NODE)])))
}
