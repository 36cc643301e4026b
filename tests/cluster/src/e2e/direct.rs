//! Direct volumes for pods of a RuntimeClass whose handler does a VM runtime's work
//! (`direct::wrapper`). They are written, found again, grown online and counted by the kubelet, and
//! never mounted on the host.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::DeleteParams;
use serde_json::Value;

use super::look;
use super::look::{SOON, reads, running, volume};
use super::pods::{READ, STAY, WRITE};
use super::scene::{Scene, claim, claim_of, pod};
use super::tables;
use super::tables::Seen;
use super::texts::{at, with};
use super::traces::Traces;
use crate::stand::node::Node;
use crate::stand::objects::within;
use guest::wrapper::{ENTRIES, HANDLER, SANDBOXES};

const MIB: u64 = 1 << 20;
/// The other data that pods write, in MiB.
const FULL: u64 = 24;
/// Writes a file, and enough to be seen in statistics.
pub(super) const FILL: &str = "echo written at $(hostname) > /data/file && dd if=/dev/zero \
                    of=/data/full bs=1M count=24 && sync \
                    && touch /data/done && exec sleep 2147483647";
/// The file exists and belongs to the pod's group.
pub(super) const FILLED: &str =
    "test -e /data/done && grep -q written /data/file && test $(stat -c %g /data/file) = 1000";
/// Stays only where that is there.
pub(super) const FOUND: &str = "grep -q written /data/file && exec sleep 2147483647";
/// The pod sees more than the first size.
pub(super) const LARGE: &str =
    "grep -q written /data/file && df -m /data | awk \"END { exit \\$2 < 500 }\"";

/// A claim of a direct class, of this size.
pub(super) fn disk(size: &str) -> String {
    claim_of("disk", "direct", size, "").replace("ReadWriteOnce", "ReadWriteOncePod")
}

/// A pod at a node that uses the claim and runs as in a VM.
pub(super) fn guest(name: &str, node: &str, script: &str, ready: &str) -> String {
    let class = format!("runtimeClassName: {HANDLER}");
    with(
        &at(&pod(name, "disk", script, ready), node),
        &[&class, "securityContext: {fsGroup: 1000}"],
    )
}

/// The life of a direct volume, with an ordinary volume of the same driver in the same pod.
pub(super) async fn handed_over(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&[disk("320Mi"), claim("data", "late")].join("---\n")).await?;
    scene.apply(&guest("first", "n1", FILL, FILLED)).await?;
    scene.apply(&at(&pod("ordinary", "data", WRITE, READ), "n1")).await?;
    let traces = Traces::of(scene, "disk").await?;
    tokio::select! {
        seen = tables::until_hosts(scene.cluster, &traces.handle) => {
            let (table, at) = seen?;
            bail!("the file system of {} is in {} at {at}", traces.name, table.display())
        }
        lived = life(scene, &traces) => lived,
    }
}

async fn life(scene: &Scene<'_>, traces: &Traces) -> anyhow::Result<()> {
    let node = scene.cluster.node("n1")?;
    scene.ready(&["first", "ordinary"]).await?;
    counted(scene, node, traces, 320).await?;
    inspected(scene, node, traces).await?;
    scene.delete::<Pod>("first").await?;
    ensure!(
        tables::namespaces(&traces.handle)?.is_empty(),
        "what the first pod had mounted is mounted still"
    );
    scene.apply(&guest("second", "n1", FOUND, LARGE)).await?;
    running(scene, "second").await?;

    scene.apply(&disk("640Mi")).await?;
    reads(scene, look::claim("disk"), "/status/capacity/storage", "640Mi").await?;
    reads(scene, volume(&traces.name), "/spec/capacity/storage", "640Mi").await?;
    scene.ready(&["second", "ordinary"]).await?;
    counted(scene, node, traces, 640).await?;
    ensure!(scene.restarts("second").await? == 0, "the volume grew, and the pod was started again");

    scene.delete::<Pod>("second").await?;
    scene.delete::<PersistentVolumeClaim>("disk").await?;
    traces.gone(scene.cluster).await?;
    scene.ready(&["ordinary"]).await?;
    within("end of what the runtime had", SOON, || async { nothing_left(scene, node, traces) })
        .await
}

/// Waits until the kubelet's summary shows the volume as the container's file system does. The
/// ordinary volume must be in the summary too.
async fn counted(scene: &Scene<'_>, node: &Node, traces: &Traces, mib: u64) -> anyhow::Result<()> {
    let counted = || async {
        let process = within_container(traces)?.process;
        let has = rustix::fs::statvfs(format!("/proc/{process}/root/data"))?;
        let [total, free] = [has.f_blocks, has.f_bfree].map(|blocks| blocks * has.f_frsize);
        let sizes = mib * MIB * 3 / 4..=mib * MIB;
        ensure!(sizes.contains(&total), "the container has {total} bytes of {mib} MiB");
        let summary = node.worker.summary().await?;
        let told = |key: &str| number(&summary, scene.namespace(), "disk", key);
        let [capacity, used, available] =
            ["capacityBytes", "usedBytes", "availableBytes"].map(told);
        let capacity = capacity?;
        let used = used?;
        let available = available?;
        let said = format!("the kubelet says {capacity} bytes, {used} used, {available} available");
        ensure!(
            (capacity, available) == (total, free),
            "{said}; the container has {total}, {free} free"
        );
        ensure!(
            used == total - free && used > FULL * MIB,
            "{said}, and more than {FULL} MiB were written"
        );
        number(&summary, scene.namespace(), "data", "capacityBytes").map(drop)
    };
    within("statistics of the direct volume", SOON, counted).await
}

/// An operator at the node sees the runtime of the volume, and the numbers of its guest.
async fn inspected(scene: &Scene<'_>, node: &Node, traces: &Traces) -> anyhow::Result<()> {
    let ground = &scene.cluster.ground;
    let program = ground.program("csi-edge").display().to_string();
    let state = state(scene, node);
    let args = ["direct", "inspect", &traces.handle, "--state", &state, "-o", "json"];
    let said = node.worker.space.run(&program, &args).await?;
    let seen: Value = serde_json::from_str(&said)?;
    let is = |at: &str, wanted: &str| seen.pointer(at).and_then(Value::as_str) == Some(wanted);
    let sandbox = seen.pointer("/0/sandbox").is_some_and(Value::is_string);
    let counts = seen.pointer("/0/guest/bytes/0").is_some_and(Value::is_u64);
    let all = is("/0/standing", "published") && is("/0/runtime", "kata-go") && sandbox && counts;
    ensure!(all, "csi-edge shows {said}");
    Ok(())
}

/// What `csi-edge direct list` shows at a node.
pub(super) async fn listed(scene: &Scene<'_>, node: &Node) -> anyhow::Result<Value> {
    let program = scene.cluster.ground.program("csi-edge").display().to_string();
    let state = state(scene, node);
    let args = ["direct", "list", "--state", &state, "-o", "json"];
    Ok(serde_json::from_str(&node.worker.space.run(&program, &args).await?)?)
}

/// The record of a volume that csi-edge keeps at its node.
fn state(scene: &Scene<'_>, node: &Node) -> String {
    scene.cluster.ground.at(&format!("{}/csi-edge", node.name))
}

/// A number of a claim's volume in a kubelet's summary.
fn number(summary: &Value, namespace: &str, claim: &str, key: &str) -> anyhow::Result<u64> {
    let pods = summary.get("pods").and_then(Value::as_array).into_iter().flatten();
    let volumes = pods.filter_map(|pod| pod.get("volume")?.as_array()).flatten();
    let of = |volume: &&Value, key: &str| volume.pointer(&format!("/pvcRef/{key}")).cloned();
    let ours = |volume: &&Value| {
        of(volume, "name") == Some(claim.into())
            && of(volume, "namespace") == Some(namespace.into())
    };
    let found =
        volumes.into_iter().find(ours).with_context(|| format!("the kubelet counts no {claim}"))?;
    found.get(key).and_then(Value::as_u64).with_context(|| format!("no {key} in {found}"))
}

/// The one mount namespace of the machine in which the volume's file system is: its container's.
pub(super) fn within_container(traces: &Traces) -> anyhow::Result<Seen> {
    let mut seen = tables::namespaces(&traces.handle)?;
    let one = seen.pop().context("nobody has mounted the volume")?;
    ensure!(seen.is_empty() && one.at == "/data", "it is mounted in {one:?} and {seen:?}");
    Ok(one)
}

/// No entry of the contract, no shim, no record of csi-edge's, no device.
pub(super) fn nothing_left(scene: &Scene<'_>, node: &Node, traces: &Traces) -> anyhow::Result<()> {
    let records = PathBuf::from(state(scene, node)).join("direct/published");
    let dirs = [
        (node.worker.sees(ENTRIES), "entry"),
        (node.worker.sees(SANDBOXES), "sandbox"),
        (records, "record"),
    ];
    for (dir, what) in dirs {
        let left: Vec<_> = std::fs::read_dir(dir)?.filter_map(Result::ok).collect();
        ensure!(left.is_empty(), "of {} there is still a {what}: {left:?}", traces.name);
    }
    let devices = tables::devices(&traces.handle)?;
    ensure!(devices.is_empty(), "of {} there is still a device: {devices:?}", traces.name);
    Ok(())
}

/// A pod keeps its volume when kubelet and csi-edge are killed and restarted, though the kubelet
/// finds no mount. If the pod is deleted while its kubelet is away, the next pod gets the volume
/// with all data, once the first container has ended.
pub(super) async fn kubelet_away(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n1")?;
    scene.apply(&[disk("320Mi"), claim("data", "late")].join("---\n")).await?;
    scene.apply(&guest("first", "n1", FILL, FILLED)).await?;
    scene.apply(&at(&pod("ordinary", "data", WRITE, READ), "n1")).await?;
    scene.ready(&["first", "ordinary"]).await?;
    let traces = Traces::of(scene, "disk").await?;
    for program in [&node.edge, &node.worker.kubelet] {
        program.kill().await?;
        program.run().await?;
    }
    counted(scene, node, &traces, 320).await?;
    scene.ready(&["first", "ordinary"]).await?;
    ensure!(scene.restarts("first").await? == 0, "its container was started again");

    node.worker.kubelet.kill().await?;
    scene.api::<Pod>().delete("first", &DeleteParams::default().grace_period(0)).await?;
    scene.gone::<Pod>("first").await?;
    scene.apply(&guest("second", "n1", FOUND, READ)).await?;
    ensure!(
        within_container(&traces).is_ok(),
        "the container has ended, though its kubelet was away"
    );
    node.worker.kubelet.run().await?;
    scene.ready(&["second", "ordinary"]).await?;
    within_container(&traces)?;
    scene.delete::<Pod>("second").await?;
    scene.delete::<PersistentVolumeClaim>("disk").await?;
    traces.gone(scene.cluster).await?;
    within("end of what the runtime had", SOON, || async { nothing_left(scene, node, &traces) })
        .await
}

/// The container goes on only if its directory is read-only.
pub(super) const UNWRITABLE: &str =
    "! touch /data/file && test ! -e /data/file && exec sleep 2147483647";
/// The notice is there.
const NOTICE: &str = "grep -q not.your.volume /data/EDGE-CSI-THIS-IS-NOT-YOUR-VOLUME";

/// A pod without the RuntimeClass gets the node's directory, as with a stock Go runtime. It cannot
/// write there, the operator sees it, and the next pod gets the volume.
pub(super) async fn stray(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n2")?;
    scene.apply(&claim_of("disk", "direct-once", "320Mi", "")).await?;
    scene.apply(&at(&pod("stray", "disk", UNWRITABLE, NOTICE), "n2")).await?;
    scene.ready(&["stray"]).await?;
    let traces = Traces::of(scene, "disk").await?;
    tables::mounted_nowhere(&traces.handle)?;
    let seen = listed(scene, node).await?;
    let standing = seen.pointer("/0/standing").and_then(Value::as_str);
    ensure!(standing == Some("not taken"), "csi-edge shows {seen}");
    within("csi-edge's word", SOON, || async {
        ensure!(node.edge.log().contains("not taken"), "csi-edge's log does not say it");
        Ok(())
    })
    .await?;
    // As `kubectl delete --force`.
    scene.api::<Pod>().delete("stray", &DeleteParams::default().grace_period(0)).await?;
    scene.apply(&guest("next", "n2", STAY, "test ! -e /data/file")).await?;
    scene.ready(&["next"]).await?;
    within_container(&traces)?;
    scene.delete::<Pod>("next").await?;
    scene.delete::<PersistentVolumeClaim>("disk").await?;
    traces.gone(scene.cluster).await?;
    within("end of what the runtime had", SOON, || async { nothing_left(scene, node, &traces) })
        .await
}
