//! The last calls of the Node service at this node's own fronts, for its operator.
//!
//! They do not pass csi-cloud, so its history has none of them. Kept in memory are the last 256.
//! Kubelets ask for statistics and health all the time, so only failures of these are kept. It uses
//! no other room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::csi::{DirectCall, Method, NodeStep};
use proto::host::clock;
use proto::host::plain::start;
use proto::http2::call_id::CallId;
use proto::names::DriverName;
use tokio::time::Instant;
use tonic::{Code, Status};

/// The calls that are kept.
const MOST: usize = 256;
/// The characters that are kept of a volume's id.
const MAX_VOLUME: usize = 256;
/// The longest message that is kept, in bytes; longer ones are cut.
const MAX_MESSAGE: usize = 512;

/// A call that ended.
///
/// Of its request it holds the volume's id alone, and so no secrets. Id and message come from
/// peers, so views escape them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedCall {
    /// The time at which it ended, in ms since 1970.
    pub at: u64,
    /// Its id, as in the log.
    pub id: CallId,
    /// Its method.
    pub method: Method,
    /// The driver of the front.
    pub driver: DriverName,
    /// The first 256 characters of its volume's id; empty if the request could not be read.
    pub volume: String,
    /// The code that its caller got. `Cancelled` if the caller left before.
    pub code: Code,
    /// The message that its caller got, at most 512 bytes.
    pub message: String,
    /// Its duration.
    pub duration: Duration,
}

/// The calls that ended; clones share them.
#[derive(Clone, Default)]
pub struct EndedCalls(Arc<Mutex<VecDeque<Arc<EndedCall>>>>);

impl EndedCalls {
    /// A call that begins now.
    pub fn begin(&self, id: CallId, method: Method, driver: DriverName) -> OngoingCall {
        OngoingCall {
            ended: self.clone(),
            begun: Instant::now(),
            id,
            method,
            driver,
            volume: String::new(),
            outcome: None,
        }
    }

    /// The calls, the newest first.
    pub fn latest(&self) -> Vec<Arc<EndedCall>> {
        self.lock().iter().rev().cloned().collect()
    }

    fn add(&self, call: EndedCall) {
        let mut kept = self.lock();
        if kept.len() == MOST {
            kept.pop_front();
        }
        kept.push_back(Arc::new(call));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<EndedCall>>> {
        self.0.lock()
    }
}

/// A call that has not ended. If it is dropped before, its caller has left.
pub struct OngoingCall {
    ended: EndedCalls,
    begun: Instant,
    id: CallId,
    method: Method,
    driver: DriverName,
    volume: String,
    outcome: Option<(Code, String)>,
}

impl OngoingCall {
    /// It is about this volume.
    pub fn is_about(&mut self, volume: &str) {
        self.volume = volume.chars().take(MAX_VOLUME).collect();
    }

    /// Its caller gets this status.
    pub fn ended(mut self, status: Option<Status>) {
        let status = status.unwrap_or_else(|| Status::unknown("the answer has no status"));
        let message = start(status.message(), MAX_MESSAGE).to_owned();
        self.outcome = Some((status.code(), message));
    }
}

impl Drop for OngoingCall {
    fn drop(&mut self) {
        let left = || (Code::Cancelled, "its caller left before the answer".to_owned());
        let (code, message) = self.outcome.take().unwrap_or_else(left);
        if code == Code::Ok && only_asks(self.method) {
            return;
        }
        self.ended.add(EndedCall {
            at: clock::now(),
            id: self.id,
            method: self.method,
            driver: self.driver.clone(),
            volume: std::mem::take(&mut self.volume),
            code,
            message,
            duration: self.begun.elapsed(),
        });
    }
}

/// True if the method changes nothing at the node.
fn only_asks(method: Method) -> bool {
    matches!(method.direct(), Some(DirectCall::Node(NodeStep::Stats | NodeStep::Health)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(calls: &EndedCalls, method: Method, volume: &str, status: Status) {
        let mut ongoing = calls.begin(7.into(), method, "d.example".parse().unwrap());
        ongoing.is_about(volume);
        ongoing.ended(Some(status));
    }

    fn volumes(calls: &EndedCalls) -> Vec<String> {
        calls.latest().iter().map(|call| call.volume.clone()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_calls_are_kept_and_come_first() {
        let calls = EndedCalls::default();
        let mut ongoing =
            calls.begin(7.into(), Method::NodeStageVolume, "d.example".parse().unwrap());
        ongoing.is_about("first");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(calls.latest().is_empty(), "it has not ended");
        ongoing.ended(Some(Status::not_found("no such volume")));
        let kept = calls.latest();
        let [first] = kept.as_slice() else { panic!("{kept:?}") };
        assert_eq!((first.code, &*first.message), (Code::NotFound, "no such volume"));
        assert_eq!((first.duration, &*first.volume), (Duration::from_secs(3), "first"));
        for number in 0..MOST {
            ends(&calls, Method::NodePublishVolume, &number.to_string(), Status::ok(""));
        }
        let kept = volumes(&calls);
        assert_eq!((kept.len(), &*kept[0], &*kept[MOST - 1]), (MOST, "255", "0"));
    }

    #[test]
    fn of_questions_only_failures_are_kept() {
        let calls = EndedCalls::default();
        for method in [Method::NodeGetVolumeStats, Method::NodeGetVolumeHealth] {
            ends(&calls, method, "well", Status::ok(""));
            ends(&calls, method, "ill", Status::internal("it cannot be read"));
        }
        ends(&calls, Method::NodeUnstageVolume, "unstaged", Status::ok(""));
        assert_eq!(volumes(&calls), ["unstaged", "ill", "ill"]);
    }

    #[test]
    fn a_caller_that_leaves_is_told_apart_and_texts_are_cut() {
        let calls = EndedCalls::default();
        drop(calls.begin(7.into(), Method::NodeStageVolume, "d.example".parse().unwrap()));
        assert_eq!(calls.latest()[0].code, Code::Cancelled);
        let long = "é".repeat(MAX_MESSAGE);
        ends(&calls, Method::NodeStageVolume, &long, Status::internal(format!("x{long}")));
        let newest = calls.latest();
        assert_eq!(newest[0].volume.chars().count(), MAX_VOLUME);
        assert_eq!(newest[0].message.len(), MAX_MESSAGE - 1, "between characters");
    }
}
