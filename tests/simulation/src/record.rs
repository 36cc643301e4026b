//! Every call of a model sidecar, with its outcome. The checks compare it with the drivers'
//! records, call by call. Each call has a number in a header that the product passes on unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tonic::Code;

/// The header with a call's number.
pub const NUMBER: &str = "sim-call";

/// How the secrets of callers begin.
pub const SECRET: &str = "secret-of-";

/// One call.
#[derive(Clone)]
pub struct Called {
    /// Which sidecar made it.
    pub who: &'static str,
    /// The RPC.
    pub method: &'static str,
    /// The name or id of its object.
    pub key: String,
    /// The request message.
    pub message: Bytes,
    /// The same without its secrets, as it goes to several nodes.
    pub bare: Bytes,
    /// When it was sent.
    pub sent: Instant,
    /// Until when the caller waits.
    pub deadline: Option<Instant>,
    /// Whether the caller cancels at its deadline, as grpc-go does, or waits to see who is late.
    pub patient: bool,
    /// When and how it ended; none if the caller died first.
    pub ended: Option<(Instant, Ending)>,
}

/// How a call ended for its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The call was answered.
    Answer(Code, String),
    /// The caller cancelled it at its deadline.
    Cancelled,
    /// The connection to the cloud broke.
    Broken,
    /// No answer arrived until long after the deadline.
    Late,
}

/// The record. A clone is the same one.
#[derive(Clone, Default)]
pub struct Record(Arc<Mutex<Vec<Called>>>);

impl Record {
    fn lock(&self) -> MutexGuard<'_, Vec<Called>> {
        self.0.lock()
    }

    /// Begins a call; the number is what [`Record::end`] takes.
    pub fn begin(&self, called: Called) -> usize {
        let mut all = self.lock();
        all.push(called);
        all.len() - 1
    }

    /// Ends it.
    pub fn end(&self, number: usize, ending: Ending) {
        if let Some(called) = self.lock().get_mut(number) {
            called.ended = Some((Instant::now(), ending));
        }
    }

    /// All calls, by number.
    pub fn all(&self) -> Vec<Called> {
        self.lock().clone()
    }

    /// How many calls ended how.
    pub fn endings(&self) -> BTreeMap<String, u64> {
        let mut count = BTreeMap::new();
        for called in self.lock().iter() {
            let ending = match &called.ended {
                Some((_, Ending::Answer(code, _))) => format!("{code:?}"),
                Some((_, ending)) => format!("{ending:?}"),
                None => "caller died".into(),
            };
            *count.entry(ending).or_default() += 1;
        }
        count
    }
}

/// Whether a code leaves the outcome open for the sidecars (`checkError` of
/// external-provisioner, `isFinalError` of the others).
pub fn is_open(code: Code) -> bool {
    matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}
