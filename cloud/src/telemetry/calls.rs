//! The calls in flight and the totals of those that ended, for operators. Each call goes from here
//! to [`Ended`] at its end.
//!
//! A guard removes its call when it is dropped, however the call ends. The number of calls here is
//! therefore bounded by what the fronts admit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::{HeaderMap, Response};
use parking_lot::{Mutex, MutexGuard};
use proto::csi::status::ToStatus;
use proto::csi::{Id, Key};
use proto::host::clock;
use proto::http2::body::Body;
use proto::http2::busy_poll;
use proto::http2::busy_poll::BusyPoll;
use proto::http2::call_id::CallId;
use proto::http2::forward::STATUS;
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;
use tonic::{Code, Status};
use tracing::info;

use crate::error::Error;
use crate::telemetry::ended::{CallEnd, Ended, EndedCall, Outcome, SHOWN, shown};
use crate::telemetry::metrics::{Hop, Metrics};

/// The method name of a call that is no CSI RPC.
pub const UNKNOWN: &str = "unknown";
/// A call that takes longer hangs: it is told of in Kubernetes, and explains why something waits.
///
/// It is shorter than every sidecar's deadline in `deploy/`.
pub const LONG: Duration = Duration::from_secs(20);
/// The message kept of a call whose caller left.
const LEFT: &str = "the caller left before the answer; at its node, the call goes on";

/// All calls in flight.
#[derive(Default)]
pub struct Calls {
    /// The counters and gauges of the whole program.
    pub metrics: Metrics,
    /// Keeps the program polling for the next call.
    pub busy_poll: Arc<BusyPoll>,
    /// The last calls that ended.
    pub ended: Ended,
    kept: Mutex<CallTable>,
}

#[derive(Default)]
struct CallTable {
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
    /// Its id, as in the logs of both programs.
    pub id: CallId,
    /// The time of arrival.
    pub begun: Instant,
    /// The number of times that it may have been sent to a node.
    attempts: AtomicU32,
    progress: Mutex<Progress>,
}

/// The progress of a call.
#[derive(Clone, Default)]
pub struct Progress {
    /// The first 256 characters of the call's id or name; empty if it has none.
    pub subject: String,
    /// The volume of which a snapshot is made; of a group's, the first one. `None` for an id that
    /// is longer than 256 bytes, which CSI forbids.
    pub source: Option<String>,
    /// The claim that a volume is created for, as namespace and name, if the provisioner named it.
    pub claim: Option<String>,
    /// The node that the call was last sent to, or that may not have it.
    pub node: Option<NodeName>,
    /// The current stage.
    pub stage: Stage,
}

impl Progress {
    /// True if the first 256 characters of the call's subject and of `text` are equal.
    pub fn is_about(&self, text: &str) -> bool {
        !self.subject.is_empty() && self.subject == shown(text)
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
    /// False until its end is counted. If dropped before, the caller cancelled.
    is_over: bool,
    _in_flight: busy_poll::InFlight,
}

impl Calls {
    /// Registers a call that has arrived.
    #[must_use]
    pub fn begin(self: Arc<Self>, rpc: &'static str, driver: &DriverName, id: CallId) -> Ongoing {
        let in_flight = self.busy_poll.begin();
        let running = Arc::new(Running {
            calls: self.clone(),
            rpc,
            driver: driver.clone(),
            id,
            begun: Instant::now(),
            attempts: AtomicU32::new(0),
            progress: Mutex::default(),
        });
        let mut kept = self.kept();
        let number = kept.next;
        kept.next += 1;
        kept.running.insert(number, running.clone());
        Ongoing { number, running, is_over: false, _in_flight: in_flight }
    }

    /// The calls in flight by number, the oldest first.
    pub fn running(&self) -> Vec<(u64, Arc<Running>)> {
        self.kept().running.iter().map(|(number, call)| (*number, call.clone())).collect()
    }

    /// Totals of ended calls by driver.
    pub fn totals(&self) -> BTreeMap<DriverName, Totals> {
        self.kept().totals.clone()
    }

    /// Removes a call from those in flight, and counts it.
    fn remove(&self, number: u64, driver: &DriverName, code: Code, time: Duration) {
        let mut kept = self.kept();
        kept.running.remove(&number);
        if !kept.totals.contains_key(driver) {
            kept.totals.insert(driver.clone(), Totals::default());
        }
        if let Some(totals) = kept.totals.get_mut(driver) {
            totals.calls += 1;
            totals.failed += u64::from(code != Code::Ok);
            totals.time += time;
        }
    }

    fn kept(&self) -> MutexGuard<'_, CallTable> {
        self.kept.lock()
    }
}

impl Ongoing {
    /// The call itself, for dispatch.
    pub fn running(&self) -> Arc<Running> {
        self.running.clone()
    }

    /// Ends the call with its outcome. Returns a failure that the log has not had in the last
    /// minute. A stream ends here when its answer begins.
    pub fn ended(mut self, outcome: &Outcome) -> Option<Arc<EndedCall>> {
        self.end(outcome)
    }

    fn end(&mut self, outcome: &Outcome) -> Option<Arc<EndedCall>> {
        self.is_over = true;
        let Running { calls, rpc, driver, begun, id, attempts, progress } = &*self.running;
        let now = Instant::now();
        let duration = now.saturating_duration_since(*begun);
        calls.metrics.answered(rpc, driver, outcome.code);
        calls.metrics.passed(Hop::Front, rpc, driver, duration);
        calls.remove(self.number, driver, outcome.code, duration);
        let progress = progress.lock();
        calls.ended.add(CallEnd {
            at: clock::at(now),
            id: *id,
            rpc,
            driver,
            node: progress.node.clone(),
            subject: &progress.subject,
            source: progress.source.as_deref(),
            claim: progress.claim.as_deref(),
            outcome,
            duration,
            attempts: attempts.load(Ordering::Relaxed),
        })
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let left = self.end(&Outcome { code: Code::Cancelled, message: LEFT.into() });
        if let Some(EndedCall { id, rpc, driver, node, subject, .. }) = left.as_deref() {
            let node = node.as_ref().map(NodeName::as_str);
            let claim = self.running.lock().claim.clone();
            info!(call = %id, rpc, %driver, node, subject = &**subject, claim, "{LEFT}");
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
        let source = match key {
            Key::Snapshot { volumes, .. } => volumes.first().map(Id::text),
            _ => None,
        };
        let mut progress = self.lock();
        progress.subject = shown(subject).to_owned();
        progress.source = source.filter(|id| id.len() <= SHOWN).map(str::to_owned);
    }

    /// Sets the claim that the call creates a volume for.
    pub(crate) fn is_for(&self, namespace: &str, name: &str) {
        self.lock().claim = Some(format!("{namespace}/{name}"));
    }

    /// Counts an attempt, which may leave csi-cloud now.
    pub(crate) fn attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a node that the call did not wait for.
    pub(crate) fn was_slow(&self) {
        self.calls.metrics.slow(&self.driver);
    }

    /// Notes the age of the oldest answer that was used instead of a question to its node.
    pub(crate) fn rested_on(&self, age: Duration) {
        self.calls.metrics.remembered(&self.driver, age);
    }

    /// Marks the call as sent to a node, until the guard is dropped.
    pub(crate) fn sent(&self, node: &NodeName) -> Sent<'_> {
        let mut progress = self.lock();
        progress.node = Some(node.clone());
        progress.stage = Stage::Sent;
        Sent { running: self, begun: Instant::now() }
    }

    /// Notes the node for which csi-cloud refused the call by itself.
    pub(crate) fn refused_for(&self, node: &NodeName) {
        self.lock().node = Some(node.clone());
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock()
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

/// The outcome for the caller. An answer that is still streaming counts as OK.
pub(crate) fn outcome(result: &Result<Response<Body>, Error>) -> Outcome {
    match result {
        Ok(answer) => answered(answer),
        Err(error) => Outcome { code: error.code(), message: error.chain() },
    }
}

fn answered(answer: &Response<Body>) -> Outcome {
    let code = |headers: &HeaderMap| {
        headers.get(&STATUS).map(|status| Code::from_bytes(status.as_bytes()))
    };
    let trailers = match answer.body() {
        Body::Whole { trailers, .. } => trailers.as_ref(),
        Body::Empty | Body::Passing { .. } => None,
    };
    let found = trailers.into_iter().chain([answer.headers()]).find_map(|headers| {
        let code = code(headers)?;
        Some((code, headers))
    });
    match found {
        None | Some((Code::Ok, _)) => Outcome { code: Code::Ok, message: String::new() },
        Some((code, headers)) => {
            let status = Status::from_header_map(headers);
            let message = status.map(|status| status.message().to_owned());
            Outcome { code, message: message.unwrap_or_default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use proto::csi::Id;
    use proto::http2::forward::Answer;

    const ID: u128 = 7;

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    fn stage(calls: &Calls) -> Stage {
        calls.running()[0].1.progress().stage
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_seen_from_its_request_to_its_answer() {
        let calls = Arc::new(Calls::default());
        let ongoing = calls.clone().begin("CreateVolume", &driver(), ID.into());
        let running = ongoing.running();
        running.is_about(&Key::Home(Id::Volume("é".repeat(1000))));
        assert_eq!(running.progress().subject.chars().count(), 256);
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
        running.attempt();
        running.attempt();
        assert!(ongoing.ended(&Outcome { code: Code::Ok, message: String::new() }).is_none());
        assert!(calls.running().is_empty());
        let totals = Totals { calls: 1, failed: 0, time: Duration::from_secs(3) };
        assert_eq!(calls.totals(), BTreeMap::from([(driver(), totals)]));
    }

    #[test]
    fn a_caller_that_leaves_takes_its_call_with_it() {
        let calls = Arc::new(Calls::default());
        drop(calls.clone().begin("CreateVolume", &driver(), ID.into()));
        assert!(calls.running().is_empty());
        assert_eq!(calls.totals()[&driver()].failed, 1);
    }

    #[test]
    fn the_oldest_call_comes_first() {
        let calls = Arc::new(Calls::default());
        let first = calls.clone().begin("CreateVolume", &driver(), ID.into());
        let _second = calls.clone().begin("DeleteVolume", &driver(), ID.into());
        let _third = calls.clone().begin("ListVolumes", &driver(), ID.into());
        drop(first);
        let rpcs: Vec<_> = calls.running().iter().map(|(_, call)| call.rpc).collect();
        assert_eq!(rpcs, ["DeleteVolume", "ListVolumes"]);
    }

    #[test]
    fn code_and_message_are_found_where_they_stand() {
        let found = |result: &Result<Response<Body>, Error>| {
            let Outcome { code, message } = outcome(result);
            (code, message)
        };
        let unknown = || Error::UnknownMethod("/x".into());
        let message = unknown().chain();
        let failed = (Code::Unimplemented, message);
        assert_eq!(found(&Ok(proto::http2::forward::failure(&unknown()))), failed);
        assert_eq!(found(&Err(unknown())), failed);
        let ok = (Code::Ok, String::new());
        assert_eq!(found(&Ok(Answer::of(bytes::Bytes::new()).response())), ok);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("5"));
        let answer = |trailers| Ok(Response::new(Body::Whole { data: None, trailers }));
        let not_found = |message: &str| (Code::NotFound, message.to_owned());
        assert_eq!(found(&answer(Some(trailers.clone()))), not_found(""));
        trailers.insert("grpc-message", http::HeaderValue::from_static("100%25 gone"));
        assert_eq!(found(&answer(Some(trailers))), not_found("100% gone"));
    }
}
