//! The record of what the driver was asked.
//!
//! It keeps the raw bytes and headers, because tests compare what left the caller with what
//! arrived. Decoded messages would hide lost unknown fields.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Code;

use super::lock::lock;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is still in the driver.
    Running,
    /// The driver answered it; a server stream was sent to its end.
    Finished,
    /// It was dropped before: cancelled by the caller, or its connection broke.
    Dropped,
}

/// One call that the driver received.
#[derive(Clone)]
pub struct Received {
    /// The whole path, such as `/csi.v1.Node/NodePublishVolume`.
    pub path: String,
    /// The request message without its gRPC frame.
    pub message: Bytes,
    /// All request headers.
    pub headers: HeaderMap,
    /// When the whole request had arrived.
    pub at: Instant,
    /// Its outcome so far.
    pub outcome: Outcome,
    /// When it ended and, if it was answered, with what code.
    pub ended: Option<(Instant, Option<Code>)>,
}

impl Received {
    /// The last part of the path: the name of the RPC.
    pub fn method(&self) -> &str {
        method_of(&self.path)
    }

    /// The request message decoded.
    pub fn decode<M: prost::Message + Default>(&self) -> Result<M, prost::DecodeError> {
        M::decode(self.message.clone())
    }
}

pub(super) fn method_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, method)| method)
}

struct CallRecord {
    path: String,
    message: Bytes,
    headers: HeaderMap,
    at: Instant,
    outcome: AtomicU8,
    ended: Mutex<Option<(Instant, Option<Code>)>>,
}

impl CallRecord {
    fn snapshot(&self) -> Received {
        let outcome = match self.outcome.load(Ordering::Acquire) {
            0 => Outcome::Running,
            1 => Outcome::Finished,
            _ => Outcome::Dropped,
        };
        let path = self.path.clone();
        let message = self.message.clone();
        let headers = self.headers.clone();
        Received { path, message, headers, at: self.at, outcome, ended: *lock(&self.ended) }
    }
}

/// All calls in the order of their arrival.
pub(super) struct Log {
    entries: Mutex<Vec<Arc<CallRecord>>>,
    /// Increases whenever a call arrives or ends.
    changes: watch::Sender<u64>,
}

impl Log {
    pub(super) fn new() -> Self {
        Self { entries: Mutex::default(), changes: watch::Sender::new(0) }
    }

    pub(super) fn arrive(
        self: &Arc<Self>,
        path: String,
        message: Bytes,
        headers: HeaderMap,
    ) -> Ticket {
        let outcome = AtomicU8::new(0);
        let entry = Arc::new(CallRecord {
            path,
            message,
            headers,
            at: Instant::now(),
            outcome,
            ended: Mutex::default(),
        });
        lock(&self.entries).push(Arc::clone(&entry));
        self.changed();
        Ticket { entry, log: Arc::clone(self) }
    }

    pub(super) fn all(&self) -> Vec<Received> {
        lock(&self.entries).iter().map(|entry| entry.snapshot()).collect()
    }

    pub(super) fn of(&self, method: &str) -> Vec<Received> {
        let entries = lock(&self.entries);
        let wanted = entries.iter().filter(|e| method == "*" || method_of(&e.path) == method);
        wanted.map(|entry| entry.snapshot()).collect()
    }

    pub(super) fn forget(&self) {
        lock(&self.entries).clear();
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }
}

/// A call's hold on its entry: dropping it before `finish` is how a cancelled call is seen.
pub(super) struct Ticket {
    entry: Arc<CallRecord>,
    log: Arc<Log>,
}

impl Ticket {
    /// It was answered; with an error at once, or with what a stream's body will say; without a
    /// code if the answer breaks off.
    pub(super) fn finish(&self, code: Option<Code>) {
        self.end(1, code);
    }

    fn end(&self, outcome: u8, code: Option<Code>) {
        // Only the first ending counts.
        if self
            .entry
            .outcome
            .compare_exchange(0, outcome, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            *lock(&self.entry.ended) = Some((Instant::now(), code));
            self.log.changed();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end(2, None);
    }
}
