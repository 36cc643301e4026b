//! Calls of a shared driver that run at a node or are in doubt. A call in doubt was sent there, and
//! its outcome is unknown.
//!
//! Such a call may still begin for `BEGIN`, so another one about the same must not go to a newly
//! elected node. An edge that does not know this time may begin until the deadline. The table is in
//! memory. A csi-cloud that begins assumes that any call may be in doubt at the nodes elected
//! lately. Creates have durable intents instead.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::control::machine::MachineId;
use proto::csi::Id;
use proto::names::NodeName;
use tokio::time::Instant;

use crate::state::election::HOLD;
use crate::state::record::Elected;

/// How long after it was sent a call may begin at a node. Then it may go to another one.
pub(crate) const BEGIN: Duration = Duration::from_secs(30);
/// The part of [`BEGIN`] that a call may take to its edge. A link that is silent for so long has
/// ended; the edge counts the rest from the call's arrival.
const TRANSIT: Duration = Duration::from_secs(15);

/// The time that an edge has to begin a call that may begin until then, if it gets it at once.
pub(crate) fn for_edge(begins_by: Instant) -> Instant {
    begins_by.checked_sub(TRANSIT).unwrap_or(begins_by)
}

/// Where a call runs or may begin: the machine that a node was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallPlace {
    /// The node.
    pub(crate) node: NodeName,
    /// Its machine; `None` if it told none, or none is known any more.
    pub(crate) machine: Option<MachineId>,
}

impl CallPlace {
    /// A node on a machine that is not known any more.
    fn on_some_machine(node: &NodeName) -> Self {
        Self { node: node.clone(), machine: None }
    }

    /// True unless they are known to be two: different nodes, or different machines.
    fn is(&self, other: &Self) -> bool {
        let are_two = self.machine.zip(other.machine).is_some_and(|(this, other)| this != other);
        self.node == other.node && !are_two
    }
}

impl fmt::Display for CallPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}

/// Which ids calls are about, and at which node they run or may still begin.
#[derive(Default)]
pub(crate) struct InDoubt {
    calls: Mutex<Table>,
    /// The nodes that a previous csi-cloud used, and until when its calls may begin there.
    before: Mutex<Vec<(CallPlace, Instant)>>,
}

#[derive(Default)]
struct Table {
    /// The node of the calls about an id that run now, and their number.
    running: HashMap<Id, (CallPlace, usize)>,
    /// The node where calls about an id may begin, and until when.
    sent: HashMap<Id, (CallPlace, Instant)>,
}

/// Where another call about the same is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    /// It runs at this node.
    Runs(CallPlace),
    /// It may begin at this node, for so long.
    InDoubt(CallPlace, Duration),
}

/// A call that has its node. Until this is dropped, no call about the same goes to another node.
pub(crate) struct Settled<'a> {
    in_doubt: &'a InDoubt,
    about: Vec<Id>,
}

/// A call in flight. Its ids are in doubt if this is dropped without an answer.
pub(crate) struct InDoubtCall<'a> {
    in_doubt: &'a InDoubt,
    about: Vec<Id>,
    at: CallPlace,
    until: Instant,
}

impl InDoubt {
    /// Begins after another csi-cloud, or an earlier start, which elected this one last; `now` is
    /// in ms since 1970.
    pub(crate) fn begin_after(&self, elected: Option<&Elected>, now: u64) {
        let begun = Instant::now();
        let mut before = Vec::new();
        if let Some(Elected { node, before: earlier }) = elected {
            before.push((CallPlace::on_some_machine(node), begun + HOLD));
            for earlier in earlier {
                let left = Duration::from_millis(earlier.until.saturating_sub(now));
                before.push((CallPlace::on_some_machine(&earlier.node), begun + left.min(HOLD)));
            }
        }
        *self.before() = before;
    }

    fn before(&self) -> MutexGuard<'_, Vec<(CallPlace, Instant)>> {
        self.before.lock()
    }

    fn calls(&self) -> MutexGuard<'_, Table> {
        self.calls.lock()
    }

    /// Drops the doubt about nodes that an operator removed.
    pub(crate) fn forget(&self, is_removed: impl Fn(&NodeName) -> bool) {
        self.before().retain(|(at, _)| !is_removed(&at.node));
    }

    /// Gives a call about these ids to a node.
    ///
    /// # Errors
    /// Another call about one of them is at another node.
    pub(crate) fn begin(
        &self,
        about: Vec<Id>,
        place: &CallPlace,
    ) -> Result<Settled<'_>, Elsewhere> {
        let now = Instant::now();
        let mut calls = self.calls();
        if let Some(elsewhere) = calls.elsewhere(&about, place, now) {
            return Err(elsewhere);
        }
        if let Some((at, until)) = self.sent_before(&about, place, now) {
            return Err(Elsewhere::InDoubt(at, until.duration_since(now)));
        }
        for id in &about {
            calls.running.entry(id.clone()).or_insert_with(|| (place.clone(), 0)).1 += 1;
        }
        Ok(Settled { in_doubt: self, about })
    }

    fn sent_before(
        &self,
        about: &[Id],
        place: &CallPlace,
        now: Instant,
    ) -> Option<(CallPlace, Instant)> {
        // A create without an intent was sent nowhere.
        if about.iter().all(|id| matches!(id, Id::Name(..))) {
            return None;
        }
        let mut before = self.before();
        before.retain(|(_, until)| *until > now);
        before.iter().find(|(at, _)| !at.is(place)).cloned()
    }

    /// Notes that a call about these ids is sent to a node, where it may begin by this time, and
    /// not after its deadline.
    pub(crate) fn send(
        &self,
        about: Vec<Id>,
        at: CallPlace,
        deadline: Option<Instant>,
        begins_by: Option<Instant>,
    ) -> InDoubtCall<'_> {
        let until = deadline.into_iter().chain(begins_by).min();
        let until = until.unwrap_or_else(|| Instant::now() + HOLD);
        InDoubtCall { in_doubt: self, about, at, until }
    }
}

impl Table {
    fn elsewhere(&self, about: &[Id], place: &CallPlace, now: Instant) -> Option<Elsewhere> {
        about.iter().find_map(|id| {
            if let Some((at, _)) = self.running.get(id).filter(|(at, _)| !at.is(place)) {
                return Some(Elsewhere::Runs(at.clone()));
            }
            let (at, until) =
                self.sent.get(id).filter(|(at, until)| !at.is(place) && *until > now)?;
            Some(Elsewhere::InDoubt(at.clone(), until.duration_since(now)))
        })
    }
}

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        let mut calls = self.in_doubt.calls();
        for id in &self.about {
            let Some((_, count)) = calls.running.get_mut(id) else { continue };
            *count = count.saturating_sub(1);
            if *count == 0 {
                calls.running.remove(id);
            }
        }
    }
}

impl InDoubtCall<'_> {
    /// The call was answered: its outcome is known.
    pub(crate) fn answered(mut self) {
        self.about.clear();
    }
}

impl Drop for InDoubtCall<'_> {
    fn drop(&mut self) {
        if self.about.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut calls = self.in_doubt.calls();
        calls.sent.retain(|_, (_, until)| *until > now);
        for id in self.about.drain(..) {
            let (at, until) = calls.sent.entry(id).or_insert_with(|| (self.at.clone(), self.until));
            // An earlier call about the same may begin for longer.
            *until = if at.is(&self.at) { self.until.max(*until) } else { self.until };
            at.clone_from(&self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::Method;

    use super::*;
    use crate::state::record::Earlier;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn at(name: &str) -> CallPlace {
        CallPlace::on_some_machine(&node(name))
    }

    fn volume(id: &str) -> Vec<Id> {
        vec![Id::Volume(id.into())]
    }

    /// Where else a call is that keeps this one from its node.
    fn elsewhere(in_doubt: &InDoubt, about: &[Id], at: &str) -> Option<Elsewhere> {
        in_doubt.begin(about.to_vec(), &self::at(at)).err()
    }

    fn doubt(at: &str, left: Duration) -> Option<Elsewhere> {
        Some(Elsewhere::InDoubt(self::at(at), left))
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_answered_stays_where_it_was_until_its_deadline() {
        let in_doubt = InDoubt::default();
        let about = volume("v");
        let send = |seconds: u32| {
            in_doubt.send(about.clone(), at("n1"), Some(Instant::now() + SECOND * seconds), None)
        };
        send(60).answered();
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), None);
        drop(send(60));
        // One that may not begin for as long does not shorten it.
        drop(send(5));
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), doubt("n1", SECOND * 60));
        assert_eq!(elsewhere(&in_doubt, &about, "n1"), None, "there it is joined");
        assert_eq!(elsewhere(&in_doubt, &volume("w"), "n2"), None);
        tokio::time::advance(SECOND * 60).await;
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_a_time_to_begin_stays_no_longer_whatever_its_deadline() {
        let in_doubt = InDoubt::default();
        let about = volume("v");
        let begins_by = Some(Instant::now() + BEGIN);
        for deadline in [Some(Instant::now() + SECOND * 1200), None] {
            drop(in_doubt.send(about.clone(), at("n1"), deadline, begins_by));
            assert_eq!(elsewhere(&in_doubt, &about, "n2"), doubt("n1", BEGIN));
        }
        tokio::time::advance(BEGIN).await;
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), None);
        let begins_by = Some(Instant::now() + BEGIN);
        drop(in_doubt.send(about.clone(), at("n1"), Some(Instant::now() + SECOND), begins_by));
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), doubt("n1", SECOND), "its deadline ends it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_has_moved_is_another_place() {
        let in_doubt = InDoubt::default();
        let [board, spare] = ["board", "spare"].map(|own| {
            let machine = Some(MachineId::new(own));
            CallPlace { node: node("n1"), machine }
        });
        let about = volume("v");
        drop(in_doubt.send(about.clone(), board.clone(), Some(Instant::now() + SECOND), None));
        let elsewhere = |place: &CallPlace| in_doubt.begin(about.clone(), place).err();
        assert_eq!(elsewhere(&spare), Some(Elsewhere::InDoubt(board.clone(), SECOND)));
        assert_eq!(elsewhere(&board), None);
        assert_eq!(elsewhere(&at("n1")), None, "it does not tell its machine");
        tokio::time::advance(SECOND).await;
        assert_eq!(elsewhere(&spare), None);
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_call_runs_no_other_about_the_same_goes_to_another_node() {
        let in_doubt = InDoubt::default();
        let about = volume("v");
        let first = in_doubt.begin(about.clone(), &at("n1")).ok().unwrap();
        let second = in_doubt.begin(about.clone(), &at("n1")).ok().unwrap();
        let both = [volume("w"), about.clone()].concat();
        let runs = || Some(Elsewhere::Runs(at("n1")));
        assert_eq!(elsewhere(&in_doubt, &both, "n2"), runs());
        drop(first);
        tokio::time::advance(HOLD * 2).await;
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), runs(), "however long it takes");
        drop(second);
        assert_eq!(elsewhere(&in_doubt, &both, "n2"), None, "a refused one has left nothing");
        assert!(in_doubt.calls().running.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_earlier_csi_cloud_sent_may_be_about_anything_that_is_no_create() {
        let in_doubt = InDoubt::default();
        let first = Elected::first(node("n1"));
        in_doubt.begin_after(Some(&first), 0);
        let about = volume("v");
        let name = Id::Name(Method::CreateVolume, "pvc".into());
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), doubt("n1", HOLD));
        let both = [about.clone(), vec![name.clone()]].concat();
        assert_eq!(elsewhere(&in_doubt, &both, "n2"), doubt("n1", HOLD));
        assert_eq!(elsewhere(&in_doubt, &[name], "n2"), None, "its intent is durable");
        assert_eq!(elsewhere(&in_doubt, &[], "n2"), None, "lists and the like change nothing");
        assert_eq!(elsewhere(&in_doubt, &about, "n1"), None);
        in_doubt.forget(|at| *at == node("n2"));
        assert!(elsewhere(&in_doubt, &about, "n2").is_some());
        in_doubt.forget(|at| *at == node("n1"));
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), None);
        in_doubt.begin_after(Some(&first), 0);
        tokio::time::advance(HOLD).await;
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_nodes_that_an_earlier_csi_cloud_elected_lately_count_too() {
        let in_doubt = InDoubt::default();
        let about = volume("v");
        let second = Elected::first(node("n1")).followed_by(node("n2"), 5_000);
        let third = second.followed_by(node("n3"), 15_000);
        let until = |at: &str, until| Earlier { node: node(at), until };
        assert_eq!(third.before, [until("n1", 125_000), until("n2", 135_000)]);
        in_doubt.begin_after(Some(&third), 35_000);
        assert_eq!(elsewhere(&in_doubt, &about, "n3"), doubt("n1", SECOND * 90));
        tokio::time::advance(SECOND * 90).await;
        assert_eq!(elsewhere(&in_doubt, &about, "n3"), doubt("n2", SECOND * 10));
        tokio::time::advance(SECOND * 10).await;
        assert_eq!(elsewhere(&in_doubt, &about, "n3"), None);
        // One that is elected again is none of those before, and what is over is forgotten.
        let again = third.followed_by(node("n1"), 20_000);
        assert_eq!(again.before, [until("n2", 135_000), until("n3", 140_000)]);
        assert_eq!(third.followed_by(node("n4"), 999_000).before, [until("n3", 1_119_000)]);
        // A clock that was set back does not keep a node for ever.
        in_doubt.begin_after(Some(&second), 0);
        assert_eq!(elsewhere(&in_doubt, &about, "n2"), doubt("n1", HOLD));
    }
}
