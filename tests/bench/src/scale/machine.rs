//! Requests to the kernel: a core each for csi-cloud and the edges, and the usage of csi-cloud.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::time::Instant;

/// Which half of the machine a process may use.
#[derive(Clone, Copy)]
pub enum Half {
    /// The first core.
    Cloud,
    /// The second core.
    Edges,
}

/// Keeps a process (none: this one) on its core; on a machine with one core nothing happens. For
/// threads that are not there yet, so call it early.
///
/// # Errors
/// There is no such process.
pub fn pin(pid: Option<u32>, half: Half) -> anyhow::Result<()> {
    let allowed = sched_getaffinity(Some(Pid::INIT)).or_else(|_| sched_getaffinity(None))?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let (Some(first), Some(second)) = (cores.next(), cores.next()) else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(if matches!(half, Half::Cloud) { first } else { second });
    let pid = match pid {
        Some(pid) => {
            Some(i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process id")?)
        }
        None => None,
    };
    sched_setaffinity(pid, &set).context("cannot keep a process on one core")
}

/// A log that is being written.
pub struct Log(PathBuf);

impl Log {
    /// csi-cloud's in the directory of a stand.
    pub fn of_cloud(dir: &Path) -> Self {
        Self(dir.join("csi-cloud.log"))
    }

    /// How often a text is in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn count(&self, text: &str) -> anyhow::Result<usize> {
        Ok(std::fs::read_to_string(&self.0)?.matches(text).count())
    }

    /// Waits until the log has a text this many times.
    ///
    /// # Errors
    /// It is not within `limit`.
    pub async fn until(&self, text: &str, times: usize, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let count = self.count(text)?;
            if count >= times {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!(
                    "csi-cloud's log has {text:?} {count} times after {limit:?}, \
                     and {times} are expected"
                );
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
