//! Volumes and drivers in trouble at nodes that are linked. A disk is full, one volume is gone, and
//! one is at two nodes. An attachment hangs, and operators forbid or bound creates.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use proto::host::publish::{Existing, publish};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::time::Instant;

use super::check::shows;
use crate::e2e::faults::{at_node, hostdir};
use crate::e2e::pods::{READ, WRITE};
use crate::e2e::scene::{Scene, claim, pod};
use crate::e2e::texts::{at, sized};
use crate::e2e::traces::Traces;
use crate::stand::node::Node;
use crate::stand::objects::within;
use crate::stand::program::Program;
use crate::stand::{Cluster, DRIVER, objects};

/// How long csi-cloud may take to know of a state.
const SOON: Duration = Duration::from_secs(60);
/// What csi-edge at one node forbids.
const DENY: &str = "deny = [\"CreateVolume\"]\n";
/// A kubelet's mounts of a volume that its driver does not have are counted for this time at least.
const COUNTED: Duration = Duration::from_secs(20);
/// The most that fail in 30 s. csi-edge lets the first six or so pass in that time, and then one.
const MOUNTS: u64 = 12;
/// Another name than csi-edge and csi-cloud know the driver by.
const OTHER_NAME: &str = "other.edge-csi.io";

/// Seven states at nodes that have a link.
pub(in crate::e2e) async fn broken(scene: &Scene<'_>) -> anyhow::Result<()> {
    let class = class();
    scene.apply(&class).await?;
    let done = of_class(scene).await;
    objects::delete(&scene.cluster.client, "default", &class).await?;
    done
}

async fn of_class(scene: &Scene<'_>) -> anyhow::Result<()> {
    for name in ["twice", "absent", "hangs"] {
        scene.apply(&claim(name, "at-n1")).await?;
    }
    scene.apply(&at(&pod("holder", "absent", WRITE, READ), "n1")).await?;
    scene.ready(&["holder"]).await?;
    let faults = Faults::prepare(scene).await?;
    let examined = examined(scene, &faults).await;
    // Later rows need them, whatever was found.
    faults.mend(scene.cluster).await?;
    examined?;
    for state in ["twice", "absent"] {
        healed(scene, state).await?;
    }
    scene.ready(&["hangs", "denied", "heir"]).await?;
    quota(scene).await
}

async fn examined(scene: &Scene<'_>, faults: &Faults<'_>) -> anyhow::Result<()> {
    faults.make(scene.cluster).await?;
    let begun = Instant::now();
    inherited(scene).await?;
    scene.apply(&sized(&claim("full", "at-n1"), "999Ti")).await?;
    scene.apply(&at(&pod("hangs", "hangs", WRITE, READ), "n1")).await?;
    scene.apply(&at_node("denied", faults.second)).await?;
    for (state, kind, name, node) in [
        ("two-claimants", "pvc", "twice", "n1"),
        ("volume-absent", "pvc", "absent", "n1"),
        ("disk-full", "pvc", "full", "n1"),
        ("call-denied", "pod", "denied", "n2"),
        ("attach-hangs", "pod", "hangs", "n1"),
    ] {
        let subject = format!("{}/{name}", scene.namespace());
        shows(scene, state, &[kind, &subject], Some(node)).await?;
    }
    shows(scene, "driver-misnamed", &["node", "n3"], Some("n3")).await?;
    mounts_are_few(faults.first, &faults.absent, begun.elapsed())
}

/// One pod wants the absent volume, and one that has it ends. The kubelet can neither mount nor
/// unmount it, and by each of the two it forgets its backoff for the other.
async fn inherited(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&at(&pod("heir", "absent", WRITE, READ), "n1")).await?;
    scene.api::<Pod>().delete("holder", &DeleteParams::default()).await?;
    Ok(())
}

/// The kubelet tried to mount and to unmount a volume without its data, and not too often.
fn mounts_are_few(node: &Node, volume: &Traces, time: Duration) -> anyhow::Result<()> {
    let log = node.worker.kubelet.log();
    let mounts = failures(&log, "MountVolume.SetUp", volume);
    let unmounts = failures(&log, "UnmountVolume.TearDown", volume);
    ensure!(mounts > 0 && unmounts > 0, "{mounts} mounts and {unmounts} unmounts failed");
    ensure!(time >= COUNTED, "they were counted for {time:?} only");
    let most = MOUNTS * time.as_secs().div_ceil(30);
    ensure!(mounts <= most, "{mounts} mounts failed in {time:?}, and {most} is the most");
    Ok(())
}

/// How often an operation of a kubelet failed because the driver does not have the volume.
fn failures(log: &str, operation: &str, volume: &Traces) -> u64 {
    let failed = format!("Error: {operation} failed");
    let of = [failed.as_str(), volume.handle.as_str(), "code = NotFound"];
    log.lines().filter(|line| of.iter().all(|part| line.contains(part))).map(|_| 1).sum()
}

/// A node has as many volumes as it may.
async fn quota(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let volumes = cluster.cloud.shows(&cluster.ground, &["volumes"]).await?;
    let there = volumes.iter().filter(|volume| volume["node"] == "n1").count();
    ensure!(there > 0, "n1 has no volume: {volumes:?}");
    let examined = async {
        scene.apply(&claim("more", "at-n1")).await?;
        let subject = format!("{}/more", scene.namespace());
        shows(scene, "quota-reached", &["pvc", &subject], Some("n1")).await
    };
    let bounded = |before: &str| format!("{before}[quotas]\nvolumes = {there}\n");
    configured(cluster, bounded, examined).await?;
    scene.bound("more").await.map(drop)
}

/// Has csi-cloud run with a changed configuration for as long as this takes.
pub(super) async fn configured(
    cluster: &Cluster,
    change: impl FnOnce(&str) -> String,
    examined: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let path = cluster.ground.dir().join("cloud.toml");
    let before = std::fs::read_to_string(&path)?;
    write(&path, &change(&before))?;
    cluster.cloud.program.restart().await?;
    let examined = examined.await;
    write(&path, &before)?;
    cluster.cloud.program.restart().await?;
    examined
}

/// What is broken, and what it was before.
struct Faults<'a> {
    first: &'a Node,
    second: &'a Node,
    third: &'a Node,
    twice: Traces,
    absent: Traces,
    /// The configuration of the second node's csi-edge.
    config: String,
    /// The arguments of the third node's driver.
    args: Vec<String>,
}

impl<'a> Faults<'a> {
    async fn prepare(scene: &Scene<'a>) -> anyhow::Result<Self> {
        let cluster = scene.cluster;
        let second = cluster.node("n2")?;
        let third = cluster.node("n3")?;
        scene.bound("hangs").await?;
        Ok(Self {
            first: cluster.node("n1")?,
            second,
            third,
            twice: Traces::of(scene, "twice").await?,
            absent: Traces::of(scene, "absent").await?,
            config: std::fs::read_to_string(config(cluster, second))?,
            args: hostdir(third)?.args().await?,
        })
    }

    async fn make(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let drivers = self.drivers()?;
        for driver in drivers {
            driver.ended().await?;
        }
        copied(&volume(self.first, &self.twice)?, &volume(self.second, &self.twice)?)?;
        std::fs::rename(volume(self.first, &self.absent)?, self.kept(cluster))?;
        mknodat(CWD, self.pipe()?, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let other_name = |args: &mut Vec<String>| {
            args.retain(|arg| !arg.starts_with("--name="));
            args.push(format!("--name={OTHER_NAME}"));
        };
        hostdir(self.third)?.reargue(other_name).await?;
        for driver in drivers {
            driver.run().await?;
        }
        write(&config(cluster, self.second), &(DENY.to_owned() + &self.config))?;
        self.second.edge.ended().await?;
        self.second.edge.run().await?;
        up(cluster, &["n1", "n2"]).await?;
        rebuilt(cluster).await
    }

    async fn mend(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let drivers = self.drivers()?;
        for driver in drivers {
            // What hangs in one never ends by itself.
            let _ = driver.kill().await;
        }
        let pipe = self.pipe()?;
        let kept = self.kept(cluster);
        let copy = volume(self.second, &self.twice)?;
        if pipe.exists() {
            std::fs::remove_file(pipe)?;
        }
        if kept.exists() {
            std::fs::rename(kept, volume(self.first, &self.absent)?)?;
        }
        if copy.exists() {
            std::fs::remove_dir_all(copy)?;
        }
        hostdir(self.third)?.reargue(|args| args.clone_from(&self.args)).await?;
        write(&config(cluster, self.second), &self.config)?;
        self.second.edge.ended().await?;
        cluster.mend().await?;
        up(cluster, &["n1", "n2", "n3"]).await?;
        let adopt = ["volume", "adopt", DRIVER, &self.twice.handle, "--node", "n1"];
        cluster.cloud.says(&cluster.ground, &adopt).await?;
        rebuilt(cluster).await
    }

    /// The drivers of all three nodes.
    fn drivers(&self) -> anyhow::Result<[&Program; 3]> {
        Ok([hostdir(self.first)?, hostdir(self.second)?, hostdir(self.third)?])
    }

    /// Where the volume is that the first node's driver has lost.
    fn kept(&self, cluster: &Cluster) -> PathBuf {
        cluster.ground.dir().join(self.first.name).join("lost-volume")
    }

    /// The first node's driver attaches nothing while nobody writes into this.
    fn pipe(&self) -> anyhow::Result<PathBuf> {
        Ok(state(self.first)?.join(drivers::hostdir::ATTACH_WAITS))
    }
}

/// The state of a node's driver.
fn state(node: &Node) -> anyhow::Result<&Path> {
    let driver = node.drivers.iter().find(|driver| driver.name == DRIVER);
    driver.map(|driver| &*driver.state).ok_or_else(|| anyhow::anyhow!("no driver at {}", node.name))
}

/// Where a node's driver has, or would have, a volume.
pub(super) fn volume(node: &Node, volume: &Traces) -> anyhow::Result<PathBuf> {
    Ok(state(node)?.join("volumes").join(&volume.handle))
}

fn config(cluster: &Cluster, node: &Node) -> PathBuf {
    cluster.ground.dir().join(node.name).join("csi-edge.toml")
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    Ok(publish(path, text.as_bytes(), 0o600, Existing::Replace)?)
}

/// Copies a volume's directory; it is empty but for its record and its data.
pub(in crate::e2e) fn copied(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => copied(&entry.path(), &to.join(entry.file_name()))?,
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name()))?),
        }
    }
    Ok(())
}

/// Has csi-cloud ask all nodes what they have.
async fn rebuilt(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.cloud.says(&cluster.ground, &["homes", "rebuild"]).await.map(drop)
}

/// Waits until the drivers of these nodes are up, by their own word.
async fn up(cluster: &Cluster, nodes: &[&str]) -> anyhow::Result<()> {
    within("the drivers", SOON, || async {
        let shown = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
        let is_up = |name: &&&str| {
            let node = shown.iter().find(|node| node["name"] == **name);
            node.is_some_and(|node| {
                node["state"] == "linked" && node["health"][DRIVER]["state"] == "up"
            })
        };
        ensure!(nodes.iter().filter(is_up).count() == nodes.len(), "they are {shown:?}");
        Ok(())
    })
    .await
}

/// Waits until nothing is wrong with a claim.
async fn healed(scene: &Scene<'_>, claim: &str) -> anyhow::Result<()> {
    let subject = format!("{}/{claim}", scene.namespace());
    super::explains(scene, &["pvc", &subject], "fine", None).await
}

/// Volumes of this class are at one node, and are made at once.
fn class() -> String {
    format!(
        "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: at-n1
provisioner: {DRIVER}
volumeBindingMode: Immediate
allowedTopologies:
  - matchLabelExpressions:
      - key: {key}
        values: [n1]
",
        key = drivers::hostdir::TOPOLOGY_KEY
    )
}
