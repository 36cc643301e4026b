//! Every task has a name and an owner, and ends when its owner is told to stop.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, warn};

/// A group of tasks and the word that ends them. Clones are the same group.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    stop: CancellationToken,
    running: TaskTracker,
}

impl Tasks {
    /// Starts a task of this group. The task itself looks at [`Tasks::stopped`], or uses [`Tasks::spawn_until_stop`].
    #[expect(clippy::disallowed_methods, reason = "this is the helper that names and tracks tasks")]
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let span = tracing::debug_span!("task", name);
        // Boxed first: on its way into the runtime a future is moved eight times.
        drop(tokio::spawn(self.running.track_future(Box::pin(task.instrument(span)))));
    }

    /// Starts a task that is dropped, wherever it is, when the group stops.
    pub fn spawn_until_stop(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.spawn(name, async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// A group that stops with this one, and can be stopped alone; its tasks are awaited with this one's.
    pub fn child(&self) -> Self {
        Self { stop: self.stop.child_token(), running: self.running.clone() }
    }

    /// Ends when the group is told to stop.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Whether the group was told to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Tells the group to stop and does not wait.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Tells the group to stop and waits for its tasks, at most for `grace`.
    pub async fn finish(&self, grace: Duration) {
        self.stop.cancel();
        self.running.close();
        if tokio::time::timeout(grace, self.running.wait()).await.is_err() {
            warn!(tasks = self.running.len(), "left tasks behind that did not end in {grace:?}");
        }
    }
}

/// Ends when the process is asked to stop (SIGTERM or SIGINT).
///
/// # Errors
/// The signals cannot be listened to.
pub async fn signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}
