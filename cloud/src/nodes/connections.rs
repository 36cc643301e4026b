//! The HTTP/2 connections of links: lent to calls, and ended when no call has used them for a
//! while.
//!
//! An open connection takes some 45 KiB, and most edges are seldom called. Only csi-cloud ends one,
//! under the lock under which it lends them: so no call loses its connection.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::http2::forward::Upstream;
use proto::link::LinkError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The time without a call after which a connection ends.
pub const IDLE: Duration = Duration::from_secs(10);
/// A connection that the edge has to dial may be idle for this many times as long.
const DIALED_TIMES: u32 = 6;
/// How often the sweep looks in the time after which a connection ends.
const SWEEPS: u32 = 10;
/// Questions at once that may open a connection each; together these take some 45 MiB.
const MAX_FAN_OUT: usize = 1024;

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// It is for one node. Its connection stays open for the next call.
    Call,
    /// It is one of many questions, or nobody waits for it. A connection that it opens ends with
    /// its answer.
    FanOut,
}

/// When csi-cloud ends a connection of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleEnd {
    /// Never: the edge opens no other one on this link.
    Never,
    /// When it has been idle, or with the answer to a question of [`Lane::FanOut`].
    Idle,
    /// When it has been idle for longer: the edge dials for the next one.
    IdleDialed,
}

/// The connection of a link for one kind of calls. It is opened when a call needs it.
pub(super) struct Lender {
    slot: tokio::sync::Mutex<Option<Open>>,
    ending: IdleEnd,
    connections: Arc<Connections>,
}

/// An open connection.
struct Open {
    upstream: Upstream,
    /// There is a clone for each call on it.
    users: Arc<()>,
    /// True if it ends with its answer.
    is_brief: bool,
    /// Since when the sweep has found it idle.
    idle_since: Option<Instant>,
}

/// A connection that is lent to a call until this is dropped.
pub(crate) struct LentConnection {
    pub(crate) upstream: Upstream,
    /// Taken when this is dropped.
    users: Option<Arc<()>>,
    lender: Arc<Lender>,
    /// The room of the question that opened the connection.
    _room: Option<OwnedSemaphorePermit>,
}

/// The open connections of all links.
pub(super) struct Connections {
    open: Mutex<Vec<Weak<Lender>>>,
    fan_out: Arc<Semaphore>,
}

impl Lender {
    pub(super) fn new(ending: IdleEnd, connections: Arc<Connections>) -> Self {
        Self { slot: tokio::sync::Mutex::default(), ending, connections }
    }

    /// Lends the connection. The first caller opens it with `open`; the others wait.
    ///
    /// # Errors
    /// Those of `open`.
    pub(super) async fn lend<F>(
        self: &Arc<Self>,
        lane: Lane,
        open: impl FnOnce() -> F,
    ) -> Result<LentConnection, LinkError>
    where
        F: Future<Output = Result<Upstream, LinkError>>,
    {
        if let Ok(mut slot) = self.slot.try_lock()
            && let Some(lent) = self.lent(&mut slot, lane)
        {
            return Ok(lent);
        }
        // Boxed, so that the future of every call stays small.
        Box::pin(self.open_and_lend(lane, open)).await
    }

    async fn open_and_lend<F>(
        self: &Arc<Self>,
        lane: Lane,
        open: impl FnOnce() -> F,
    ) -> Result<LentConnection, LinkError>
    where
        F: Future<Output = Result<Upstream, LinkError>>,
    {
        // Before the lock, so that no call to the node waits for other nodes' answers.
        let room = match lane {
            Lane::Call => None,
            Lane::FanOut => self.connections.fan_out.clone().acquire_owned().await.ok(),
        };
        let mut slot = self.slot.lock().await;
        if let Some(lent) = self.lent(&mut slot, lane) {
            return Ok(lent);
        }
        let upstream = open().await?;
        let is_brief = lane == Lane::FanOut && self.ending == IdleEnd::Idle;
        let users = Arc::new(());
        let (lent, lender) = (upstream.clone(), self.clone());
        *slot = Some(Open { upstream, users: users.clone(), is_brief, idle_since: None });
        if self.ending != IdleEnd::Never {
            self.connections.open().push(Arc::downgrade(self));
        }
        Ok(LentConnection { upstream: lent, users: Some(users), lender, _room: room })
    }

    /// The open connection, lent once more.
    fn lent(self: &Arc<Self>, slot: &mut Option<Open>, lane: Lane) -> Option<LentConnection> {
        let open = slot.as_mut().filter(|open| !open.upstream.is_closed())?;
        open.idle_since = None;
        // A call keeps it open for the next one.
        open.is_brief &= lane == Lane::FanOut;
        let (upstream, users) = (open.upstream.clone(), Some(open.users.clone()));
        Some(LentConnection { upstream, users, lender: self.clone(), _room: None })
    }

    /// Ends the connection if it has been idle for too long. True if the next sweep has to look at
    /// it.
    fn sweep(&self, limit: Duration, now: Instant) -> bool {
        // If somebody has the lock, the connection is not idle.
        let Ok(mut slot) = self.slot.try_lock() else { return true };
        let limit = match self.ending {
            IdleEnd::Never => Duration::MAX,
            IdleEnd::Idle => limit,
            IdleEnd::IdleDialed => limit * DIALED_TIMES,
        };
        if slot.as_mut().is_some_and(|open| open.is_over(limit, now)) {
            *slot = None;
        }
        slot.is_some()
    }
}

impl Open {
    fn is_in_use(&self) -> bool {
        // It is cloned under the lock of the slot alone, so this does not grow meanwhile.
        Arc::strong_count(&self.users) > 1
    }

    /// True if it ends now.
    fn is_over(&mut self, limit: Duration, now: Instant) -> bool {
        if self.is_in_use() {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        let is_old = now.saturating_duration_since(since) >= limit;
        self.is_brief || is_old || self.upstream.is_closed()
    }
}

impl Drop for LentConnection {
    fn drop(&mut self) {
        drop(self.users.take());
        // If somebody else has the lock, the sweep ends it.
        if let Ok(mut slot) = self.lender.slot.try_lock()
            && slot.as_ref().is_some_and(|open| open.is_brief && !open.is_in_use())
        {
            *slot = None;
        }
    }
}

impl Default for Connections {
    fn default() -> Self {
        Self { open: Mutex::default(), fan_out: Arc::new(Semaphore::new(MAX_FAN_OUT)) }
    }
}

impl Connections {
    /// Ends connections that have been idle for as long as `limit`, until dropped.
    pub(super) async fn end_idle(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit / SWEEPS).await;
            self.sweep(limit, Instant::now());
        }
    }

    fn sweep(&self, limit: Duration, now: Instant) {
        // Taken out, so that no call that opens a connection waits for the sweep.
        let mut all = std::mem::take(&mut *self.open());
        all.retain(|lender| lender.upgrade().is_some_and(|lender| lender.sweep(limit, now)));
        let mut open = self.open();
        all.append(&mut open);
        all.shrink_to(2 * all.len());
        *open = all;
    }

    fn open(&self) -> MutexGuard<'_, Vec<Weak<Lender>>> {
        self.open.lock()
    }
}

#[cfg(test)]
mod tests {
    use proto::host::tasks::Tasks;
    use proto::http2::forward;
    use tokio::io::DuplexStream;
    use tokio::sync::watch;

    use super::*;

    /// A link whose edge answers no call.
    struct Edge {
        lender: Arc<Lender>,
        connections: Arc<Connections>,
        tasks: Tasks,
        /// Connections that have ended at the edge.
        ended: watch::Sender<usize>,
    }

    async fn serve(io: DuplexStream, ended: watch::Sender<usize>) {
        let mut serving = h2::server::handshake(io).await.unwrap();
        while let Some(Ok(_)) = serving.accept().await {}
        ended.send_modify(|ended| *ended += 1);
    }

    impl Edge {
        fn new(ending: IdleEnd) -> Self {
            let connections = Arc::<Connections>::default();
            let lender = Arc::new(Lender::new(ending, connections.clone()));
            let tasks = Tasks::default();
            let sweeping = connections.clone();
            tasks.spawn_until_stop("sweep", async move { sweeping.end_idle(IDLE).await });
            Self { lender, connections, tasks, ended: watch::Sender::default() }
        }

        async fn lend(&self, lane: Lane) -> LentConnection {
            let (tasks, ended) = (self.tasks.clone(), self.ended.clone());
            let opening = || async move {
                let (near, far) = tokio::io::duplex(1 << 16);
                tasks.spawn_until_stop("edge", serve(far, ended));
                let (upstream, driving) = forward::connect(near).await.unwrap();
                tasks.spawn_until_stop("cloud", async move { drop(driving.await) });
                Ok(upstream)
            };
            self.lender.lend(lane, opening).await.unwrap()
        }

        /// True if a connection is open after this many seconds.
        async fn is_open_after(&self, seconds: u64) -> bool {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            self.lender.slot.lock().await.is_some()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_no_call_has_used_it_for_a_while() {
        for (ending, limit) in [(IdleEnd::Idle, 10), (IdleEnd::IdleDialed, 60)] {
            let edge = Edge::new(ending);
            let first = edge.lend(Lane::Call).await;
            assert!(edge.is_open_after(100).await, "a call uses it");
            let second = edge.lend(Lane::Call).await;
            drop(first);
            assert!(edge.is_open_after(100).await, "another call uses it");
            let upstream = second.upstream.clone();
            drop(second);
            assert!(edge.is_open_after(limit).await, "{ending:?}");
            drop(edge.lend(Lane::Call).await);
            assert!(edge.is_open_after(limit).await, "a call came meanwhile");
            assert!(!edge.is_open_after(3).await, "{ending:?}");
            assert!(!upstream.is_closed(), "whoever has it may still call");
            drop(upstream);
            edge.ended.subscribe().wait_for(|ended| *ended == 1).await.unwrap();
            assert_eq!(edge.connections.open().len(), 0);
            drop(edge.lend(Lane::Call).await);
            assert!(edge.is_open_after(limit).await, "and the next call opens another one");
        }
        let edge = Edge::new(IdleEnd::Never);
        drop(edge.lend(Lane::Call).await);
        drop(edge.lend(Lane::FanOut).await);
        assert!(edge.is_open_after(1_000).await, "an older edge opens no other one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_for_a_question_to_many_ends_with_the_last_answer() {
        let edge = Edge::new(IdleEnd::Idle);
        let first = edge.lend(Lane::FanOut).await;
        let second = edge.lend(Lane::FanOut).await;
        drop(first);
        assert!(edge.is_open_after(0).await);
        drop(second);
        assert!(!edge.is_open_after(0).await);
        let question = edge.lend(Lane::FanOut).await;
        drop(edge.lend(Lane::Call).await);
        drop(question);
        assert!(edge.is_open_after(5).await, "a call keeps it for the next one");
        drop(edge.lend(Lane::FanOut).await);
        assert!(edge.is_open_after(5).await, "a question does not end what calls use");
    }

    #[tokio::test(start_paused = true)]
    async fn questions_wait_for_room_and_calls_do_not() {
        let edge = Edge::new(IdleEnd::Idle);
        let fan_out = edge.connections.fan_out.clone();
        let all = fan_out.acquire_many_owned(u32::try_from(MAX_FAN_OUT).unwrap()).await.unwrap();
        let mut question = std::pin::pin!(edge.lend(Lane::FanOut));
        let minute = Duration::from_secs(60);
        assert!(tokio::time::timeout(minute, &mut question).await.is_err());
        let call = tokio::time::timeout(minute, edge.lend(Lane::Call)).await;
        assert!(call.is_ok());
        drop(all);
        assert!(tokio::time::timeout(minute, question).await.is_ok());
    }
}
