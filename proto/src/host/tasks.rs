//! Every task has a name and an owner, and ends when its owner is told to stop.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, warn};

/// How long tasks that were given up may take to say so to those who wait for them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A group of tasks and the words that end them: *stop* (begin nothing, finish what runs) and *given up* (the
/// time for that is over). Clones are the same group.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    stop: CancellationToken,
    given_up: CancellationToken,
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
        Self { running: self.running.clone(), ..self.group() }
    }

    /// A group that stops with this one, and can be stopped and awaited alone: whoever makes it awaits it.
    pub fn group(&self) -> Self {
        let (stop, given_up) = (self.stop.child_token(), self.given_up.child_token());
        Self { stop, given_up, running: TaskTracker::new() }
    }

    /// Ends when the group is told to stop.
    pub fn stopped(&self) -> impl Future<Output = ()> {
        self.stop.cancelled()
    }

    /// Whether the group was told to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Tells the group to stop and does not wait.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends when the time for finishing is over: what still runs says so to who waits for it, and ends.
    pub async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// Ends the group at once: tells it to stop and gives it up.
    pub fn give_up(&self) {
        self.stop.cancel();
        self.given_up.cancel();
    }

    /// Ends when no task of the group runs.
    pub async fn ended(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// Tells the group to stop and waits for its tasks, at most for `grace`.
    pub async fn finish(&self, grace: Duration) {
        self.finish_before(tokio::time::sleep(grace)).await;
    }

    /// Tells the group to stop and waits for its tasks; gives them up at `end`. Whether they all ended before.
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
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_does_not_finish_is_given_up_and_may_still_say_so() {
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
