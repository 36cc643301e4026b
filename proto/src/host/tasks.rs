//! Every task has a name and an owner, and ends when its owner is told to stop.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, warn};

/// The time in which cancelled tasks may tell their callers.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A group of tasks and its two signals: *stop* (begin nothing, finish the work) and *given up*
/// (the time for that is over). Clones are the same group.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    stop: CancellationToken,
    given_up: CancellationToken,
    running: TaskTracker,
}

impl Tasks {
    /// Starts a task of this group. It waits for [`Tasks::stopped`] itself; otherwise use
    /// [`Tasks::spawn_until_stop`].
    #[expect(clippy::disallowed_methods, reason = "this is the helper that names and tracks tasks")]
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let span = tracing::debug_span!("task", name);
        // Boxed first: the runtime moves a new future eight times.
        drop(tokio::spawn(self.running.track_future(Box::pin(task.instrument(span)))));
    }

    /// Starts a task that is dropped when the group stops.
    pub fn spawn_until_stop(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.spawn(name, async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// A group that stops with this one, and can be stopped alone. This group awaits its tasks.
    pub fn child(&self) -> Self {
        Self { running: self.running.clone(), ..self.group() }
    }

    /// A group that stops with this one, and can be stopped and awaited alone. Its maker awaits it.
    pub fn group(&self) -> Self {
        Self {
            stop: self.stop.child_token(),
            given_up: self.given_up.child_token(),
            running: TaskTracker::new(),
        }
    }

    /// Ends when the group is told to stop.
    pub fn stopped(&self) -> impl Future<Output = ()> {
        self.stop.cancelled()
    }

    /// True if the group was told to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Tells the group to stop, without waiting.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends when the time for finishing is over. A running task then tells its caller, and ends.
    pub async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// Ends the group at once: tells it to stop and gives it up.
    pub fn give_up(&self) {
        self.stop.cancel();
        self.given_up.cancel();
    }

    /// Ends when all tasks of the group have ended.
    pub async fn ended(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// Tells the group to stop and waits for its tasks, at most for `grace`.
    pub async fn finish(&self, grace: Duration) {
        self.finish_before(tokio::time::sleep(grace)).await;
    }

    /// Tells the group to stop and waits for its tasks; gives them up at `end`. True if all ended
    /// before.
    pub async fn finish_before(&self, end: impl Future<Output = ()>) -> bool {
        self.stop.cancel();
        tokio::select! {
            biased;
            () = self.ended() => return true,
            () = end => {}
        }
        warn!(tasks = self.running.len(), "the time is over; what is not finished is given up");
        self.given_up.cancel();
        if tokio::time::timeout(LAST_WORDS, self.ended()).await.is_err() {
            warn!(tasks = self.running.len(), "left tasks behind that did not end");
        }
        false
    }
}

/// Ends when `grace` is over or the process is asked to stop once more, whichever is first.
pub async fn patience(grace: Duration) {
    tokio::select! {
        biased;
        () = tokio::time::sleep(grace) => {}
        Ok(()) = signal() => {}
    }
}

/// Ends when the process is asked to stop (SIGTERM or SIGINT).
///
/// # Errors
/// The signals cannot be listened to.
pub async fn signal() -> std::io::Result<()> {
    stop_signal()?.await;
    Ok(())
}

/// The same, which notices a signal from now on, before it is polled too.
///
/// # Errors
/// The signals cannot be listened to.
pub fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_is_given_up_can_still_tell_its_caller() {
        let tasks = Tasks::default();
        let (said, heard) = tokio::sync::oneshot::channel();
        let group = tasks.child();
        tasks.spawn("stubborn", async move {
            group.given_up().await;
            let _ = said.send(group.is_stopped());
        });
        assert!(!tasks.finish_before(tokio::time::sleep(Duration::from_secs(5))).await);
        assert!(heard.await.unwrap(), "given up before it was told to stop");
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_of_its_own_is_awaited_alone() {
        let tasks = Tasks::default();
        let group = tasks.group();
        tasks.spawn_until_stop("forever", std::future::pending());
        group.spawn_until_stop("short", async {});
        group.ended().await;
        tasks.stop();
        assert!(group.is_stopped(), "it stops with the one that it was made of");
        assert!(tasks.finish_before(std::future::pending()).await);
    }
}
