//! The calls in flight and the totals of those that ended, for operators.
//!
//! A guard removes its call when it is dropped, however the call ends. The number of calls here is
//! therefore bounded by what the fronts admit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Response;
use proto::csi::Key;
use proto::http2::body::Body;
use proto::http2::busy_poll;
use proto::http2::busy_poll::BusyPoll;
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;
use tonic::Code;

use crate::telemetry::metrics::{Hop, Metrics};

/// The method name of a call that is no CSI RPC.
pub const UNKNOWN: &str = "unknown";
/// The number of characters kept of a call's subject; an id may have thousands.
const SHOWN: usize = 256;

/// All calls in flight.
#[derive(Default)]
pub struct Calls {
    /// The counters and gauges of the whole program.
    pub metrics: Metrics,
    /// Keeps the program polling for the next call.
    pub busy_poll: Arc<BusyPoll>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    /// Ordered by number: the oldest call comes first.
    running: BTreeMap<u64, Arc<Running>>,
    totals: BTreeMap<DriverName, Totals>,
}

/// Totals of a driver's calls since this csi-cloud started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Calls answered.
    pub calls: u64,
    /// Calls answered with another code than OK.
    pub failed: u64,
    /// The sum of their durations.
    pub time: Duration,
}

/// One call in flight.
pub struct Running {
    calls: Arc<Calls>,
    /// The RPC method, or [`UNKNOWN`].
    pub rpc: &'static str,
    /// The driver of the front.
    pub driver: DriverName,
    /// The time of arrival.
    pub begun: Instant,
    progress: Mutex<Progress>,
}

/// The progress of a call.
#[derive(Clone, Default)]
pub struct Progress {
    /// The first 256 characters of the call's id or name; empty if it has none.
    pub subject: String,
    /// The node that the call was last sent to.
    pub node: Option<NodeName>,
    /// The current stage.
    pub stage: Stage,
}

impl Progress {
    /// True if the first 256 characters of the call's subject and of `text` are equal.
    pub fn is_about(&self, text: &str) -> bool {
        !self.subject.is_empty() && self.subject.chars().eq(text.chars().take(SHOWN))
    }
}

/// The stage of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// At the front: the call is read, routed, or its outcome is recorded.
    #[default]
    Front,
    /// On a link, without an answer yet.
    Sent,
    /// The link was lost; the call is sent again on the node's next link.
    Waiting,
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; 3] = [Self::Front, Self::Sent, Self::Waiting];

    /// The name in the admin API and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Front => "front",
            Self::Sent => "sent",
            Self::Waiting => "waiting",
        }
    }
}

/// Guards a call in flight: the call is removed when this is dropped.
pub struct Ongoing {
    number: u64,
    running: Arc<Running>,
    /// The code sent to the caller. If dropped unset, the caller cancelled.
    code: Code,
    _in_flight: busy_poll::InFlight,
}

impl Calls {
    /// Registers a call that has arrived.
    #[must_use]
    pub fn begin(self: Arc<Self>, rpc: &'static str, driver: &DriverName) -> Ongoing {
        let in_flight = self.busy_poll.begin();
        let running = Arc::new(Running {
            calls: self.clone(),
            rpc,
            driver: driver.clone(),
            begun: Instant::now(),
            progress: Mutex::default(),
        });
        let mut kept = self.kept();
        let number = kept.next;
        kept.next += 1;
        kept.running.insert(number, running.clone());
        Ongoing { number, running, code: Code::Cancelled, _in_flight: in_flight }
    }

    /// The calls in flight by number, the oldest first.
    pub fn running(&self) -> Vec<(u64, Arc<Running>)> {
        self.kept().running.iter().map(|(number, call)| (*number, call.clone())).collect()
    }

    /// Totals of ended calls by driver.
    pub fn totals(&self) -> BTreeMap<DriverName, Totals> {
        self.kept().totals.clone()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ongoing {
    /// The call itself, for dispatch.
    pub fn running(&self) -> Arc<Running> {
        self.running.clone()
    }

    /// Sets the code sent to the caller. A stream ends here when its answer begins.
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
    /// The current progress.
    pub fn progress(&self) -> Progress {
        self.lock().clone()
    }

    /// Sets the call's subject.
    pub(crate) fn is_about(&self, key: &Key) {
        let subject = match key {
            Key::Create { name, .. } | Key::Snapshot { name, .. } => name,
            Key::Home(id) | Key::Delete(id) | Key::Node(Some(id)) => id.text(),
            Key::Local | Key::All | Key::Capacity(_) | Key::Node(None) => return,
        };
        self.lock().subject = subject.chars().take(SHOWN).collect();
    }

    /// Counts a node that the call did not wait for.
    pub(crate) fn was_slow(&self) {
        self.calls.metrics.slow(&self.driver);
    }

    /// Marks the call as sent to a node, until the guard is dropped.
    pub(crate) fn sent(&self, node: &NodeName) -> Sent<'_> {
        let mut progress = self.lock();
        progress.node = Some(node.clone());
        progress.stage = Stage::Sent;
        Sent { running: self, begun: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guards a call that is on its way to a node.
pub(crate) struct Sent<'a> {
    running: &'a Running,
    begun: Instant,
}

/// Guards a call that waits for its node's next link.
pub(crate) struct Waiting<'a>(&'a Running);

impl Sent<'_> {
    /// Marks the call as waiting for a link, until the guard is dropped.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.running.lock().stage = Stage::Waiting;
        Waiting(self.running)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().stage = Stage::Sent;
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Running { calls, rpc, driver, .. } = self.running;
        self.running.lock().stage = Stage::Front;
        calls.metrics.passed(Hop::Link, rpc, driver, self.begun.elapsed());
    }
}

/// The status code of an answer; OK if the answer is still streaming.
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
