//! Deduplicated queries to nodes: all callers with the same key wait for one run.
//!
//! Each query runs in a task of its own. It outlives its callers, so the next caller finds its
//! result. At most `AT_ONCE` quick queries of many nodes run at once; a slow one gives up its
//! permit and runs on.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::host::tasks::Tasks;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::nodes::connections::Lane;

/// Quick queries that run at once.
pub(crate) const AT_ONCE: usize = 64;
/// The time for which a caller waits for nodes, and in which a query counts as quick.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

type Flights<K, V> = Arc<Mutex<HashMap<K, Pending<V>>>>;

/// The result of a query that may still run.
pub(crate) type Pending<V> = watch::Receiver<Option<V>>;

/// Queries with key `K` and result `V`.
pub(crate) struct SingleFlight<K, V> {
    running: Flights<K, V>,
    permits: Arc<Semaphore>,
    tasks: Tasks,
}

impl<K: Clone + Eq + Hash + Send + 'static, V: Clone + Send + Sync + 'static> SingleFlight<K, V> {
    /// Queries run as tasks of this group and end when it stops.
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self { running: Arc::default(), permits: Arc::new(Semaphore::new(AT_ONCE)), tasks }
    }

    /// Starts a query, or joins the running one with the same key. One to a single node waits for
    /// no other one.
    pub(crate) fn run<F>(
        &self,
        key: K,
        lane: Lane,
        query: impl FnOnce() -> F + Send + 'static,
    ) -> Pending<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut running = lock(&self.running);
        // A query whose task was stopped never gets a result.
        if let Some(pending) = running.get(&key).filter(|pending| pending.has_changed().is_ok()) {
            return pending.clone();
        }
        let (result, pending) = watch::channel(None);
        running.insert(key.clone(), pending.clone());
        let running = self.running.clone();
        let permits = self.permits.clone();
        self.tasks.spawn_until_stop("node query", async move {
            let value = match lane {
                Lane::Call => query().await,
                Lane::FanOut => run(&permits, query).await,
            };
            lock(&running).remove(&key);
            result.send_replace(Some(value));
        });
        pending
    }
}

/// Waits for a result until `end`.
pub(crate) async fn wait<V: Clone>(mut pending: Pending<V>, end: Instant) -> Option<V> {
    let result =
        tokio::time::timeout_at(end, pending.wait_for(Option::is_some)).await.ok()?.ok()?;
    result.clone()
}

/// The end of a caller's wait for nodes: after [`PATIENCE`], or half of the time left to its
/// deadline.
pub(crate) fn wait_end(deadline: Option<Instant>) -> Instant {
    let now = Instant::now();
    let left = deadline.map_or(PATIENCE, |deadline| deadline.saturating_duration_since(now) / 2);
    now + left.min(PATIENCE)
}

async fn run<F: Future>(permits: &Semaphore, query: impl FnOnce() -> F) -> F::Output {
    let permit = permits.acquire().await;
    // Thousands may wait for a permit, so the future is made after it.
    let mut query = Box::pin(query());
    tokio::select! {
        biased;
        value = &mut query => return value,
        () = tokio::time::sleep(PATIENCE) => {}
    }
    drop(permit);
    query.await
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    #[tokio::test(start_paused = true)]
    async fn the_same_question_is_asked_once_at_a_time_and_outlives_its_callers() {
        let queries = SingleFlight::new(Tasks::default());
        let runs = Arc::new(AtomicUsize::new(0));
        let ask = |seconds| {
            let runs = runs.clone();
            queries.run("q", Lane::FanOut, move || async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                runs.fetch_add(1, Relaxed) + 1
            })
        };
        let second = wait_end(None);
        assert_eq!(wait(ask(3), second).await, None, "nobody waits longer than for a second");
        let later = Instant::now() + Duration::from_secs(9);
        assert_eq!(wait(ask(3), later).await, Some(1), "it went on");
        assert_eq!(wait(ask(0), wait_end(None)).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_ones_do_not_take_the_places_of_quick_ones() {
        let queries = SingleFlight::new(Tasks::default());
        for slow in 0..AT_ONCE {
            drop(queries.run(slow, Lane::FanOut, std::future::pending::<()>));
        }
        let single = queries.run(AT_ONCE + 1, Lane::Call, || async {});
        assert_eq!(wait(single, wait_end(None)).await, Some(()), "one node waits for no others");
        let quick = queries.run(AT_ONCE, Lane::FanOut, || async {});
        assert_eq!(wait(quick.clone(), wait_end(None)).await, None, "all places are taken");
        assert_eq!(wait(quick, wait_end(None)).await, Some(()));
    }

    #[tokio::test]
    async fn nobody_waits_for_what_was_stopped() {
        let tasks = Tasks::default();
        let queries = SingleFlight::new(tasks.clone());
        let pending = queries.run(0, Lane::FanOut, std::future::pending::<()>);
        tasks.finish(Duration::from_secs(5)).await;
        assert_eq!(wait(pending, Instant::now() + Duration::from_secs(60)).await, None);
    }
}
