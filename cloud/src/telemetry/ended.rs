//! The last calls that ended, about each subject, for operators.
//!
//! Kept are the last 8 calls about each subject of a driver. Of the calls without a subject, lists
//! for example, only the last 8 failures of each method are.
//!
//! The bound: 5,000 subjects and 16 MiB, and the least recently used subject goes first. Until they
//! are written, calls take 5 MiB more. Those without a subject take 200 KiB for each driver.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::{Mutex, MutexGuard};
use proto::host::plain::start;
use proto::http2::call_id::CallId;
use proto::names::{DriverName, NodeName};
use tonic::Code;

/// The calls kept of each subject, and the failures kept of each method without one.
const LAST: usize = 8;
/// The subjects of which calls are kept.
const MAX_SUBJECTS: usize = 5_000;
/// The memory of all calls that have a subject, in bytes.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// The number of characters kept of a call's subject; an id may have thousands.
pub(super) const SHOWN: usize = 256;
/// The longest message kept, in bytes; longer ones are cut.
const MAX_MESSAGE: usize = 512;
/// The longest claim in Kubernetes: a namespace has at most 63 bytes, and a name 253.
const MAX_CLAIM: usize = 63 + 1 + 253;
/// The most calls that wait to be written; older ones are not.
pub(crate) const MAX_UNWRITTEN: usize = 4_096;
/// The memory of a subject beside its text and its calls, in bytes: its entries in both maps.
const SUBJECT: usize = 256;
/// For so long a failure that comes again is no news, in ms.
const NO_NEWS: u64 = 60_000;

/// A call that ended.
///
/// It holds no secrets. A message of csi-cloud names ids, nodes and parameters of a class, and
/// never a request's `secrets`. A driver's message is kept as its caller got it; Kubernetes shows
/// the same text in Events. Subject and message come from peers, so views escape them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedCall {
    /// Its place in the order in which calls ended, over restarts.
    pub number: u64,
    /// The time at which it ended, in ms since 1970.
    pub at: u64,
    /// Its id, as in the logs.
    pub id: CallId,
    /// The RPC method, or `unknown`.
    pub rpc: &'static str,
    /// The driver of the front.
    pub driver: DriverName,
    /// The node that it was last sent to, or that was full; none if that is none, or several.
    pub node: Option<NodeName>,
    /// The first 256 characters of its id or name; empty if it has none.
    pub subject: Arc<str>,
    /// The claim that a volume was to be made for, as `NAMESPACE/NAME`, if the provisioner named
    /// it.
    pub claim: Option<Box<str>>,
    /// The code that its caller got. `Cancelled` if the caller left before.
    pub code: Code,
    /// The message that its caller got, at most 512 bytes; empty if it was carried out.
    pub message: Box<str>,
    /// Its duration.
    pub duration: Duration,
    /// The number of times that it may have been sent to the node.
    pub attempts: u32,
    /// True if it is a failure that the log has.
    pub(crate) news: bool,
}

/// The outcome of a call.
pub struct Outcome {
    /// The code that its caller gets.
    pub code: Code,
    /// The message that its caller gets.
    pub message: String,
}

/// The facts of a call at its end.
pub(super) struct CallEnd<'a> {
    pub(super) at: u64,
    pub(super) id: CallId,
    pub(super) rpc: &'static str,
    pub(super) driver: &'a DriverName,
    pub(super) node: Option<NodeName>,
    pub(super) subject: &'a str,
    pub(super) claim: Option<&'a str>,
    pub(super) outcome: &'a Outcome,
    pub(super) duration: Duration,
    pub(super) attempts: u32,
}

/// The calls that ended.
#[derive(Default)]
pub struct Ended(Mutex<EndedTable>);

#[derive(Default)]
struct EndedTable {
    /// The number of the next call.
    next: u64,
    subjects: BTreeMap<DriverName, HashMap<Arc<str>, Calls>>,
    /// The subjects by the number of their last call: the least recently used one comes first.
    order: BTreeMap<u64, (DriverName, Arc<str>)>,
    /// The memory of all subjects and their calls, in bytes.
    bytes: usize,
    /// The failures of calls without a subject.
    failures: BTreeMap<(DriverName, &'static str), Calls>,
    /// The calls that are yet to be written; none if nobody writes them.
    unwritten: Option<VecDeque<Arc<EndedCall>>>,
}

/// The last calls about one thing, the oldest first.
#[derive(Default)]
struct Calls {
    subject: Arc<str>,
    last: VecDeque<Arc<EndedCall>>,
}

impl Ended {
    /// Takes the calls that were written before, and notes those that are to be written from now
    /// on.
    pub fn restore(&self, mut calls: Vec<EndedCall>) {
        calls.sort_by_key(|call| call.number);
        let mut kept = self.lock();
        for call in calls {
            kept.next = kept.next.max(call.number.saturating_add(1));
            let driver = call.driver.clone();
            let text = call.subject.clone();
            kept.keep(&driver, call.rpc, &text, |of| EndedCall { subject: of.subject(), ..call });
        }
        kept.unwritten.get_or_insert_default();
    }

    /// The calls that have not been written yet, the oldest first. They count as written now.
    pub fn unwritten(&self) -> Vec<Arc<EndedCall>> {
        let mut kept = self.lock();
        let unwritten = kept.unwritten.as_mut().map(std::mem::take).unwrap_or_default();
        drop(kept);
        unwritten.into()
    }

    /// The last calls about a subject of a driver, the newest first.
    pub fn about(&self, driver: &DriverName, subject: &str) -> Vec<Arc<EndedCall>> {
        let kept = self.lock();
        let calls = kept.subjects.get(driver).and_then(|subjects| subjects.get(shown(subject)));
        calls.map(|calls| calls.last.iter().rev().cloned().collect()).unwrap_or_default()
    }

    /// The last call that was to make a volume for a claim, which is `NAMESPACE/NAME`.
    pub fn for_claim(&self, claim: &str) -> Option<Arc<EndedCall>> {
        self.latest(|call| call.claim.as_deref() == Some(claim)).into_iter().next()
    }

    /// The last call about each subject, if it failed, and when the failures before it began.
    pub fn failing(&self) -> Vec<(Arc<EndedCall>, u64)> {
        let kept = self.lock();
        let subjects = kept.subjects.values().flat_map(HashMap::values);
        subjects.filter_map(|calls| calls.failing()).collect()
    }

    /// The calls of those that are kept that were last sent to a node, the newest first.
    pub fn at(&self, node: &NodeName) -> Vec<Arc<EndedCall>> {
        self.latest(|call| call.node.as_ref() == Some(node))
    }

    /// The last calls of which this is true, the newest first.
    pub fn latest(&self, is_wanted: impl Fn(&EndedCall) -> bool) -> Vec<Arc<EndedCall>> {
        let kept = self.lock();
        let subjects = kept.subjects.values().flat_map(HashMap::values);
        let all = subjects.chain(kept.failures.values()).flat_map(|calls| &calls.last);
        let mut wanted: Vec<_> = all.filter(|call| is_wanted(call)).cloned().collect();
        drop(kept);
        wanted.sort_by_key(|call| std::cmp::Reverse(call.number));
        wanted
    }

    /// Keeps a call, unless it is one without a subject that was carried out. Returns a failure
    /// that is news.
    pub(super) fn add(&self, facts: CallEnd<'_>) -> Option<Arc<EndedCall>> {
        if facts.outcome.code == Code::Ok && facts.subject.is_empty() {
            return None;
        }
        let mut kept = self.lock();
        let number = kept.next;
        kept.next += 1;
        let CallEnd { driver, rpc, subject, .. } = facts;
        let call = kept.keep(driver, rpc, subject, |of| facts.ended(number, of));
        if let Some(unwritten) = &mut kept.unwritten {
            if unwritten.len() == MAX_UNWRITTEN {
                unwritten.pop_front();
            }
            unwritten.push_back(call.clone());
        }
        drop(kept);
        Some(call).filter(|call| call.news)
    }

    fn lock(&self) -> MutexGuard<'_, EndedTable> {
        self.0.lock()
    }
}

impl EndedTable {
    /// Keeps the call that `ended` makes of those before it, and forgets what is too much.
    fn keep(
        &mut self,
        driver: &DriverName,
        rpc: &'static str,
        subject: &str,
        ended: impl FnOnce(&Calls) -> EndedCall,
    ) -> Arc<EndedCall> {
        if subject.is_empty() {
            let calls = self.failures.entry((driver.clone(), rpc)).or_default();
            let call = Arc::new(ended(calls));
            calls.push(call.clone());
            return call;
        }
        let subjects = match self.subjects.get_mut(driver) {
            Some(subjects) => subjects,
            None => self.subjects.entry(driver.clone()).or_default(),
        };
        let calls = match subjects.get_mut(subject) {
            Some(calls) => calls,
            None => {
                let subject: Arc<str> = subject.into();
                self.bytes += SUBJECT + subject.len();
                let calls = Calls { subject: subject.clone(), ..Calls::default() };
                subjects.entry(subject).or_insert(calls)
            }
        };
        let before = calls.last.back().map(|last| last.number);
        let call = Arc::new(ended(calls));
        self.bytes += call.size();
        self.bytes -= calls.push(call.clone());
        let key = before.and_then(|before| self.order.remove(&before));
        let key = key.unwrap_or_else(|| (driver.clone(), calls.subject.clone()));
        self.order.insert(call.number, key);
        while self.order.len() > MAX_SUBJECTS || self.bytes > MAX_BYTES {
            self.forget_oldest();
        }
        call
    }

    /// Forgets the least recently used subject.
    fn forget_oldest(&mut self) {
        let Some((_, (driver, subject))) = self.order.pop_first() else {
            // Nothing is kept, so nothing is counted.
            self.bytes = 0;
            return;
        };
        let Some(subjects) = self.subjects.get_mut(&driver) else { return };
        if let Some(calls) = subjects.remove(&subject) {
            let size: usize = calls.last.iter().map(|call| call.size()).sum();
            self.bytes -= size + SUBJECT + subject.len();
        }
        if subjects.is_empty() {
            self.subjects.remove(&driver);
        }
    }
}

impl Calls {
    /// The last call if it failed, and when the first of its row of failures ended.
    fn failing(&self) -> Option<(Arc<EndedCall>, u64)> {
        let row = self.last.iter().rev().take_while(|call| call.failed());
        let first = row.last()?;
        Some((self.last.back()?.clone(), first.at))
    }

    fn subject(&self) -> Arc<str> {
        self.subject.clone()
    }

    /// Adds a call, and returns the bytes of the one that goes for it.
    fn push(&mut self, call: Arc<EndedCall>) -> usize {
        let gone = if self.last.len() == LAST { self.last.pop_front() } else { None };
        self.last.push_back(call);
        gone.map_or(0, |gone| gone.size())
    }

    /// True for a failure, unless the log had the same one within the last minute. A caller that is
    /// refused tries again for hours.
    fn is_news(&self, facts: &CallEnd<'_>) -> bool {
        let since = facts.at.saturating_sub(NO_NEWS);
        let message = start(&facts.outcome.message, MAX_MESSAGE);
        let is_same = |call: &Arc<EndedCall>| {
            call.news
                && call.at >= since
                && (call.rpc, call.code) == (facts.rpc, facts.outcome.code)
                && call.node == facts.node
                && *call.message == *message
        };
        facts.outcome.code != Code::Ok && !self.last.iter().any(is_same)
    }
}

impl EndedCall {
    /// True if its caller got another code than OK.
    pub fn failed(&self) -> bool {
        self.code != Code::Ok
    }

    /// Its memory in bytes, without its subject's text, which its subject's calls share.
    fn size(&self) -> usize {
        // Beside it: two counters of the `Arc`, and two pointers in a queue that has spare room.
        let texts = self.message.len() + self.claim.as_ref().map_or(0, |claim| claim.len());
        size_of::<Self>() + 4 * size_of::<usize>() + texts
    }
}

impl CallEnd<'_> {
    /// The call with this number, after those.
    fn ended(self, number: u64, before: &Calls) -> EndedCall {
        EndedCall {
            number,
            news: before.is_news(&self),
            at: self.at,
            id: self.id,
            rpc: self.rpc,
            driver: self.driver.clone(),
            subject: before.subject(),
            claim: self.claim.filter(|claim| claim.len() <= MAX_CLAIM).map(Into::into),
            code: self.outcome.code,
            message: start(&self.outcome.message, MAX_MESSAGE).into(),
            node: self.node,
            duration: self.duration,
            attempts: self.attempts,
        }
    }
}

/// The part of a call's subject that is kept.
pub(super) fn shown(subject: &str) -> &str {
    let end = subject.char_indices().nth(SHOWN).map_or(subject.len(), |(end, _)| end);
    subject.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests;
