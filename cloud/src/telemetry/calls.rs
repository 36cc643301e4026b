//! The calls in flight, so that an operator sees what hangs and where, and what came of those that ended.
//!
//! Each call is here from its request to its answer, however that comes about: a guard that is dropped takes it
//! out. So there are never more than the fronts answer at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Response;
use proto::csi::Key;
use proto::http2::busy_poll;
use proto::http2::busy_poll::BusyPoll;
use proto::http2::forward::Body;
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;
use tonic::Code;

use crate::telemetry::metrics::{Hop, Metrics};

/// The method of a call that is no RPC of CSI.
pub const UNKNOWN: &str = "unknown";
/// What is shown of what a call is about, in characters; an id may have thousands.
const SHOWN: usize = 256;

/// All calls in flight.
#[derive(Default)]
pub struct Calls {
    /// What is counted of them, and all else.
    pub metrics: Metrics,
    /// Whether the program stays awake for the next one.
    pub awake: Arc<BusyPoll>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    /// By number, so the oldest comes first.
    running: BTreeMap<u64, Arc<Running>>,
    totals: BTreeMap<DriverName, Totals>,
}

/// What came of a driver's calls since this csi-cloud began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many were answered.
    pub calls: u64,
    /// How many of them with another code than OK.
    pub failed: u64,
    /// How long they took altogether.
    pub time: Duration,
}

/// One call in flight.
pub struct Running {
    calls: Arc<Calls>,
    /// Its RPC method, or [`UNKNOWN`].
    pub rpc: &'static str,
    /// Whose front it is at.
    pub driver: DriverName,
    /// When it call.
    pub begun: Instant,
    progress: Mutex<Progress>,
}

/// How far a call got.
#[derive(Clone, Default)]
pub struct Progress {
    /// The id or name that it is about, its first 256 characters; empty if it is about none.
    pub subject: String,
    /// The node that it was sent to last.
    pub node: Option<NodeName>,
    /// Where it is.
    pub stage: Stage,
}

impl Progress {
    /// Whether the call is about this id or name, or one with the same first 256 characters.
    pub fn is_about(&self, text: &str) -> bool {
        !self.subject.is_empty() && self.subject.chars().eq(text.chars().take(SHOWN))
    }
}

/// Where a call is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// At the front: it is being read, decided, or what came of it is being kept.
    #[default]
    Front,
    /// On a link; its answer has not come.
    Sent,
    /// Its link was lost; it is sent again on the next one.
    Waiting,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Front, Self::Sent, Self::Waiting];

    /// Its name, in answers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Front => "front",
            Self::Sent => "sent",
            Self::Waiting => "waiting",
        }
    }
}

/// Keeps a call among those in flight until it is dropped.
pub struct Ongoing {
    number: u64,
    running: Arc<Running>,
    /// What its caller was told. Dropped before that, it was the caller who left.
    code: Code,
    _awake: busy_poll::InFlight,
}

impl Calls {
    /// A call has come in.
    #[must_use]
    pub fn begin(self: Arc<Self>, rpc: &'static str, driver: &DriverName) -> Ongoing {
        let awake = self.awake.begin();
        let (driver, begun, progress) = (driver.clone(), Instant::now(), Mutex::default());
        let running = Arc::new(Running { calls: self.clone(), rpc, driver, begun, progress });
        let mut kept = self.kept();
        let number = kept.next;
        kept.next += 1;
        kept.running.insert(number, running.clone());
        Ongoing { number, running, code: Code::Cancelled, _awake: awake }
    }

    /// The calls in flight with their numbers, the oldest first.
    pub fn running(&self) -> Vec<(u64, Arc<Running>)> {
        self.kept().running.iter().map(|(number, call)| (*number, call.clone())).collect()
    }

    /// What came of the calls that ended, by driver.
    pub fn totals(&self) -> BTreeMap<DriverName, Totals> {
        self.kept().totals.clone()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ongoing {
    /// The call, for those who carry it out.
    pub fn running(&self) -> Arc<Running> {
        self.running.clone()
    }

    /// Its caller is told this. A stream ends here when its answer begins.
    pub fn ended(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        let Running { calls, rpc, driver, begun, .. } = &*self.running;
        let time = begun.elapsed();
        calls.metrics.answered(rpc, driver, self.code);
        calls.metrics.passed(Hop::Front, rpc, driver, time);
        let mut kept = calls.kept();
        kept.running.remove(&self.number);
        if !kept.totals.contains_key(driver) {
            kept.totals.insert(driver.clone(), Totals::default());
        }
        if let Some(totals) = kept.totals.get_mut(driver) {
            totals.calls += 1;
            totals.failed += u64::from(self.code != Code::Ok);
            totals.time += time;
        }
    }
}

impl Running {
    /// How far it got.
    pub fn progress(&self) -> Progress {
        self.told().clone()
    }

    /// It is about this.
    pub(crate) fn is_about(&self, key: &Key) {
        let subject = match key {
            Key::Create { name, .. } | Key::Snapshot { name, .. } => name,
            Key::Home(id) | Key::Delete(id) | Key::Node(Some(id)) => id.text(),
            Key::Local | Key::All | Key::Capacity(_) | Key::Node(None) => return,
        };
        self.told().subject = subject.chars().take(SHOWN).collect();
    }

    /// A node that it asked was not waited for.
    pub(crate) fn was_slow(&self) {
        self.calls.metrics.slow(&self.driver);
    }

    /// It goes to a node; it is at the front again when the guard is dropped.
    pub(crate) fn sent(&self, node: &NodeName) -> Sent<'_> {
        let mut told = self.told();
        (told.node, told.stage) = (Some(node.clone()), Stage::Sent);
        Sent { running: self, begun: Instant::now() }
    }

    fn told(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that is on its way to a node.
pub(crate) struct Sent<'a> {
    running: &'a Running,
    begun: Instant,
}

/// A call whose link was lost.
pub(crate) struct Waiting<'a>(&'a Running);

impl Sent<'_> {
    /// Its link was lost; it is on the next one when the guard is dropped.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.running.told().stage = Stage::Waiting;
        Waiting(self.running)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.told().stage = Stage::Sent;
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Running { calls, rpc, driver, .. } = self.running;
        self.running.told().stage = Stage::Front;
        calls.metrics.passed(Hop::Link, rpc, driver, self.begun.elapsed());
    }
}

/// The code of an answer; OK for one that is still on its way.
pub(crate) fn code(answer: &Response<Body>) -> Code {
    const STATUS: &str = "grpc-status";
    let trailers = match answer.body() {
        Body::Whole { trailers: Some(trailers), .. } => trailers.get(STATUS),
        Body::Whole { trailers: None, .. } | Body::Empty | Body::Passing { .. } => None,
    };
    let status = trailers.or_else(|| answer.headers().get(STATUS));
    status.map_or(Code::Ok, |status| Code::from_bytes(status.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use proto::csi::Id;
    use proto::http2::forward::Answer;

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    fn stage(calls: &Calls) -> Stage {
        calls.running()[0].1.progress().stage
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_seen_from_its_request_to_its_answer() {
        let calls = Arc::new(Calls::default());
        let ongoing = calls.clone().begin("CreateVolume", &driver());
        let running = ongoing.running();
        running.is_about(&Key::Home(Id::Volume("é".repeat(1000))));
        assert_eq!(running.progress().subject.chars().count(), SHOWN);
        assert_eq!(stage(&calls), Stage::Front);
        let sent = running.sent(&"n1".parse().unwrap());
        assert_eq!(stage(&calls), Stage::Sent);
        let waiting = sent.waiting();
        assert_eq!(stage(&calls), Stage::Waiting);
        tokio::time::advance(Duration::from_secs(3)).await;
        drop(waiting);
        assert_eq!(stage(&calls), Stage::Sent);
        drop(sent);
        assert_eq!(stage(&calls), Stage::Front);
        assert_eq!(running.progress().node.unwrap().as_str(), "n1");
        ongoing.ended(Code::Ok);
        assert!(calls.running().is_empty());
        let totals = Totals { calls: 1, failed: 0, time: Duration::from_secs(3) };
        assert_eq!(calls.totals(), BTreeMap::from([(driver(), totals)]));
    }

    #[test]
    fn a_caller_that_leaves_takes_its_call_with_it() {
        let calls = Arc::new(Calls::default());
        drop(calls.clone().begin("CreateVolume", &driver()));
        assert!(calls.running().is_empty());
        assert_eq!(calls.totals()[&driver()].failed, 1);
    }

    #[test]
    fn the_oldest_call_comes_first() {
        let calls = Arc::new(Calls::default());
        let first = calls.clone().begin("CreateVolume", &driver());
        let _second = calls.clone().begin("DeleteVolume", &driver());
        let _third = calls.clone().begin("ListVolumes", &driver());
        drop(first);
        let rpcs: Vec<_> = calls.running().iter().map(|(_, call)| call.rpc).collect();
        assert_eq!(rpcs, ["DeleteVolume", "ListVolumes"]);
    }

    #[test]
    fn the_code_is_found_where_it_stands() {
        assert_eq!(
            code(&proto::http2::forward::failure(&Error::UnknownMethod("/x".into()))),
            Code::Unimplemented
        );
        assert_eq!(code(&Answer::of(bytes::Bytes::new()).response()), Code::Ok);
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("5"));
        assert_eq!(
            code(&Response::new(Body::Whole { data: None, trailers: Some(trailers) })),
            Code::NotFound
        );
    }
}
