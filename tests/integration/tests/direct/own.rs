//! Exclusive use of direct volumes between nodes: the real programs, two nodes and one storage. Any order of steps and any
//! loss of messages is in `tests/src/direct/test_own.rs`.
//!
//! Most of it needs root and loop devices: `make direct`, or `cargo test -p tests --test own -- --ignored`.

use std::path::Path;

use anyhow::{Context, ensure};
use drivers::testdriver::TestDriver;
use guest::pair::{CLASS, Pair};
use guest::scene::{Volume, mount};
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create, created};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, ready};
use prost::Message;
use proto::csi;
use proto::csi::volume_capability::access_mode::Mode;
use serde_json::Value;
use tonic::{Code, Status};

fn code(outcome: anyhow::Result<()>) -> (Code, String) {
    match outcome.map_err(|error| error.downcast::<Status>()) {
        Ok(()) => (Code::Ok, String::new()),
        Err(Ok(status)) => (status.code(), status.message().to_owned()),
        Err(Err(other)) => (Code::Unknown, other.to_string()),
    }
}

#[track_caller]
fn refused(outcome: anyhow::Result<()>, with: Code, words: &[&str]) {
    let (code, why) = code(outcome);
    assert!(code == with && words.iter().all(|word| why.contains(word)), "{code:?} {why}");
}

/// A volume that is staged at both nodes.
async fn staged(pair: &Pair) -> anyhow::Result<Volume> {
    let capability = mount(Mode::SingleNodeMultiWriter, "ext4", "");
    let volume =
        until("a volume", || async { pair.create("data", &CLASS, capability.clone()).await })
            .await?;
    for node in [0, 1] {
        pair.stage(node, &volume).await?;
    }
    Ok(volume)
}

/// Waits until csi-cloud has heard that the first node has it, for its pod, and does not give it to the other one.
async fn is_the_first_nodes(pair: &Pair, volume: &Volume) -> anyhow::Result<()> {
    until("the node has said so", || async {
        let owners = pair.json(&["owners"]).await?;
        ensure!(owners[0]["holder_node"] == "n1" && owners[0]["holder_pod"] == "uid-1", "{owners}");
        Ok(())
    })
    .await?;
    until("the other one is linked", || async {
        let (code, why) = code(pair.publish(1, volume, "uid-2").await);
        ensure!(
            code == Code::FailedPrecondition && why.contains("node n1 has it"),
            "{code:?} {why}"
        );
        Ok(())
    })
    .await
}

async fn fenced(pair: &Pair, node: usize) -> anyhow::Result<()> {
    until("it is told that it was taken", || async {
        let shown = pair.shown(node).await?;
        ensure!(shown["standing"] == "fenced", "{shown}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_volume_is_one_nodes_until_it_is_unpublished_there() -> anyhow::Result<()> {
    let pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    pair.publish(0, &volume, "uid-1").await?;
    pair.publish(0, &volume, "uid-1").await?;
    let words = ["node n1 has it for pod uid-1 since 20", "is linked"];
    refused(pair.publish(1, &volume, "uid-2").await, Code::FailedPrecondition, &words);
    assert_eq!(pair.entries(1), 0);
    let owners = pair.json(&["owners"]).await?;
    assert_eq!(
        (&owners[0]["id"], &owners[0]["holder_node"]),
        (&Value::from(&*volume.id), &Value::from("n1"))
    );
    assert_eq!(
        (&owners[0]["holder_pod"], &owners[0]["linked"]),
        (&"uid-1".into(), &true.into()),
        "{owners}"
    );
    let volumes = pair.json(&["volumes"]).await?;
    assert_eq!(volumes[0]["holder_node"], "n1", "{volumes}");
    refused(pair.delete(&volume).await, Code::FailedPrecondition, &["node n1 has it for pod uid-1"]);
    let release = ["volume", "release", guest::scene::DRIVER, &volume.id, "--yes", "--node"];
    for (node, why) in [("n1", "n1 is linked"), ("n2", "n1 has it, and not n2")] {
        let error =
            pair.say(&[&release[..], &[node]].concat()).await.err().context("it was taken")?;
        assert!(format!("{error:#}").contains(why), "{error:#}");
    }
    pair.unpublish(0, &volume, "uid-1").await?;
    pair.publish(1, &volume, "uid-2").await?;
    refused(pair.publish(0, &volume, "uid-1").await, Code::FailedPrecondition, &["node n2"]);
    pair.unpublish(1, &volume, "uid-2").await?;
    assert_eq!(pair.json(&["owners"]).await?, Value::Array(Vec::new()));
    pair.end(&volume).await?;
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_node_that_is_cut_off_keeps_its_volume_and_lets_it_go_when_it_is_back()
-> anyhow::Result<()> {
    let mut pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    pair.publish(0, &volume, "uid-1").await?;
    pair.cut(0).await?;
    let words = ["node n1 has it for pod uid-1", "has no link", "csi-cloud volume release"];
    refused(pair.publish(1, &volume, "uid-2").await, Code::FailedPrecondition, &words);
    // Its own pod comes back, and another one of the same node; also after csi-edge was killed.
    pair.publish(0, &volume, "uid-1").await?;
    pair.unpublish(0, &volume, "uid-1").await?;
    pair.publish(0, &volume, "uid-3").await?;
    pair.restart_edge(0).await?;
    until("it is served", || pair.publish(0, &volume, "uid-3")).await?;
    pair.unpublish(0, &volume, "uid-3").await?;
    // It is free there, and nobody knows.
    refused(
        pair.publish(1, &volume, "uid-2").await,
        Code::FailedPrecondition,
        &["node n1", "has no link"],
    );
    pair.mend(0);
    until("it has let go", || pair.publish(1, &volume, "uid-2")).await?;
    // What is new to a node cannot be had while it is cut off.
    pair.unpublish(1, &volume, "uid-2").await?;
    pair.cut(0).await?;
    refused(pair.publish(0, &volume, "uid-1").await, Code::Unavailable, &["no link to csi-cloud"]);
    pair.mend(0);
    until("it is linked", || pair.publish(0, &volume, "uid-1")).await?;
    pair.unpublish(0, &volume, "uid-1").await?;
    pair.end(&volume).await?;
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_an_operator_took_from_a_node_is_not_handed_over_there_when_it_is_back()
-> anyhow::Result<()> {
    let mut pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    pair.publish(0, &volume, "uid-1").await?;
    pair.cut(0).await?;
    let release = ["volume", "release", guest::scene::DRIVER, &volume.id, "--node", "n1"];
    let asked = pair.say(&release).await.err().context("without a yes")?;
    assert!(format!("{asked:#}").contains("the volume's data is destroyed"), "{asked:#}");
    refused(pair.publish(1, &volume, "uid-2").await, Code::FailedPrecondition, &["node n1"]);
    pair.say(&[&release[..], &["--yes"]].concat()).await?;
    pair.publish(1, &volume, "uid-2").await?;
    // The old one does not know yet; nothing can tell it.
    pair.publish(0, &volume, "uid-1").await?;
    pair.mend(0);
    fenced(&pair, 0).await?;
    let shown = pair.direct(0, &["inspect", &volume.id]).await?;
    assert!(
        shown.contains("taken from this node") && shown.contains("node n2 has it for pod uid-2"),
        "{shown}"
    );
    until("no new guest finds it", || async {
        ensure!(pair.entries(0) == 0, "{} entries", pair.entries(0));
        Ok(())
    })
    .await?;
    // Not final: its kubelet would not unpublish what it was told had failed.
    let is_refused = || async {
        let (code, why) = code(pair.publish(0, &volume, "uid-1").await);
        let words = ["it was taken from this node", "node n2 has it for pod uid-2"];
        ensure!(
            code == Code::Unavailable && words.iter().all(|word| why.contains(word)),
            "{code:?} {why}"
        );
        Ok(())
    };
    until("it is refused", is_refused).await?;
    pair.restart_edge(0).await?;
    until("it is served", || async {
        let (code, why) = code(pair.publish(0, &volume, "uid-1").await);
        ensure!(code == Code::Unavailable && why.contains("it was taken"), "{code:?} {why}");
        Ok(())
    })
    .await?;
    assert_eq!(pair.entries(0), 0);
    pair.unpublish(0, &volume, "uid-1").await?;
    until("it is an ordinary node again", || async {
        let (code, why) = code(pair.publish(0, &volume, "uid-1").await);
        ensure!(
            code == Code::FailedPrecondition && why.contains("node n2 has it"),
            "{code:?} {why}"
        );
        Ok(())
    })
    .await?;
    pair.unpublish(1, &volume, "uid-2").await?;
    pair.publish(0, &volume, "uid-1").await?;
    let owners = pair.json(&["owners"]).await?;
    assert!(owners[0]["holder_epoch"].as_u64() > owners[0]["broken"].as_u64(), "{owners}");
    pair.unpublish(0, &volume, "uid-1").await?;
    pair.end(&volume).await?;
    assert_eq!(
        pair.json(&["owners"]).await?,
        Value::Array(Vec::new()),
        "it is forgotten with the volume"
    );
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_guest_that_runs_when_its_volume_is_taken_is_left_alone_until_it_ends()
-> anyhow::Result<()> {
    let pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    pair.publish(0, &volume, "uid-1").await?;
    let guest = std::fs::File::open(pair.device()?)?;
    pair.cut(0).await?;
    let release = ["volume", "release", guest::scene::DRIVER, &volume.id, "--node", "n1", "--yes"];
    pair.say(&release).await?;
    pair.mend(0);
    until("it is told", || async {
        let shown = pair.direct(0, &["inspect", &volume.id]).await?;
        ensure!(
            shown.contains("taken from this node") && shown.contains("is nobody's now"),
            "{shown}"
        );
        Ok(())
    })
    .await?;
    // What finds no entry would mount the host's empty directory instead.
    assert_eq!(pair.entries(0), 1);
    refused(pair.unpublish(0, &volume, "uid-1").await, Code::Unavailable, &["is open in process"]);
    drop(guest);
    pair.unpublish(0, &volume, "uid-1").await?;
    until("it is an ordinary node again", || pair.publish(0, &volume, "uid-1")).await?;
    pair.unpublish(0, &volume, "uid-1").await?;
    pair.end(&volume).await?;
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_node_that_is_powered_on_after_its_volume_was_taken_asks_before_a_pod_has_it()
-> anyhow::Result<()> {
    let mut pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    pair.publish(0, &volume, "uid-1").await?;
    pair.power_off(0).await?;
    let release = ["volume", "release", guest::scene::DRIVER, &volume.id, "--node", "n1", "--yes"];
    pair.say(&release).await?;
    pair.publish(1, &volume, "uid-2").await?;
    pair.power_on(0).await?;
    // Its kubelet starts the same pod as soon as there is somebody to ask.
    until("it is refused", || async {
        let (code, why) = code(pair.publish(0, &volume, "uid-1").await);
        assert_ne!(code, Code::Ok, "the other node's data is destroyed");
        let words = ["it was taken from this node", "delete the pod"];
        ensure!(words.iter().all(|word| why.contains(word)), "{code:?} {why}");
        Ok(())
    })
    .await?;
    fenced(&pair, 0).await?;
    until("nobody is at it", || pair.unpublish(0, &volume, "uid-1")).await?;
    pair.unpublish(1, &volume, "uid-2").await?;
    pair.end(&volume).await?;
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_guest_that_runs_with_a_fenced_volume_is_the_last_one() -> anyhow::Result<()> {
    let mut pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    pair.publish(0, &volume, "uid-1").await?;
    pair.cut(0).await?;
    let release = ["volume", "release", guest::scene::DRIVER, &volume.id, "--node", "n1", "--yes"];
    pair.say(&release).await?;
    pair.publish(1, &volume, "uid-2").await?;
    let shown = pair.shown(0).await?;
    let guest = std::fs::File::open(shown["device"].as_str().context("no device")?)?;
    pair.mend(0);
    fenced(&pair, 0).await?;
    pair.restart_edge(0).await?;
    until("it is served", || async {
        let (code, why) = code(pair.publish(0, &volume, "uid-1").await);
        ensure!(code == Code::Unavailable && why.contains("it was taken"), "{code:?} {why}");
        Ok(())
    })
    .await?;
    assert_eq!(pair.entries(0), 1, "a guest has it");
    drop(guest);
    until("no later guest finds it", || async {
        ensure!(pair.entries(0) == 0, "{} entries", pair.entries(0));
        Ok(())
    })
    .await?;
    until("nobody is at it", || pair.unpublish(0, &volume, "uid-1")).await?;
    pair.unpublish(1, &volume, "uid-2").await?;
    pair.end(&volume).await?;
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_pod_that_went_while_its_kubelet_was_away_does_not_keep_its_volume_from_other_nodes()
-> anyhow::Result<()> {
    let mut pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    // The node is off, and its pod is given up meanwhile.
    pair.publish(0, &volume, "uid-1").await?;
    pair.power_off(0).await?;
    refused(
        pair.publish(1, &volume, "uid-2").await,
        Code::FailedPrecondition,
        &["node n1", "has no link"],
    );
    pair.forget_pod(0, "uid-1")?;
    pair.power_on(0).await?;
    until("it has let go", || pair.publish(1, &volume, "uid-2")).await?;
    assert_eq!(pair.entries(0), 0);
    // The kubelet alone was away, and nothing links anew.
    pair.forget_pod(1, "uid-2")?;
    let again = async {
        while code(pair.publish(0, &volume, "uid-1").await).0 != Code::Ok {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(START * 2, again).await.context("it was not looked at again")?;
    pair.unpublish(0, &volume, "uid-1").await?;
    pair.end(&volume).await?;
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_scope_that_has_become_node_gives_nothing_away() -> anyhow::Result<()> {
    let mut pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    pair.publish(0, &volume, "uid-1").await?;
    pair.cut(0).await?;
    pair.change_scope("node").await?;
    until("the other node is told", || async {
        let scopes = pair.kept(1, "scopes.json")?;
        ensure!(scopes.contains("node"), "{scopes}");
        Ok(())
    })
    .await?;
    let (code, why) = code(pair.publish(1, &volume, "uid-2").await);
    assert_eq!((code, pair.entries(1)), (Code::FailedPrecondition, 0), "{why}");
    pair.change_scope("shared").await?;
    pair.mend(0);
    until("it is linked", || pair.unpublish(0, &volume, "uid-1")).await?;
    until("it is free", || pair.publish(1, &volume, "uid-2")).await?;
    pair.unpublish(1, &volume, "uid-2").await?;
    pair.end(&volume).await?;
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_cloud_that_is_killed_while_it_gives_a_volume_gives_it_to_one() -> anyhow::Result<()> {
    let mut pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    {
        let publishing = pair.publish(0, &volume, "uid-1");
        let given = pair.cloud.process.logged("a volume is the node's");
        tokio::pin!(publishing);
        tokio::select! { biased; given = given => given?, published = &mut publishing => published? }
    }
    pair.restart_cloud().await?;
    until("it is published", || pair.publish(0, &volume, "uid-1")).await?;
    until("the other one is linked, and refused", || async {
        let (code, why) = code(pair.publish(1, &volume, "uid-2").await);
        ensure!(
            code == Code::FailedPrecondition && why.contains("node n1 has it"),
            "{code:?} {why}"
        );
        Ok(())
    })
    .await?;
    pair.unpublish(0, &volume, "uid-1").await?;
    until("it is free", || pair.publish(1, &volume, "uid-2")).await?;
    pair.unpublish(1, &volume, "uid-2").await?;
    pair.end(&volume).await?;
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_store_that_was_lost_learns_from_the_nodes_who_has_what() -> anyhow::Result<()> {
    let mut pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    pair.publish(0, &volume, "uid-1").await?;
    pair.forget_store().await?;
    is_the_first_nodes(&pair, &volume).await?;
    pair.unpublish(0, &volume, "uid-1").await?;
    pair.end(&volume).await?;
    pair.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_was_published_before_anybody_asked_is_its_nodes() -> anyhow::Result<()> {
    let mut pair = Pair::new().await?;
    let volume = staged(&pair).await?;
    pair.publish(0, &volume, "uid-1").await?;
    pair.cut(0).await?;
    pair.forget_store().await?;
    pair.upgrade_edge(0).await?;
    // It does not need the cloud, which has never heard of the volume.
    until("it is served", || pair.publish(0, &volume, "uid-1")).await?;
    assert_eq!(pair.json(&["owners"]).await?, Value::Array(Vec::new()));
    pair.mend(0);
    is_the_first_nodes(&pair, &volume).await?;
    pair.unpublish(0, &volume, "uid-1").await?;
    pair.end(&volume).await?;
    pair.stop().await
}

/// An attacher of one volume.
struct Attacher {
    front: RawClient,
    volume_id: String,
}

impl Attacher {
    async fn attach(&self, node: &str, class: &[(&str, &str)]) -> anyhow::Result<RawAnswer> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: self.volume_id.clone(),
            node_id: node.into(),
            volume_capability: Some(mount(Mode::SingleNodeMultiWriter, "", "")),
            volume_context: class
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect(),
            ..Default::default()
        };
        self.front.call(&controller("ControllerPublishVolume"), &request.encode_to_vec()).await
    }

    async fn detach(&self, node: &str) -> anyhow::Result<RawAnswer> {
        let (volume_id, node_id) = (self.volume_id.clone(), node.into());
        let request =
            csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        self.front.call(&controller("ControllerUnpublishVolume"), &request.encode_to_vec()).await
    }
}

#[track_caller]
fn is(answer: &RawAnswer, code: Code) {
    assert_eq!(answer.code(), code, "{}", answer.status());
}

#[tokio::test]
async fn a_direct_volume_is_attached_to_one_node() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let config = stand.at("policy.toml");
    let text = format!("[driver.\"{DRIVER}\"]\nscope = \"shared\"\n");
    proto::host::publish::publish(
        Path::new(&config),
        text.as_bytes(),
        0o600,
        proto::host::publish::Existing::Keep,
    )?;
    let cloud = stand.cloud(&TRANSPORTS[..1], &[DRIVER], &["--config", &config]).await?;
    let first = TestDriver::new(DRIVER, "id-1");
    let drivers = [first.clone(), first.beside("id-2")];
    let mut nodes = Vec::new();
    for (node, driver) in ["n1", "n2"].into_iter().zip(&drivers) {
        let socket = stand.at(&format!("{node}.sock"));
        let serving = driver.serve(Path::new(&socket))?;
        nodes.push((stand.edge(node, &cloud.urls[0], &[(DRIVER, &socket)]).await?, serving));
    }
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    until("the cloud learns of the driver", || ready(&front)).await?;
    let volume_id =
        created(&front.call(&controller("CreateVolume"), &create("v")).await?)?.volume_id;
    let attacher = Attacher { front, volume_id };
    until("the cloud knows both nodes", || async {
        for (node, code) in [("id-1", Code::Ok), ("id-2", Code::FailedPrecondition)] {
            let answer = attacher.attach(node, &CLASS).await?;
            ensure!(answer.code() == code, "{node}: {}", answer.status());
        }
        Ok(())
    })
    .await?;
    let calls = || {
        drivers.iter().map(|driver| driver.calls_of("ControllerPublishVolume").len()).sum::<usize>()
    };
    let before = calls();
    let answer = attacher.attach("id-2", &CLASS).await?;
    is(&answer, Code::FailedPrecondition);
    assert!(
        answer.status().message().contains("attached to node n1 since 20"),
        "{}",
        answer.status()
    );
    assert_eq!(calls(), before, "the driver was asked");
    is(&attacher.attach("id-1", &CLASS).await?, Code::Ok);
    is(&attacher.detach("id-2").await?, Code::Ok);
    is(&attacher.attach("id-2", &CLASS).await?, Code::FailedPrecondition);
    is(&attacher.detach("id-1").await?, Code::Ok);
    is(&attacher.attach("id-2", &CLASS).await?, Code::Ok);
    is(&attacher.detach("").await?, Code::Ok);
    is(&attacher.attach("id-1", &CLASS).await?, Code::Ok);
    is(&attacher.detach("id-1").await?, Code::Ok);
    // What is not direct is its driver's to refuse.
    let before = calls();
    attacher.attach("id-1", &[]).await?;
    attacher.attach("id-2", &[]).await?;
    assert_eq!(calls(), before + 2);
    drop(nodes);
    cloud.process.stop(START).await
}
