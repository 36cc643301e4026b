//! Exclusive use of direct volumes between nodes: the real programs, two nodes and one storage. Any
//! order of steps and any loss of messages is in `ownership.rs`.
//!
//! Tests that stage need root and loop devices: `make direct`.

use anyhow::{Context, ensure};
use harness::wait::{START, until};
use serde_json::Value;
use tonic::Code;

use super::contest::{Contest, PODS};
use super::refusal::{assert_refused, code};

const HELD: Code = Code::FailedPrecondition;

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_volume_is_one_nodes_until_it_is_unpublished_there() -> anyhow::Result<()> {
    let contest = Contest::held().await?;
    let Contest { pair, volume } = &contest;
    contest.publish(0).await?;
    let words = ["node n1 has it for pod uid-1 since 20", "is linked"];
    assert_refused(contest.publish(1).await, HELD, &words);
    assert_eq!(pair.entries(1), 0);
    let owners = pair.json(&["leases"]).await?;
    let holder = &owners[0];
    assert_eq!((&holder["id"], &holder["holder_node"]), (&Value::from(&*volume.id), &"n1".into()));
    assert_eq!(
        (&holder["holder_pod"], &holder["linked"]),
        (&PODS[0].into(), &true.into()),
        "{owners}"
    );
    let volumes = pair.json(&["volumes"]).await?;
    assert_eq!(volumes[0]["holder_node"], "n1", "{volumes}");
    assert_refused(pair.delete(volume).await, HELD, &["node n1 has it for pod uid-1"]);
    for (node, why) in [("n1", "n1 is linked"), ("n2", "n1 has it, and not n2")] {
        let released = contest.release(&["--yes", "--node", node]).await;
        let error = released.err().context("it was taken")?;
        assert!(format!("{error:#}").contains(why), "{error:#}");
    }
    contest.unpublish(0).await?;
    contest.publish(1).await?;
    assert_refused(contest.publish(0).await, HELD, &["node n2"]);
    contest.unpublish(1).await?;
    assert_eq!(pair.json(&["leases"]).await?, Value::Array(Vec::new()));
    contest.end().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_node_that_is_cut_off_keeps_its_volume_and_lets_it_go_when_it_is_back()
-> anyhow::Result<()> {
    let mut contest = Contest::cut_off().await?;
    let words = ["node n1 has it for pod uid-1", "has no link", "csi-cloud volume release"];
    assert_refused(contest.publish(1).await, HELD, &words);
    // Its own pod comes back, and another one of the same node; also after csi-edge was killed.
    contest.publish(0).await?;
    contest.unpublish(0).await?;
    contest.pair.publish(0, &contest.volume, "uid-3").await?;
    contest.pair.restart_edge(0).await?;
    until("it is served", || contest.pair.publish(0, &contest.volume, "uid-3")).await?;
    contest.pair.unpublish(0, &contest.volume, "uid-3").await?;
    // It is free there, and the cloud does not know.
    assert_refused(contest.publish(1).await, HELD, &["node n1", "has no link"]);
    contest.pair.mend(0);
    contest.until_published(1).await?;
    // A node that is cut off cannot acquire a volume that is new to it.
    contest.unpublish(1).await?;
    contest.pair.cut(0).await?;
    assert_refused(contest.publish(0).await, Code::Unavailable, &["no link to csi-cloud"]);
    contest.pair.mend(0);
    contest.until_published(0).await?;
    contest.end_at(0).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_an_operator_took_from_a_node_is_not_handed_over_there_when_it_is_back()
-> anyhow::Result<()> {
    let mut contest = Contest::cut_off().await?;
    let asked = contest.release(&["--node", "n1"]).await.err().context("without a yes")?;
    assert!(format!("{asked:#}").contains("the volume's data is destroyed"), "{asked:#}");
    assert_refused(contest.publish(1).await, HELD, &["node n1"]);
    contest.take_from_first().await?;
    contest.publish(1).await?;
    // The old node does not know yet, because it has no link.
    contest.publish(0).await?;
    contest.pair.mend(0);
    contest.until_fenced().await?;
    inspected(&contest, &["taken from this node", "node n2 has it for pod uid-2"]).await?;
    contest.until_withdrawn().await?;
    // The code is not final, because a kubelet does not unpublish after a final error.
    let words = ["it was taken from this node", "node n2 has it for pod uid-2"];
    contest.until_refused(0, Code::Unavailable, &words).await?;
    contest.pair.restart_edge(0).await?;
    contest.until_refused(0, Code::Unavailable, &["it was taken"]).await?;
    assert_eq!(contest.pair.entries(0), 0);
    // Once it is unpublished, the node is an ordinary one again.
    contest.unpublish(0).await?;
    contest.until_refused(0, HELD, &["node n2 has it"]).await?;
    contest.unpublish(1).await?;
    contest.publish(0).await?;
    let owners = contest.pair.json(&["leases"]).await?;
    assert!(owners[0]["holder_epoch"].as_u64() > owners[0]["broken"].as_u64(), "{owners}");
    contest.unpublish(0).await?;
    let Contest { pair, volume } = contest;
    pair.end(&volume).await?;
    assert_eq!(
        pair.json(&["leases"]).await?,
        Value::Array(Vec::new()),
        "it is forgotten with the volume"
    );
    pair.stop().await
}

/// Fails unless the first node shows all these words for the volume.
async fn inspected(contest: &Contest, words: &[&str]) -> anyhow::Result<()> {
    let shown = contest.pair.direct(0, &["inspect", &contest.volume.id]).await?;
    ensure!(words.iter().all(|word| shown.contains(word)), "{shown}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_guest_that_runs_when_its_volume_is_taken_is_left_alone_until_it_ends()
-> anyhow::Result<()> {
    let contest = Contest::held().await?;
    let guest = std::fs::File::open(contest.pair.device()?)?;
    contest.pair.cut(0).await?;
    contest.take_from_first().await?;
    contest.pair.mend(0);
    let words = ["taken from this node", "is nobody's now"];
    until("it is told", || inspected(&contest, &words)).await?;
    // A runtime without an entry would share the host's directory instead.
    assert_eq!(contest.pair.entries(0), 1);
    assert_refused(contest.unpublish(0).await, Code::Unavailable, &["is open in process"]);
    drop(guest);
    contest.unpublish(0).await?;
    contest.until_published(0).await?;
    contest.end_at(0).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_node_that_is_powered_on_after_its_volume_was_taken_asks_before_a_pod_has_it()
-> anyhow::Result<()> {
    let mut contest = Contest::held().await?;
    contest.pair.power_off(0).await?;
    contest.take_from_first().await?;
    contest.publish(1).await?;
    contest.pair.power_on(0).await?;
    // Its kubelet starts the same pod as soon as there is somebody to ask.
    until("it is refused", || async {
        let (code, why) = code(contest.publish(0).await);
        assert_ne!(code, Code::Ok, "the other node's data is destroyed");
        let words = ["it was taken from this node", "delete the pod"];
        ensure!(words.iter().all(|word| why.contains(word)), "{code:?} {why}");
        Ok(())
    })
    .await?;
    contest.until_fenced().await?;
    until("nobody is at it", || contest.unpublish(0)).await?;
    contest.end_at(1).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_guest_that_runs_with_a_fenced_volume_is_the_last_one() -> anyhow::Result<()> {
    let mut contest = Contest::cut_off().await?;
    contest.take_from_first().await?;
    contest.publish(1).await?;
    let shown = contest.pair.shown(0).await?;
    let guest = std::fs::File::open(shown["device"].as_str().context("no device")?)?;
    contest.pair.mend(0);
    contest.until_fenced().await?;
    contest.pair.restart_edge(0).await?;
    contest.until_refused(0, Code::Unavailable, &["it was taken"]).await?;
    assert_eq!(contest.pair.entries(0), 1, "a guest has it");
    drop(guest);
    contest.until_withdrawn().await?;
    until("nobody is at it", || contest.unpublish(0)).await?;
    contest.end_at(1).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_pod_that_went_while_its_kubelet_was_away_does_not_keep_its_volume_from_other_nodes()
-> anyhow::Result<()> {
    let mut contest = Contest::held().await?;
    // The node is off, and its pod is given up meanwhile.
    contest.pair.power_off(0).await?;
    assert_refused(contest.publish(1).await, HELD, &["node n1", "has no link"]);
    contest.pair.forget_pod(0, PODS[0])?;
    contest.pair.power_on(0).await?;
    contest.until_published(1).await?;
    assert_eq!(contest.pair.entries(0), 0);
    // The kubelet alone was away, and nothing links anew.
    contest.pair.forget_pod(1, PODS[1])?;
    let again = async {
        while code(contest.publish(0).await).0 != Code::Ok {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(START * 2, again).await.context("it was not looked at again")?;
    contest.end_at(0).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_scope_that_has_become_node_gives_nothing_away() -> anyhow::Result<()> {
    let mut contest = Contest::cut_off().await?;
    contest.pair.change_scope("node").await?;
    until("the other node is told", || async {
        let scopes = contest.pair.kept(1, "scopes.json")?;
        ensure!(scopes.contains("node"), "{scopes}");
        Ok(())
    })
    .await?;
    assert_refused(contest.publish(1).await, HELD, &[]);
    assert_eq!(contest.pair.entries(1), 0);
    contest.pair.change_scope("shared").await?;
    contest.pair.mend(0);
    until("it is linked", || contest.unpublish(0)).await?;
    contest.until_published(1).await?;
    contest.end_at(1).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_cloud_that_is_killed_while_it_gives_a_volume_gives_it_to_one() -> anyhow::Result<()> {
    let mut contest = Contest::open().await?;
    killed_while_it_gives(&mut contest).await?;
    contest.until_published(0).await?;
    contest.until_refused(1, HELD, &["node n1 has it"]).await?;
    contest.unpublish(0).await?;
    contest.until_published(1).await?;
    contest.end_at(1).await
}

/// Kills csi-cloud as soon as its log gives the volume to the first node, and starts it again.
async fn killed_while_it_gives(contest: &mut Contest) -> anyhow::Result<()> {
    {
        let publishing = contest.publish(0);
        let given = contest.pair.cloud.process.logged("a volume is the node's");
        tokio::pin!(publishing);
        tokio::select! {
            biased;
            given = given => given?,
            published = &mut publishing => published?,
        }
    }
    contest.pair.restart_cloud().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_store_that_was_lost_learns_from_the_nodes_who_has_what() -> anyhow::Result<()> {
    let mut contest = Contest::held().await?;
    contest.pair.forget_store().await?;
    contest.until_first_has_it().await?;
    // The key of its MAC was lost too.
    let owners = contest.pair.json(&["leases"]).await?;
    assert_eq!(owners[0]["holder_unproven"], true, "{owners}");
    contest.unpublish(0).await?;
    contest.until_published(0).await?;
    let owners = contest.pair.json(&["leases"]).await?;
    assert_eq!(owners[0]["holder_unproven"], false, "it was granted: {owners}");
    contest.end_at(0).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_was_published_before_anybody_asked_is_its_nodes() -> anyhow::Result<()> {
    let mut contest = Contest::cut_off().await?;
    contest.pair.forget_store().await?;
    contest.pair.upgrade_edge(0).await?;
    // It does not need the cloud, which has never heard of the volume.
    contest.until_published(0).await?;
    assert_eq!(contest.pair.json(&["leases"]).await?, Value::Array(Vec::new()));
    contest.pair.mend(0);
    contest.until_first_has_it().await?;
    contest.end_at(0).await
}
