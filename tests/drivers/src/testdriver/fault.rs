//! The faults that a test can inject into the driver.
//!
//! Faults are scripted by the names of RPCs, so that one script also works for RPCs of later CSI
//! versions.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Code, Status};

use super::lock::lock;
use super::wait::{WAIT, WaitError};

/// One thing that goes wrong with a call.
#[derive(Clone)]
pub enum Fault {
    /// Waits, then answers as usual.
    Delay(Duration),
    /// Answers this status without doing the work.
    Error {
        /// The gRPC code.
        code: Code,
        /// The gRPC message.
        message: String,
    },
    /// Answers this whole status, details and metadata included, without doing the work.
    Status(Status),
    /// Does not answer until [`super::TestDriver::release`]; then answers as usual.
    Hang,
    /// Breaks the connection before doing the work.
    Die,
    /// Does the work, then breaks the connection before answering.
    DieAfterWork,
    /// Does the work, sends the headers and half of the body, then breaks the connection.
    DieInBody,
    /// Answers this message with status OK unless `trailers` has another `grpc-status`.
    Raw {
        /// The message, without its gRPC frame.
        message: Bytes,
        /// Response headers besides the usual ones.
        headers: HeaderMap,
        /// Response trailers besides `grpc-status`.
        trailers: HeaderMap,
    },
    /// Answers HTTP 404 with a text, as a web server would.
    NotGrpc,
    /// Does the work and answers the body, but ends without trailers.
    NoStatus,
    /// Waits until the gate opens, then answers as usual.
    Gate(Gate),
    /// Ends the whole process with this exit code.
    Exit(i32),
    /// Answers this status, but not for a creation whose result exists already. A driver's final
    /// code says that nothing exists.
    Refuse {
        /// The gRPC code.
        code: Code,
        /// The gRPC message.
        message: String,
    },
    /// Does the work, then answers this status all the same.
    AfterWork(Status),
    /// Does the work, then waits before it answers.
    Late(Duration),
    /// Answers a list with the page of this number, which its token says; the first one is 0.
    Pages(Pages),
}

/// The message of each page of a list.
pub type Pages = Arc<dyn Fn(u64) -> Bytes + Send + Sync>;

impl Fault {
    /// An [`Fault::Error`] from its parts.
    pub fn error(code: Code, message: impl Into<String>) -> Self {
        Self::Error { code, message: message.into() }
    }

    /// A [`Fault::Raw`] without extra headers or trailers.
    pub fn raw(message: impl Into<Bytes>) -> Self {
        Self::Raw { message: message.into(), headers: HeaderMap::new(), trailers: HeaderMap::new() }
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delay(time) => write!(f, "Delay({time:?})"),
            Self::Error { code, message } => write!(f, "Error({code:?}, {message:?})"),
            Self::Status(status) => write!(f, "Status({status:?})"),
            Self::Raw { message, .. } => write!(f, "Raw({} bytes)", message.len()),
            Self::Exit(code) => write!(f, "Exit({code})"),
            Self::Refuse { code, message } => write!(f, "Refuse({code:?}, {message:?})"),
            Self::AfterWork(status) => write!(f, "AfterWork({:?})", status.code()),
            Self::Late(time) => write!(f, "Late({time:?})"),
            Self::Hang => f.write_str("Hang"),
            Self::Die => f.write_str("Die"),
            Self::DieAfterWork => f.write_str("DieAfterWork"),
            Self::DieInBody => f.write_str("DieInBody"),
            Self::NotGrpc => f.write_str("NotGrpc"),
            Self::NoStatus => f.write_str("NoStatus"),
            Self::Gate(_) => f.write_str("Gate"),
            Self::Pages(_) => f.write_str("Pages"),
        }
    }
}

/// How many calls a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The next calls, this many.
    Next(u32),
    /// Every call until the faults are cleared.
    All,
}

/// A gate at which calls wait until the test opens it.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<GateState>,
}

struct GateState {
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        let open = watch::Sender::new(false);
        let arrived = watch::Sender::new(0);
        Self { inner: Arc::new(GateState { open, arrived }) }
    }

    /// Lets all waiting and all later calls through.
    pub fn open(&self) {
        self.inner.open.send_replace(true);
    }

    /// Makes later calls wait again.
    pub fn close(&self) {
        self.inner.open.send_replace(false);
    }

    /// The number of calls that have reached the gate.
    pub fn arrived(&self) -> usize {
        *self.inner.arrived.borrow()
    }

    /// Waits, at most 10 s, until `n` calls in all have reached the gate.
    pub async fn wait_for(&self, n: usize) -> Result<(), WaitError> {
        let mut arrived = self.inner.arrived.subscribe();
        let came = tokio::time::timeout(WAIT, arrived.wait_for(|now| *now >= n)).await.is_ok();
        if came {
            return Ok(());
        }
        Err(WaitError {
            wanted: n,
            method: "calls at the gate".to_owned(),
            came: self.arrived().to_string(),
        })
    }

    pub(super) async fn pass(&self) {
        let mut open = self.inner.open.subscribe();
        self.inner.arrived.send_modify(|n| *n += 1);
        // The sender lives in `self`, so this cannot fail while we wait.
        let _ = open.wait_for(|open| *open).await;
    }
}

struct Rule {
    fault: Fault,
    times: Times,
}

/// The remaining faults, and the calls that hang.
pub(super) struct Script {
    rules: Mutex<HashMap<String, VecDeque<Rule>>>,
    /// Whether there is any rule: read on every call, so not behind the lock.
    any: AtomicBool,
    released: watch::Sender<u64>,
}

impl Script {
    pub(super) fn new() -> Self {
        let released = watch::Sender::new(0);
        Self { rules: Mutex::default(), any: AtomicBool::new(false), released }
    }

    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, method: &str, fault: Fault, times: Times) {
        let mut rules = lock(&self.rules);
        rules.entry(method.to_owned()).or_default().push_back(Rule { fault, times });
        self.any.store(true, Ordering::Relaxed);
    }

    /// The fault for this call: one set for its method goes before one set for `*`.
    pub(super) fn take(&self, method: &str) -> Option<Fault> {
        if !self.any() {
            return None;
        }
        let mut rules = lock(&self.rules);
        let fault = [method, "*"].into_iter().find_map(|key| next(rules.get_mut(key)?));
        rules.retain(|_, queue| !queue.is_empty());
        self.any.store(!rules.is_empty(), Ordering::Relaxed);
        fault
    }

    /// Forgets the faults; with `only_hangs`, those that would hang.
    pub(super) fn clear(&self, only_hangs: bool) {
        let mut rules = lock(&self.rules);
        for queue in rules.values_mut() {
            queue.retain(|rule| only_hangs && !matches!(rule.fault, Fault::Hang));
        }
        rules.retain(|_, queue| !queue.is_empty());
        self.any.store(!rules.is_empty(), Ordering::Relaxed);
    }

    pub(super) fn release(&self) {
        self.clear(true);
        self.released.send_modify(|n| *n += 1);
    }

    /// A future that ends with the next release after this call, not after its first poll.
    pub(super) fn hang(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut released = self.released.subscribe();
        async move {
            let _ = released.changed().await;
        }
    }
}

fn next(queue: &mut VecDeque<Rule>) -> Option<Fault> {
    loop {
        let rule = queue.front_mut()?;
        match &mut rule.times {
            Times::All => return Some(rule.fault.clone()),
            Times::Next(0) => drop(queue.pop_front()),
            Times::Next(1) => return queue.pop_front().map(|rule| rule.fault),
            Times::Next(left) => {
                *left -= 1;
                return Some(rule.fault.clone());
            }
        }
    }
}
