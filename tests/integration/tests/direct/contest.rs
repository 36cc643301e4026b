//! Two nodes that want the same volume, each for a pod of its own.

use anyhow::ensure;
use guest::pair::{CLASS, Pair};
use guest::scene::{DRIVER, PodVolume, mount};
use harness::wait::until;
use proto::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use super::refusal::is_refused;

/// The pod of each node that wants the volume.
pub(super) const PODS: [&str; 2] = ["uid-1", "uid-2"];

/// Both nodes, and a volume that is staged at both.
pub(super) struct Contest {
    /// The programs.
    pub(super) pair: Pair,
    /// The access that the nodes request.
    pub(super) volume: PodVolume,
}

impl Contest {
    /// A volume that no node has.
    pub(super) async fn open() -> anyhow::Result<Self> {
        let pair = Pair::new().await?;
        let capability = mount(Mode::SingleNodeMultiWriter, "ext4", "");
        let create = || async { pair.create("data", &CLASS, capability.clone()).await };
        let volume = until("a volume", create).await?;
        for node in [0, 1] {
            pair.stage(node, &volume).await?;
        }
        Ok(Self { pair, volume })
    }

    /// A volume that the first node has.
    pub(super) async fn held() -> anyhow::Result<Self> {
        let contest = Self::open().await?;
        contest.publish(0).await?;
        Ok(contest)
    }

    /// A volume that the first node has, which is cut off.
    pub(super) async fn cut_off() -> anyhow::Result<Self> {
        let contest = Self::held().await?;
        contest.pair.cut(0).await?;
        Ok(contest)
    }

    /// Publishes the volume to a node's pod.
    pub(super) async fn publish(&self, node: usize) -> anyhow::Result<()> {
        self.pair.publish(node, &self.volume, PODS[node]).await
    }

    /// Unpublishes the volume from a node's pod.
    pub(super) async fn unpublish(&self, node: usize) -> anyhow::Result<()> {
        self.pair.unpublish(node, &self.volume, PODS[node]).await
    }

    /// Has an operator take the volume from the first node, with further arguments.
    pub(super) async fn release(&self, more: &[&str]) -> anyhow::Result<String> {
        let command = ["volume", "release", DRIVER, &self.volume.id];
        self.pair.say(&[&command, more].concat()).await
    }

    /// The same, and the operator has confirmed it.
    pub(super) async fn take_from_first(&self) -> anyhow::Result<()> {
        self.release(&["--node", "n1", "--yes"]).await?;
        Ok(())
    }

    /// Waits until a node's pod gets the volume.
    pub(super) async fn until_published(&self, node: usize) -> anyhow::Result<()> {
        until("it is published", || self.publish(node)).await
    }

    /// Waits until a node's pod is refused the volume in this way.
    pub(super) async fn until_refused(
        &self,
        node: usize,
        with: Code,
        words: &[&str],
    ) -> anyhow::Result<()> {
        until("it is refused", || async { is_refused(self.publish(node).await, with, words) }).await
    }

    /// Waits until csi-cloud has heard that the first node has the volume, for its pod, and refuses
    /// it to the other one.
    pub(super) async fn until_first_has_it(&self) -> anyhow::Result<()> {
        until("the node has said so", || async {
            let owners = self.pair.json(&["leases"]).await?;
            let holder = &owners[0];
            let first = holder["holder_node"] == "n1" && holder["holder_pod"] == PODS[0];
            ensure!(first, "{owners}");
            Ok(())
        })
        .await?;
        self.until_refused(1, Code::FailedPrecondition, &["node n1 has it"]).await
    }

    /// Waits until the first node knows that its volume was taken.
    pub(super) async fn until_fenced(&self) -> anyhow::Result<()> {
        until("it is told that it was taken", || async {
            let shown = self.pair.shown(0).await?;
            ensure!(shown["standing"] == "fenced", "{shown}");
            Ok(())
        })
        .await
    }

    /// Waits until no new guest at the first node finds the volume.
    pub(super) async fn until_withdrawn(&self) -> anyhow::Result<()> {
        until("no new guest finds it", || async {
            let entries = self.pair.entries(0);
            ensure!(entries == 0, "{entries} entries");
            Ok(())
        })
        .await
    }

    /// Deletes the volume, which no pod has, and ends everything in order.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        self.pair.end(&self.volume).await?;
        self.pair.stop().await
    }

    /// The same, when a node's pod has the volume.
    pub(super) async fn end_at(self, node: usize) -> anyhow::Result<()> {
        self.unpublish(node).await?;
        self.end().await
    }
}
