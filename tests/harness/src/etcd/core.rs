//! The state of an etcd: keys, leases, members, and the fates of requests.

use std::sync::Arc;

use crate::etcd::api::{Event, ResponseHeader};
use parking_lot::{Mutex, MutexGuard};
use proto::host::tasks::Tasks;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::fate::{Fate, Kind};
use super::keys::{Keys, Span, refusal};
use super::leases::Leases;

/// Draws the fate of a request.
type Fates = Box<dyn FnMut(Kind) -> Fate + Send>;
/// Is told each change.
type Observer = Box<dyn FnMut(&Event) + Send>;

/// An etcd. Clones are the same one.
#[derive(Clone)]
pub struct Etcd {
    state: Arc<Mutex<State>>,
    /// Told with each change of keys or members.
    changed: watch::Sender<()>,
    pub(super) tasks: Tasks,
}

pub(super) struct State {
    pub(super) keys: Keys,
    pub(super) leases: Leases,
    /// By member: cancelled while it is cut off.
    cut: Vec<CancellationToken>,
    space: Space,
    fates: Fates,
    observer: Observer,
    /// The last revision that the observer was told.
    observed: i64,
}

/// The space in the database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Enough,
    /// The next change is done, but answered as if it was not. Real etcd checks the space before a
    /// transaction, and refuses afterwards.
    ForOne,
    None,
}

impl Etcd {
    /// One of some members, whose tasks are of this group. Nothing goes wrong at first.
    pub fn new(members: usize, tasks: Tasks) -> Self {
        let state = State {
            keys: Keys::default(),
            leases: Leases::default(),
            cut: (0..members).map(|_| CancellationToken::new()).collect(),
            space: Space::Enough,
            fates: Box::new(|_| Fate::Done),
            observer: Box::new(|_| ()),
            observed: 0,
        };
        let state = Arc::new(Mutex::new(state));
        Self { state, changed: watch::Sender::new(()), tasks }
    }

    /// From now on each request has the fate that this says.
    pub fn fates(&self, fates: impl FnMut(Kind) -> Fate + Send + 'static) {
        self.lock().fates = Box::new(fates);
    }

    /// From now on this is told each change when it is made.
    pub fn observe(&self, observer: impl FnMut(&Event) + Send + 'static) {
        self.lock().observer = Box::new(observer);
    }

    /// Cuts a member off from everybody, or joins it again. Without most of its members etcd does
    /// nothing, and no lease ends.
    pub fn cut(&self, member: usize, is_cut: bool) {
        let mut state = self.lock();
        let had_quorum = state.has_quorum();
        if let Some(cut) = state.cut.get_mut(member) {
            if is_cut {
                cut.cancel();
            } else if cut.is_cancelled() {
                *cut = CancellationToken::new();
            }
        }
        if state.has_quorum() && !had_quorum {
            state.leases.begin_anew();
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// True if a member is cut off.
    pub fn is_cut(&self, member: usize) -> bool {
        self.member(member).is_cancelled()
    }

    /// Takes one more change, and no other, as when a database gets full; or takes them again.
    pub fn fill(&self, is_full: bool) {
        self.lock().space = if is_full { Space::ForOne } else { Space::Enough };
    }

    /// Forgets all that was before the last revision.
    pub fn compact(&self) {
        let mut state = self.lock();
        let last = state.keys.revision();
        // It fails if it was done already.
        let _ = state.keys.compact(last);
    }

    /// All leases.
    pub fn leases(&self) -> Vec<i64> {
        self.lock().leases.ids()
    }

    /// The lease of a key, if it has one.
    pub fn lease_of(&self, key: &[u8]) -> Option<i64> {
        self.lock().keys.get(key).map(|kv| kv.lease).filter(|lease| *lease != 0)
    }

    /// Ends a lease before its time, with all its keys.
    pub fn end_lease(&self, id: i64) {
        self.lock().end_lease(id);
        self.changed.send_replace(());
    }

    /// A key's value.
    pub fn value(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.lock().keys.get(key).map(|kv| kv.value.clone())
    }

    /// Deletes all keys.
    pub fn lose(&self) {
        let mut state = self.lock();
        let all = Span::new(&[0], &[0]);
        for key in state.keys.names(&all) {
            state.leases.attach(&key, 0);
            state.keys.delete(&key);
        }
        state.keys.commit();
        drop(state);
        self.changed.send_replace(());
    }

    /// The state, in which no lease is over.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        if state.has_quorum() {
            for id in state.leases.over() {
                state.end_lease(id);
                self.changed.send_replace(());
            }
        }
        state
    }

    /// Each change of keys or members from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// When the next lease ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let state = self.lock();
        state.leases.next_end().filter(|_| state.has_quorum())
    }

    /// Cancelled when this member is cut off.
    pub(super) fn member(&self, member: usize) -> CancellationToken {
        let cut = self.lock().cut.get(member).cloned();
        cut.unwrap_or_default()
    }

    /// Does something as its fate wants. What is begun goes on though nobody waits for it.
    pub(super) async fn submit<T: Send + 'static>(
        &self,
        kind: Kind,
        act: impl FnOnce(&mut State) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let fate = (self.lock().fates)(kind);
        let done = fate.done_after().map(|delay| {
            let (told, done) = tokio::sync::oneshot::channel();
            let etcd = self.clone();
            // Nobody hears of it if the caller has left.
            let run = async move {
                tokio::time::sleep(delay).await;
                let _ = told.send(etcd.act(kind, act));
            };
            self.tasks.spawn_until_stop("request", run);
            done
        });
        match (fate, done) {
            (Fate::Failed, _) => Err(lost_leader()),
            (Fate::DoneAndFailed, Some(done)) => {
                let _ = done.await;
                Err(lost_leader())
            }
            (Fate::Done | Fate::Late(_), Some(done)) => {
                done.await.unwrap_or_else(|_| Err(lost_leader()))
            }
            (Fate::Slow(time), Some(done)) => {
                let answer = done.await.unwrap_or_else(|_| Err(lost_leader()));
                tokio::time::sleep(time).await;
                answer
            }
            (Fate::Lost | Fate::Unheard, _) | (_, None) => std::future::pending().await,
        }
    }

    fn act<T>(
        &self,
        kind: Kind,
        act: impl FnOnce(&mut State) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let mut state = self.lock();
        if !state.has_quorum() {
            return Err(refusal(Code::Unavailable, "no leader"));
        }
        let is_too_much = kind == Kind::Write && state.space != Space::Enough;
        let full = || refusal(Code::ResourceExhausted, "mvcc: database space exceeded");
        if is_too_much && state.space == Space::None {
            return Err(full());
        }
        let before = state.keys.revision();
        let answer = act(&mut state);
        state.keys.commit();
        if is_too_much {
            state.space = Space::None;
        }
        let changed = state.keys.revision() > before;
        state.tell_observer();
        drop(state);
        if changed {
            self.changed.send_replace(());
        }
        if is_too_much { Err(full()) } else { answer }
    }
}

impl State {
    /// True if most members can talk to each other.
    pub(super) fn has_quorum(&self) -> bool {
        let there = self.cut.iter().filter(|cut| !cut.is_cancelled()).count();
        there * 2 > self.cut.len()
    }

    fn tell_observer(&mut self) {
        let all = Span::new(&[0], &[0]);
        let news = self.keys.events(self.observed + 1, &all);
        self.observed = self.keys.revision();
        news.iter().flat_map(|(_, events)| events).for_each(|event| (self.observer)(event));
    }

    /// What begins each answer.
    pub(super) fn header(&self) -> Option<ResponseHeader> {
        let revision = self.keys.revision();
        Some(ResponseHeader { cluster_id: 1, member_id: 1, revision, raft_term: 1 })
    }

    /// Ends a lease, with all its keys.
    pub(super) fn end_lease(&mut self, id: i64) -> bool {
        let Some(keys) = self.leases.end(id) else { return false };
        keys.iter().for_each(|key| self.keys.delete(key));
        self.keys.commit();
        true
    }
}

/// Whether the request was done is not known.
fn lost_leader() -> Status {
    refusal(Code::Unavailable, "request timed out, possibly due to previous leader failure")
}
