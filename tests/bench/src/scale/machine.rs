//! Requests to the kernel: a core each for csi-cloud and the edges, and the usage of csi-cloud.

use anyhow::Context;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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
