//! A container of a pod as a handle. Its kubelet starts it again when it ends. csi-cloud ends as a
//! whole pod, since that is what a drain or a lost machine does to it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{AttachParams, DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::io::AsyncReadExt;
use tokio::sync::Mutex;

use super::objects::within;
use harness::wait::START;

/// How long a kubelet may take to start one, with the wait after a failure.
const READY: Duration = Duration::from_secs(120);
/// How long one may take to end when told to.
const STOP: Duration = Duration::from_secs(60);

/// Where a container is.
pub struct Home {
    /// The namespace of its pod.
    pub namespace: &'static str,
    /// How its pod's name begins.
    pub pod: String,
    /// The node that its pod is at.
    pub node: &'static str,
    /// Where that node's kubelet keeps the logs.
    pub logs: PathBuf,
}

/// A container of a pod.
pub struct Container {
    name: String,
    container: &'static str,
    home: Home,
    /// It ends with its pod.
    whole: bool,
    client: Client,
    /// The id of the container that we ended last. It is never the one that runs again.
    ended: Mutex<Option<String>>,
}

/// A container that runs, or did.
struct Found {
    pod: String,
    uid: String,
    status: ContainerStatus,
}

impl Found {
    /// containerd's id of it.
    fn id(&self) -> Option<&str> {
        self.status.container_id.as_deref()?.strip_prefix("containerd://")
    }
}

impl Container {
    /// A container under the name that rows have for it.
    pub fn of(name: String, container: &'static str, home: Home, client: &Client) -> Self {
        let ended = Mutex::new(None);
        Self { name, container, home, whole: false, client: client.clone(), ended }
    }

    /// The same, which ends with its pod.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.home.namespace)
    }

    /// Its pod, of which there may be an old one that ends.
    ///
    /// # Errors
    /// There is none.
    pub async fn pod(&self) -> anyhow::Result<Pod> {
        let at = ListParams::default().fields(&format!("spec.nodeName={}", self.home.node));
        let pods = self.pods().list(&at).await?.items.into_iter();
        let mut ours: Vec<_> =
            pods.filter(|pod| pod.name_any().starts_with(&self.home.pod)).collect();
        // Those that end come first.
        ours.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_none());
        ours.pop().with_context(|| format!("{}: there is no pod {}", self.name, self.home.pod))
    }

    /// The address of its pod.
    ///
    /// # Errors
    /// It has none yet.
    pub async fn address(&self) -> anyhow::Result<String> {
        let address = self.pod().await?.status.and_then(|status| status.pod_ip);
        address.with_context(|| format!("{} has no address", self.name))
    }

    /// Runs a command in it to its end, as `kubectl exec` does, and returns its output.
    ///
    /// # Errors
    /// It failed; the error holds what it wrote to stderr.
    pub async fn exec(&self, command: &[&str]) -> anyhow::Result<String> {
        let pod = self.pod().await?.name_any();
        let params = AttachParams::default().container(self.container).stdin(false);
        let run = async {
            let mut process = self.pods().exec(&pod, command.to_vec(), &params).await?;
            let status = process.take_status().context("no status")?;
            let mut output = process.stdout().context("no stdout")?;
            let mut error = process.stderr().context("no stderr")?;
            let mut said = String::new();
            let mut failed = String::new();
            let read = tokio::try_join!(
                output.read_to_string(&mut said),
                error.read_to_string(&mut failed)
            );
            read.context("cannot read what it says")?;
            let status = status.await.and_then(|status| status.status).unwrap_or_default();
            ensure!(status == "Success", "{} failed: {failed}", command.join(" "));
            anyhow::Ok(said)
        };
        let ended = tokio::time::timeout(START, run).await;
        ended.with_context(|| format!("{} does not end", command.join(" ")))?
    }

    async fn found(&self) -> anyhow::Result<Found> {
        let pod = self.pod().await?;
        let name = pod.name_any();
        let uid = pod.uid().context("a pod without a uid")?;
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let status = statuses.into_iter().find(|status| status.name == self.container);
        let status =
            status.with_context(|| format!("{name} has not started {}", self.container))?;
        Ok(Found { pod: name, uid, status })
    }

    /// The process id as we see it, while it runs.
    ///
    /// # Errors
    /// It has ended.
    pub async fn pid(&self) -> anyhow::Result<Pid> {
        let found = self.found().await?;
        let id = found.id().with_context(|| format!("{} has not started", self.name))?;
        pid(id).with_context(|| format!("{} has ended", self.name))
    }

    /// Waits until it runs and is ready, and is not the one that we ended.
    ///
    /// # Errors
    /// It is not in time; the error holds its state.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let before = self.ended.lock().await.clone();
        within(&format!("{} to be ready", self.name), READY, || async {
            let found = self.found().await?;
            ensure!(found.status.ready, "it is {:?}", found.status.state);
            ensure!(found.id().map(str::to_owned) != before, "it has not ended yet");
            Ok(())
        })
        .await
    }

    /// How often it was started again in its pod.
    ///
    /// # Errors
    /// There is no pod.
    pub async fn restarts(&self) -> anyhow::Result<u32> {
        Ok(u32::try_from(self.found().await?.status.restart_count)?)
    }

    /// Signals it.
    ///
    /// # Errors
    /// It had ended.
    pub async fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let cannot = || format!("cannot signal {}", self.name);
        kill_process(self.pid().await?, signal).with_context(cannot)
    }

    /// Ends it, or all its pod, and waits for that.
    ///
    /// # Errors
    /// It had ended, or does not end.
    pub async fn end(&self, signal: Signal) -> anyhow::Result<()> {
        let found = self.found().await?;
        let id = found.id().with_context(|| format!("{} has not started", self.name))?.to_owned();
        let process = self.pid().await?;
        *self.ended.lock().await = Some(id);
        if !self.whole || signal == Signal::KILL {
            let cannot = || format!("cannot signal {}", self.name);
            kill_process(process, signal).with_context(cannot)?;
        }
        if self.whole {
            let params = match signal {
                Signal::KILL => DeleteParams::default().grace_period(1),
                _ => DeleteParams::default(),
            };
            self.pods().delete(&found.pod, &params).await?;
        }
        within(&format!("the end of {}", self.name), STOP, || async {
            ensure!(test_kill_process(process).is_err(), "process {process:?} runs");
            if self.whole {
                let left = self.pods().get_opt(&found.pod).await?;
                let left = left.and_then(|pod| pod.uid());
                ensure!(left.as_deref() != Some(&found.uid), "its pod is there");
            }
            Ok(())
        })
        .await
    }

    /// What it wrote, with those before it, as far as its kubelet has kept it.
    pub fn log(&self) -> String {
        let prefix = format!("{}_{}", self.home.namespace, self.home.pod);
        let pods = entries(&self.home.logs).into_iter();
        let pods = pods.filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        });
        let mut files: Vec<_> = pods.flat_map(|pod| entries(&pod.join(self.container))).collect();
        let written = |path: &PathBuf| path.metadata().and_then(|file| file.modified());
        files.sort_by_key(|path| written(path).unwrap_or(SystemTime::UNIX_EPOCH));
        files.iter().map(|file| lines(&std::fs::read(file).unwrap_or_default())).collect()
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The lines of a log of the container runtime, without its columns: time, stream, and whether the
/// line is whole.
fn lines(log: &[u8]) -> String {
    let log = String::from_utf8_lossy(log);
    let line = |line: &str| {
        let mut columns = line.splitn(4, ' ').skip(2);
        let end = if columns.next() == Some("P") { "" } else { "\n" };
        format!("{}{end}", columns.next().unwrap_or_default())
    };
    log.lines().map(line).collect()
}

/// The first process of a container: its control group has the container's id.
fn pid(id: &str) -> anyhow::Result<Pid> {
    let number = |process: PathBuf| process.file_name()?.to_str()?.parse::<i32>().ok();
    let is_in = |number: &i32| {
        let group = std::fs::read_to_string(format!("/proc/{number}/cgroup"));
        group.is_ok_and(|group| group.contains(id))
    };
    let first = entries(Path::new("/proc")).into_iter().filter_map(number).filter(is_in).min();
    first.and_then(Pid::from_raw).with_context(|| format!("no process of the container {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_log_is_read_without_the_runtimes_columns() {
        let log = "2026-01-01T00:00:00.1Z stdout F ready\n2026-01-01T00:00:00.2Z stderr P one \n\
                   2026-01-01T00:00:00.3Z stderr F line: a b\n2026-01-01T00:00:00.4Z stdout F \n";
        assert_eq!(lines(log.as_bytes()), "ready\none line: a b\n\n");
    }
}
