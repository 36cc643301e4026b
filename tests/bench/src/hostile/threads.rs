//! Threads of peers that would be on machines of their own.

use std::process::Command;

use proto::host::tasks::Tasks;
use tokio::runtime::{Builder, Runtime};

/// The attackers' own threads. They take what all others leave of the CPU: really they would be on
/// other machines.
///
/// The least priority is not enough: whoever wakes up waits for the end of such a thread's slice of
/// some milliseconds, which callers would see. A thread of the policy `SCHED_IDLE` gives way at
/// once.
pub(super) struct Threads(Option<Runtime>);

impl Threads {
    /// Starts two.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start() -> anyhow::Result<Self> {
        let mut threads = Builder::new_multi_thread();
        let threads = threads.worker_threads(2).enable_all().on_thread_start(yield_to_all);
        Ok(Self(Some(threads.build()?)))
    }

    /// Attacks on them until `tasks` are told to stop.
    pub(super) fn spawn(&self, tasks: &Tasks, attack: impl Future<Output = ()> + Send + 'static) {
        let _on_these = self.0.as_ref().map(Runtime::enter);
        tasks.spawn_until_stop("attack", attack);
    }
}

/// Has this thread run only while nobody else would.
fn yield_to_all() {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let set = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status();
    // Without it the attackers are only faster, and take more of what callers need.
    if !set.is_ok_and(|status| status.success()) {
        eprintln!("attackers do not yield to csi-cloud: chrt does not work");
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
