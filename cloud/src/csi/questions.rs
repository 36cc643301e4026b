//! Questions to nodes that several callers may wait for. Each runs once at a time, in a task of its own, and
//! goes on when nobody waits for it any more, so that its answer is known the next time.
//!
//! Only so many quick ones run at once; a slow one gives its place to the next and runs on beside them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::host::tasks::Tasks;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// Nodes asked at the same time.
pub(crate) const AT_ONCE: usize = 64;
/// How long a caller waits for nodes, and how long a node is none of the slow ones.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

type Running<K, V> = Arc<Mutex<HashMap<K, Answer<V>>>>;

/// An answer on its way.
pub(crate) type Answer<V> = watch::Receiver<Option<V>>;

/// Questions that are told apart by `K` and answered by `V`.
pub(crate) struct Questions<K, V> {
    running: Running<K, V>,
    room: Arc<Semaphore>,
    tasks: Tasks,
}

impl<K: Clone + Eq + Hash + Send + 'static, V: Clone + Send + Sync + 'static> Questions<K, V> {
    /// None yet. They run as tasks of this group and end when it stops.
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self { running: Arc::default(), room: Arc::new(Semaphore::new(AT_ONCE)), tasks }
    }

    /// Asks, or joins the same question if that runs.
    pub(crate) fn ask<F>(&self, key: K, question: impl FnOnce() -> F + Send + 'static) -> Answer<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut running = lock(&self.running);
        // One whose task is gone will never be answered.
        if let Some(answer) = running.get(&key).filter(|answer| answer.has_changed().is_ok()) {
            return answer.clone();
        }
        let (said, answer) = watch::channel(None);
        running.insert(key.clone(), answer.clone());
        let (running, room) = (self.running.clone(), self.room.clone());
        self.tasks.spawn_until_stop("question", async move {
            let value = run(&room, question).await;
            lock(&running).remove(&key);
            said.send_replace(Some(value));
        });
        answer
    }
}

/// Waits for an answer until `end`. None if it did not come.
pub(crate) async fn wait<V: Clone>(mut answer: Answer<V>, end: Instant) -> Option<V> {
    let said = tokio::time::timeout_at(end, answer.wait_for(Option::is_some)).await.ok()?.ok()?;
    said.clone()
}

/// Until when a caller waits for nodes: no longer than for one slow node, and so that it can still be answered.
pub(crate) fn end(deadline: Option<Instant>) -> Instant {
    let now = Instant::now();
    let left = deadline.map_or(PATIENCE, |deadline| deadline.saturating_duration_since(now) / 2);
    now + left.min(PATIENCE)
}

async fn run<F: Future>(room: &Semaphore, question: impl FnOnce() -> F) -> F::Output {
    let place = room.acquire().await;
    // Made only now: thousands may wait for a place.
    let mut asked = Box::pin(question());
    tokio::select! {
        biased;
        said = &mut asked => return said,
        () = tokio::time::sleep(PATIENCE) => {}
    }
    drop(place);
    asked.await
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    #[tokio::test(start_paused = true)]
    async fn the_same_question_is_asked_once_at_a_time_and_outlives_its_callers() {
        let (questions, asked) = (Questions::new(Tasks::default()), Arc::new(AtomicUsize::new(0)));
        let ask = |seconds| {
            let asked = asked.clone();
            questions.ask("q", move || async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                asked.fetch_add(1, Relaxed) + 1
            })
        };
        assert_eq!(wait(ask(3), end(None)).await, None, "nobody waits longer than for a second");
        assert_eq!(
            wait(ask(3), Instant::now() + Duration::from_secs(9)).await,
            Some(1),
            "it went on"
        );
        assert_eq!(wait(ask(0), end(None)).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_ones_do_not_take_the_places_of_quick_ones() {
        let questions = Questions::new(Tasks::default());
        for slow in 0..AT_ONCE {
            drop(questions.ask(slow, std::future::pending::<()>));
        }
        let quick = questions.ask(AT_ONCE, || async {});
        assert_eq!(wait(quick.clone(), end(None)).await, None, "all places are taken");
        assert_eq!(wait(quick, end(None)).await, Some(()));
    }

    #[tokio::test]
    async fn nobody_waits_for_what_was_stopped() {
        let tasks = Tasks::default();
        let questions = Questions::new(tasks.clone());
        let answer = questions.ask(0, std::future::pending::<()>);
        tasks.finish(Duration::from_secs(5)).await;
        assert_eq!(wait(answer, Instant::now() + Duration::from_secs(60)).await, None);
    }
}
