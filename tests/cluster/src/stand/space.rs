//! A node's own mount and process namespace. Its mounts, processes and containers end with its
//! first process, which ends with this one, even after a SIGKILL. So nothing is left behind.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::wire::Wire;
use harness::wait::START;

/// Its process 1 reaps orphans, and ends when our end of its stdin is closed. `/run`, `/var/log`
/// and `/var/lib/kubelet` are the node's own, because containerd's shims and the kubelet have fixed
/// paths there. Two kubelets would take the socket of the device plugins from each other.
const HOLD: &str = "mount --make-rshared / && mount -t tmpfs node /run && mount -t tmpfs \
                    node /var/log";
/// For a node whose kubelet is the stand's own.
const KUBELET: &str = "mkdir -p /var/lib/kubelet && mount -t tmpfs node /var/lib/kubelet";
const STAY: &str = "echo ready && exec 3<&0 && { cat <&3 >/dev/null & wait $!; }";

/// The mount and process namespace of a node. They can end and be made anew, as a node is switched
/// off and on.
pub struct Space {
    /// Ends when its stdin does; none while the node is off.
    holder: Mutex<Option<Child>>,
    /// Process 1, as we see it.
    pid: AtomicU32,
    /// The ids of the mounts that the machine had when the namespaces began. The kernel gives the
    /// ids of mounts that are gone to others, so these are read anew with each namespace.
    mounted_before: parking_lot::Mutex<BTreeSet<String>>,
    apart: Option<Apart>,
}

/// A node whose pods find everything at the paths and ports of an ordinary machine.
pub(super) struct Apart {
    /// Has its `etc` and `var-lib`.
    pub(super) dir: PathBuf,
    /// Its way to the stand.
    pub(super) wire: Wire,
}

impl Apart {
    /// Gives it its directories.
    fn mounts(&self) -> String {
        let dir = self.dir.display();
        // In a peer group of its own; in that of the root, each of its mounts would be there twice.
        format!(
            "mount --bind {dir}/etc /etc && mount --bind {dir}/var-lib /var/lib && \
             mount --make-private /var/lib && mount --make-shared /var/lib"
        )
    }
}

impl Space {
    /// A new namespace, also of a node that is apart.
    ///
    /// # Errors
    /// We are not root, or the machine has no `unshare`, or there is no wire.
    pub(super) async fn new(apart: Option<Apart>) -> anyhow::Result<Self> {
        let (holder, pid) = Self::hold(apart.as_ref()).await?;
        let mounted_before = parking_lot::Mutex::new(mount_ids(pid)?);

        Ok(Self {
            holder: Mutex::new(Some(holder)),
            pid: AtomicU32::new(pid),
            mounted_before,
            apart,
        })
    }

    async fn hold(apart: Option<&Apart>) -> anyhow::Result<(Child, u32)> {
        ensure!(rustix::process::geteuid().is_root(), "a node's namespaces need root");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]);
        command.args(apart.map(|_| "--net"));
        let own = apart.map_or_else(|| KUBELET.to_owned(), Apart::mounts);
        let script = format!("{HOLD} && {own} && {STAY}");
        command.args(["--propagation", "private", "sh", "-c", &script]);
        // What it says when a node's power is cut is no news: that process 1 was killed.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let mut holder = command.spawn().context("`unshare` of util-linux cannot be started")?;
        let parent = holder.id().context("`unshare` ended at once")?;
        let mut lines =
            BufReader::new(holder.stdout.take().context("`unshare` has no stdout")?).lines();
        let ready = tokio::time::timeout(START, lines.next_line()).await;
        let ready = ready.context("the namespace does not get ready")??;
        if ready.is_none() {
            let output = holder.wait_with_output().await?;
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("no namespaces for a node: are they allowed here? {}", why.trim());
        }
        let pid = only_child(parent)?;
        if let Some(apart) = apart {
            apart.wire.lay(pid).await?;
        }
        Ok((holder, pid))
    }

    /// Process 1 of it, as we see it; `/proc/PID/root` is the node's view of files.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The lines of the mount table, without mounts that the machine had before.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn mounts(&self) -> anyhow::Result<Vec<String>> {
        let table = mount_table(self.pid())?;
        let before = self.mounted_before.lock();
        let is_own = |line: &&str| mount_id(line).is_none_or(|id| !before.contains(id));

        Ok(table.lines().filter(is_own).map(str::to_owned).collect())
    }

    /// The command that enters the namespaces and runs its arguments, of which the first are for
    /// `setpriv`.
    pub(super) fn command(&self) -> Command {
        let of = |kind: &str| format!("/proc/{}/ns/{kind}", self.pid());
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount={}", of("mnt"))).arg(format!("--pid={}", of("pid")));
        command.args(self.apart.as_ref().map(|_| format!("--net={}", of("net"))));
        command.args(["--", "setpriv"]);
        command
    }

    /// Runs a command inside to its end and returns its output.
    ///
    /// # Errors
    /// It failed; the error holds what it wrote to stderr.
    pub async fn run(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        let mut command = self.command();
        command.args(["--pdeathsig", "KILL", "--", program]).args(args);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(START, output).await;
        let output = output.with_context(|| format!("{program} does not end"))??;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} {} failed: {error}", args.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Ends everything inside at once with SIGKILL, and does not wait for it. Mounts end with the
    /// last process that is in the mount namespace: the one that went inside for a program.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn kill(&self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process 1")?, Signal::KILL).context("cannot end a namespace")
    }

    /// The same, and waits for it. Process 1 ends after all others inside, which their parents
    /// outside must have reaped.
    ///
    /// # Errors
    /// The system's.
    pub async fn end(&self) -> anyhow::Result<()> {
        let mut holder = self.holder.lock().await;
        let Some(mut child) = holder.take() else { return Ok(()) };
        // It may have been killed.
        let _ = self.kill();
        let ended = tokio::time::timeout(START, child.wait()).await;
        ended.context("a node's namespace does not end")??;
        Ok(())
    }

    /// New namespaces after the old ones have ended, with another boot id, which is the content of
    /// a file. Nothing happens if they have not.
    ///
    /// # Errors
    /// As for a new one.
    pub async fn boot(&self, id: &str) -> anyhow::Result<()> {
        let mut holder = self.holder.lock().await;
        if holder.is_some() {
            return Ok(());
        }
        let (child, pid) = Self::hold(self.apart.as_ref()).await?;
        *holder = Some(child);
        self.pid.store(pid, Ordering::Relaxed);
        *self.mounted_before.lock() = mount_ids(pid)?;
        self.run("mount", &["--bind", id, "/proc/sys/kernel/random/boot_id"]).await.map(drop)
    }
}

/// The mount table of a process.
fn mount_table(pid: u32) -> anyhow::Result<String> {
    let path = format!("/proc/{pid}/mountinfo");
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

/// The ids of the mounts that a process sees.
fn mount_ids(pid: u32) -> anyhow::Result<BTreeSet<String>> {
    Ok(mount_table(pid)?.lines().filter_map(mount_id).map(str::to_owned).collect())
}

/// The id of a mount, which is not used again while the mount is there.
fn mount_id(line: &str) -> Option<&str> {
    line.split(' ').next()
}

/// The child of a process that has one.
///
/// # Errors
/// It has none, or has ended.
pub(super) fn only_child(parent: u32) -> anyhow::Result<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
    child.with_context(|| format!("process {parent} has no child"))
}
