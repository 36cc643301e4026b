//! Nodes whose pods are in VMs of Kata's runtime-rs, with the faults that destroy a file system
//! (`tests/guest/src/wrapper/machine.rs`). A VM gets a device twice, or outlives its shim. Once the
//! node has the NRI plugin, and once it has not.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use guest::wrapper::{HANDLER, MACHINES, NRI, RUNTIME_RS};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixListener;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::direct;
use super::look::{SOON, reads, volume};
use super::pods::{READ, STAY};
use super::scene::{Scene, claim_of, pod};
use super::texts::{at, with};
use super::traces::Traces;
use crate::stand::image::IMAGE;
use crate::stand::node::Node;
use crate::stand::objects::within;
use crate::stand::program::{Launch, Program};

/// The time limit for a pod that kubelet, kernel and csi-edge each keep waiting: 22 s for each
/// mount, and the kubelet's delays between two.
const LATE: Duration = Duration::from_secs(240);
/// Writes a file once, and notes each later start.
const WRITE_ONCE: &str = "if test -e /data/file; then touch /data/again; \
                          else echo written > /data/file; fi; sync; touch /data/done; \
                          exec sleep 2147483647";
/// Only stays, and no other container of the stand sleeps so long.
const SLEEP: &str = "exec sleep 2147483601";
/// Ends with an error as soon as the other container has written.
const CRASH: &str = "until test -e /data/done; do sleep 1; done; exit 1";
/// The pod was started again with what it had written.
const WRITTEN_AGAIN: &str = "grep -q written /data/file && test -e /data/again";

/// A further container of a pod with its volume.
fn container(name: &str, script: &str) -> String {
    format!(
        "    - name: {name}\n      image: {IMAGE}\n      imagePullPolicy: Never\n      \
         command: [sh, -c, '{script}']\n      \
         volumeMounts: [{{name: data, mountPath: /data}}]\n"
    )
}

/// A node that has runtime-rs, while this lives.
struct RuntimeRs<'a> {
    scene: &'a Scene<'a>,
    node: &'a Node,
    /// The volume's claim.
    claim: &'static str,
    plugin: Option<Plugin>,
}

impl<'a> RuntimeRs<'a> {
    async fn at(
        scene: &'a Scene<'a>,
        node: &'static str,
        claim: &'static str,
        has_plugin: bool,
    ) -> anyhow::Result<Self> {
        let node = scene.cluster.node(node)?;
        let path = node.worker.sees(RUNTIME_RS);
        std::fs::create_dir_all(path.parent().context("no directory")?)?;
        let text = b"[hypervisor.qemu]\n";
        publish(&path, text, 0o600, Existing::Replace)?;
        let mut this = Self { scene, node, claim, plugin: None };
        if has_plugin {
            this.plugin = Some(Plugin::start(scene, node).await?);
        }
        scene.apply(&claim_of(claim, "direct-once", "320Mi", "")).await?;
        Ok(this)
    }

    /// A pod at the node in a VM.
    fn guest(&self, name: &str, script: &str, ready: &str) -> String {
        let class = format!("runtimeClassName: {HANDLER}");
        with(&at(&pod(name, self.claim, script, ready), self.node.name), &[&class])
    }

    /// Waits until an Event of a pod, or csi-edge at its node, says one of these.
    async fn said(&self, pod: &str, words: &[&str]) -> anyhow::Result<()> {
        let of = format!("Pod {pod}: ");
        within(&format!("one of {words:?}"), LATE, || async {
            let events = self.scene.told().await?;
            let events: Vec<_> = events.lines().filter(|line| line.contains(&of)).collect();
            let listed = direct::listed(self.scene, self.node).await?;
            let told = format!("{}\n{listed}", events.join("\n"));
            ensure!(words.iter().any(|word| told.contains(word)), "there is only:\n{told}");
            Ok(())
        })
        .await
    }

    /// The only machine of the node: its sandbox and its process.
    fn machine(&self) -> anyhow::Result<(String, u64)> {
        let mut machines = std::fs::read_dir(self.node.worker.sees(MACHINES))?;
        let machine = machines.next().context("no machine")??;
        ensure!(machines.next().is_none(), "there is more than one machine");
        let state: Value = serde_json::from_slice(&std::fs::read(machine.path().join("state"))?)?;
        let process = state["process"].as_u64().context("a machine without a process")?;
        Ok((machine.file_name().to_string_lossy().into_owned(), process))
    }

    /// Kills a process of the node.
    async fn kill(&self, process: u64) -> anyhow::Result<()> {
        let script = format!("kill -KILL {process}");
        self.node.worker.space.run("sh", &["-c", &script]).await.map(drop)
    }

    /// The node's only process with these words in its command line.
    fn process(&self, words: &[&str]) -> anyhow::Result<u64> {
        let mut found = Vec::new();
        for process in std::fs::read_dir(self.node.worker.sees("/proc"))? {
            let process = process?;
            let Ok(id) = process.file_name().to_string_lossy().parse() else { continue };
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            if words.iter().all(|word| line.contains(word)) {
                found.push(id);
            }
        }
        ensure!(found.len() == 1, "the processes of {words:?} are {found:?}");
        found.pop().context("no process")
    }

    /// The pod goes, and the next one finds what it wrote. In the end nothing is left.
    async fn read_by_the_next(self, first: &str, ready: &str) -> anyhow::Result<()> {
        let scene = self.scene;
        let traces = Traces::of(scene, self.claim).await?;
        scene.delete::<Pod>(first).await?;
        let next = format!("{first}-next");
        scene.apply(&self.guest(&next, STAY, ready)).await?;
        self.ready(&next).await?;
        scene.delete::<Pod>(&next).await?;
        scene.delete::<PersistentVolumeClaim>(self.claim).await?;
        traces.gone(scene.cluster).await
    }

    async fn ready(&self, pod: &str) -> anyhow::Result<()> {
        within(&format!("{pod} to be ready"), LATE, || async {
            self.scene.ready(&[pod]).await.map(drop)
        })
        .await
    }
}

impl Drop for RuntimeRs<'_> {
    fn drop(&mut self) {
        for path in [RUNTIME_RS, NRI] {
            let _ = std::fs::remove_file(self.node.worker.sees(path));
        }
        let _ = std::fs::remove_dir_all(self.node.worker.sees(MACHINES));
    }
}

/// csi-edge's NRI plugin at a node, and NRI's own library in place of the container runtime's.
struct Plugin {
    _plugin: Program,
    _library: Child,
    tasks: Tasks,
}

impl Plugin {
    async fn start(scene: &Scene<'_>, node: &Node) -> anyhow::Result<Self> {
        let ground = &scene.cluster.ground;
        let socket = ground.at(&format!("{}-nri.sock", node.name));
        let mut command = Command::new(ground.tool("nri"));
        command.arg(&socket).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut library = command.spawn().context("NRI's library is not built")?;
        let stdin = library.stdin.take().context("no stdin")?;
        let mut lines = BufReader::new(library.stdout.take().context("no stdout")?).lines();
        ensure!(
            lines.next_line().await?.is_some_and(|line| line.contains("listening")),
            "it ended"
        );
        let state = ground.at(&format!("{}/csi-edge", node.name));
        let of = ["direct", "nri", "--vm-handler", HANDLER, "--typed-handler", HANDLER];
        let at = ["--socket", &socket, "--state", &state];
        let launch = Launch::new(ground.program("csi-edge"), of.iter().chain(&at).copied());
        let name = format!("{}-nri", node.name);
        let plugin = Program::within(&node.worker.space, &name, &ground.logs(), launch).await?;
        ensure!(lines.next_line().await?.is_some_and(|line| line.contains("true")), "no plugin");
        let listener = UnixListener::bind(node.worker.sees(NRI))?;
        let tasks = Tasks::default();
        tasks.spawn_until_stop("NRI", pass_on(listener, stdin, lines));
        Ok(Self { _plugin: plugin, _library: library, tasks })
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.tasks.give_up();
    }
}

/// Passes the questions of the node's runtime to NRI's library, one after another.
async fn pass_on(
    listener: UnixListener,
    mut stdin: ChildStdin,
    mut answers: Lines<BufReader<ChildStdout>>,
) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let (question, mut answer) = stream.split();
        let Ok(Some(question)) = BufReader::new(question).lines().next_line().await else {
            continue;
        };
        if stdin.write_all(format!("{question}\n").as_bytes()).await.is_err() {
            return;
        }
        let Ok(Some(line)) = answers.next_line().await else { return };
        // A runtime that was killed reads nothing.
        let _ = answer.write_all(format!("{line}\n").as_bytes()).await;
    }
}

/// A second container of a pod ends and is started again: the VM attaches the device once more.
pub(super) async fn attached_twice(scene: &Scene<'_>) -> anyhow::Result<()> {
    let without = RuntimeRs::at(scene, "n1", "alone", false).await?;
    let with = RuntimeRs::at(scene, "n2", "guarded", true).await?;
    let without = with_a_crashing_sidecar(without, "busy");
    let with = with_a_crashing_sidecar(with, "is used by container");
    tokio::try_join!(without, with).map(drop)
}

async fn with_a_crashing_sidecar(rs: RuntimeRs<'_>, refusal: &str) -> anyhow::Result<()> {
    let scene = rs.scene;
    let name = format!("pair-{}", rs.claim);
    let beside = container("crashing", CRASH) + "  volumes:";
    scene.apply(&rs.guest(&name, WRITE_ONCE, READ).replacen("  volumes:", &beside, 1)).await?;
    rs.said(&name, &[refusal]).await?;
    within("the other container to go on", SOON, || async {
        let pod = scene.api::<Pod>().get(&name).await?;
        let status = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let first = status.iter().find(|status| status.name == "box").context("no container")?;
        ensure!(first.ready && first.restart_count == 0, "it is {first:?}");
        Ok(())
    })
    .await?;
    rs.read_by_the_next(&name, READ).await
}

/// A shim is killed, and its VM stays. The kubelet makes a new sandbox for the pod.
pub(super) async fn outlived(scene: &Scene<'_>) -> anyhow::Result<()> {
    let without = RuntimeRs::at(scene, "n1", "alone", false).await?;
    let with = RuntimeRs::at(scene, "n2", "guarded", true).await?;
    let without = with_a_dead_shim(without, &["busy", "withheld"]);
    let with = with_a_dead_shim(with, &["may be with another VM", "is withheld"]);
    tokio::try_join!(without, with).map(drop)
}

async fn with_a_dead_shim(rs: RuntimeRs<'_>, refusals: &[&str]) -> anyhow::Result<()> {
    let scene = rs.scene;
    let name = format!("guest-{}", rs.claim);
    scene.apply(&rs.guest(&name, WRITE_ONCE, READ)).await?;
    scene.ready(&[&name]).await?;
    let (sandbox, machine) = rs.machine()?;
    rs.kill(rs.process(&["containerd-shim", &sandbox])?).await?;
    rs.said(&name, refusals).await?;
    if rs.plugin.is_some() {
        // It has recorded the sandbox, so csi-edge knows that the machine is nobody's.
        rs.said(&name, &[&format!("`kill {machine}`")]).await?;
    }
    rs.kill(machine).await?;
    rs.ready(&name).await?;
    rs.read_by_the_next(&name, WRITTEN_AGAIN).await
}

/// What pods may do is admitted by the plugin: an init container, a container that is started
/// again, a kubelet that is, and another csi-edge. The volume grows meanwhile. runtime-rs cannot
/// tell its guest, so the next pod has the new size.
pub(super) async fn guarded(scene: &Scene<'_>) -> anyhow::Result<()> {
    let rs = RuntimeRs::at(scene, "n1", "guarded", true).await?;
    let init = container("init", "echo written > /data/file");
    let guest = rs.guest("legal", SLEEP, READ) + "  initContainers:\n" + &init;
    scene.apply(&guest).await?;
    scene.ready(&["legal"]).await?;
    let traces = Traces::of(scene, rs.claim).await?;
    scene.apply(&claim_of(rs.claim, "direct-once", "640Mi", "")).await?;
    reads(scene, volume(&traces.name), "/spec/capacity/storage", "640Mi").await?;
    for program in [&rs.node.edge, &rs.node.worker.kubelet] {
        program.kill().await?;
        program.run().await?;
    }
    scene.ready(&["legal"]).await?;
    ensure!(scene.restarts("legal").await? == 0, "its container was started again");
    rs.kill(rs.process(&["sleep", "2147483601"])?).await?;
    within("the container's next start", LATE, || async {
        ensure!(scene.restarts("legal").await? == 1, "it was not started again");
        scene.ready(&["legal"]).await.map(drop)
    })
    .await?;
    rs.read_by_the_next("legal", direct::LARGE).await
}
