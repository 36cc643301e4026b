//! Every task has a name and an owner, and ends when its owner is told to stop.
//!
//! A panic is never silent. That of a peer's task ends this task alone, because a peer must not be
//! able to end the program. That of a task on which everything depends ends the program, which
//! whoever runs it starts again.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, error, warn};

use super::backoff::Backoff;

/// The time in which cancelled tasks may tell their callers.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The delays before a task that panicked is started again.
const FIRST_REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// A group of tasks and its two signals: *stop* (begin nothing, finish the work) and *given up*
/// (the time for that is over). Clones are the same group.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    stop: CancellationToken,
    given_up: CancellationToken,
    running: TaskTracker,
    panicked: Arc<watch::Sender<Option<Panicked>>>,
}

/// A task's name, and what its panic ends. A name alone is a peer's task.
#[derive(Clone, Copy, Debug)]
pub enum TaskKind {
    /// It serves one peer, call or connection: a panic ends this task.
    Peer(&'static str),
    /// All depends on it: a panic ends the program ([`Tasks::panicked`]).
    All(&'static str),
}

impl From<&'static str> for TaskKind {
    fn from(name: &'static str) -> Self {
        Self::Peer(name)
    }
}

impl TaskKind {
    fn name(self) -> &'static str {
        match self {
            Self::Peer(name) | Self::All(name) => name,
        }
    }
}

/// A task has panicked. As the end of a program it is exit code 70.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the task \"{task}\" panicked: {why}. Please report this with the lines before it. The program \
     cannot serve without that task and ends, so that it is started again"
)]
pub struct Panicked {
    /// The name of the task.
    pub task: &'static str,
    /// The message of the panic.
    pub why: String,
}

impl Panicked {
    fn new(task: &'static str, panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self { task, why: text.unwrap_or_else(|| "without a message".into()) }
    }
}

impl Tasks {
    /// Starts a task of this group. It waits for [`Tasks::stopped`] itself; otherwise use
    /// [`Tasks::spawn_until_stop`].
    #[expect(clippy::disallowed_methods, reason = "this is the helper that names and tracks tasks")]
    pub fn spawn(
        &self,
        kind: impl Into<TaskKind>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let kind = kind.into();
        let span = tracing::debug_span!("task", name = kind.name());
        let panicked = self.panicked.clone();
        // Boxed first: the runtime moves a new future eight times.
        drop(tokio::spawn(self.running.track_future(Box::pin(async move {
            let Err(panic) = caught(kind.name(), task.instrument(span)).await else { return };
            if matches!(kind, TaskKind::All(_)) {
                panicked.send_replace(Some(panic));
            }
        }))));
    }

    /// Starts a task that is dropped when the group stops.
    pub fn spawn_until_stop(
        &self,
        kind: impl Into<TaskKind>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.spawn(kind, async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// Starts a peer's task that is dropped when the group stops. After a panic it is made again: a
    /// minute later, and after each further panic twice as late, up to an hour.
    pub fn spawn_again<F>(&self, name: &'static str, make: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_until_stop(name, async move {
            let mut rests = Backoff::new(FIRST_REST, LONGEST_REST);
            while caught(name, make()).await.is_err() {
                tokio::time::sleep(rests.delay()).await;
            }
        });
    }

    /// Ends when a task on which all depends has panicked, in this group or one that shares its
    /// fate: those made of it.
    pub async fn panicked(&self) -> Panicked {
        let mut seen = self.panicked.subscribe();
        loop {
            if let Some(panicked) = seen.borrow_and_update().clone() {
                return panicked;
            }
            if seen.changed().await.is_err() {
                // Impossible: we hold the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// A group that is stopped and awaited alone, and does not stop with this one. A panic in it
    /// is one of this group.
    pub fn independent(&self) -> Self {
        Self { panicked: self.panicked.clone(), ..Self::default() }
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
            panicked: self.panicked.clone(),
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

/// Runs a task to its end, and logs its panic.
///
/// # Errors
/// It panicked.
pub async fn caught(name: &'static str, task: impl Future<Output = ()>) -> Result<(), Panicked> {
    // What a task shares has no lock that a panic poisons, and is changed in whole steps.
    let ended = AssertUnwindSafe(task).catch_unwind().await;
    ended.map_err(|panic| {
        let panicked = Panicked::new(name, &*panic);
        error!(task = name, why = panicked.why, "a task panicked; please report this");
        panicked
    })
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

    #[tokio::test(start_paused = true)]
    async fn a_panic_ends_a_peers_task_and_the_program_if_all_depends_on_it() {
        let tasks = Tasks::default();
        let fate = tasks.independent();
        tasks.group().spawn_until_stop("of a peer", async { panic!("a bad message") });
        tasks.ended().await;
        let waited = tokio::time::timeout(Duration::from_secs(1), fate.panicked()).await;
        assert!(waited.is_err(), "a peer ends the program");
        tasks.group().spawn(TaskKind::All("dial"), async { panic!("no {}", "more") });
        let panicked = fate.panicked().await;
        assert_eq!(panicked, Panicked { task: "dial", why: "no more".into() });
        assert!(panicked.to_string().contains("\"dial\" panicked: no more"), "{panicked}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peers_task_that_panics_is_made_again_ever_later() {
        let tasks = Tasks::default();
        let made = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counted = made.clone();
        let began = tokio::time::Instant::now();
        tasks.spawn_again("driver", move || {
            let number = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move { assert!(number >= 3, "attempt {number}") }
        });
        tasks.ended().await;
        assert_eq!(made.load(std::sync::atomic::Ordering::Relaxed), 4);
        assert_eq!(began.elapsed(), FIRST_REST * 7);
    }
}
