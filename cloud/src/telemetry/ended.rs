//! The calls that ended since this csi-cloud started, for operators, in memory only.
//!
//! Kept are failures, the newest one of each method about each subject of a driver with the number
//! of failures in a row, and the last calls with a subject that were carried out. Logs have the
//! rest.
//!
//! The bound: 4,096 failures and 1,024 other calls, the oldest go first. They take 13 MiB if all
//! names and messages are as long as they may be, and usually less than 2 MiB.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::{Mutex, MutexGuard};
use proto::host::clock;
use proto::host::plain::start;
use proto::http2::call_id::CallId;
use proto::names::{DriverName, NodeName};
use tonic::Code;

/// The failures kept: one of each method about each subject of a driver.
const MAX_FAILURES: usize = 4_096;
/// The calls kept that were carried out.
const MAX_SUCCESSES: usize = 1_024;
/// The number of characters kept of a call's subject; an id may have thousands.
pub(super) const SHOWN: usize = 256;
/// The longest message kept, in bytes; longer ones are cut.
const MAX_MESSAGE: usize = 512;
/// The longest claim in Kubernetes: a namespace has at most 63 bytes, and a name 253.
const MAX_CLAIM: usize = 63 + 1 + 253;
/// A repeated failure is logged again after this long, in ms.
const LOG_INTERVAL_MS: u64 = 60_000;
/// The different failures of one method about one subject that are remembered as logged.
const MAX_LOGGED: usize = 8;

/// A call that ended.
///
/// It holds no secrets. A message of csi-cloud names ids, nodes and parameters of a class, and
/// never a request's `secrets`. A driver's message is kept as its caller got it; Kubernetes shows
/// the same text in Events. Subject and message come from peers, so views escape them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedCall {
    /// Its place in the order in which calls ended.
    pub number: u64,
    /// The time at which it ended, in ms since 1970.
    pub at: u64,
    /// Its id, as in the logs.
    pub id: CallId,
    /// The RPC method, or `unknown`.
    pub rpc: &'static str,
    /// The driver of the front.
    pub driver: DriverName,
    /// The node that it was last sent to, or that was full. `None` if there is no such node, or
    /// several.
    pub node: Option<NodeName>,
    /// The first 256 characters of its id or name; empty if it has none.
    pub subject: Arc<str>,
    /// The volume of which a snapshot was to be made, if the call failed.
    pub source: Option<Box<str>>,
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
    /// The failures in a row of this method about this subject, this one included. 0 if it was
    /// carried out.
    pub failures: u32,
    /// The time at which the first failure of the row ended, in ms since 1970.
    pub failing_since: u64,
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
    pub(super) source: Option<&'a str>,
    pub(super) claim: Option<&'a str>,
    pub(super) outcome: &'a Outcome,
    pub(super) duration: Duration,
    pub(super) attempts: u32,
}

/// The calls that ended.
pub struct Ended {
    since: u64,
    table: Mutex<EndedTable>,
}

#[derive(Default)]
struct EndedTable {
    /// The number of the next call.
    next: u64,
    /// The failures by the number of the newest one: the oldest comes first.
    failures: BTreeMap<u64, Failure>,
    /// The keys of `failures` by subject, of all drivers and methods.
    by_subject: HashMap<Arc<str>, Vec<u64>>,
    /// The calls that were carried out, the oldest first.
    successes: VecDeque<Arc<EndedCall>>,
}

/// The failures of one method about one subject of a driver.
struct Failure {
    newest: Arc<EndedCall>,
    /// True after a call about the same subject was carried out.
    is_over: bool,
    logged: Logged,
}

/// The failures of the last minute that the log has: when, and a hash of what it says.
#[derive(Default)]
struct Logged(Vec<(u64, u64)>);

impl Default for Ended {
    fn default() -> Self {
        Self { since: clock::now(), table: Mutex::default() }
    }
}

impl Ended {
    /// The time since which calls are known: the start of this csi-cloud, in ms since 1970.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// The calls about a subject of a driver, the newest first.
    pub fn about(&self, driver: &DriverName, subject: &str) -> Vec<Arc<EndedCall>> {
        let subject = shown(subject);
        if subject.is_empty() {
            return Vec::new();
        }
        self.latest(|call| *call.subject == *subject && call.driver == *driver)
    }

    /// The last call that was to make a volume for a claim, which is `NAMESPACE/NAME`.
    pub fn for_claim(&self, claim: &str) -> Option<Arc<EndedCall>> {
        self.latest(|call| call.claim.as_deref() == Some(claim)).into_iter().next()
    }

    /// The newest failure about each subject, unless a later call about it was carried out, and
    /// when the failures before it began.
    pub fn failing(&self) -> Vec<(Arc<EndedCall>, u64)> {
        let table = self.lock();
        let mut failing: Vec<(Arc<EndedCall>, u64)> = Vec::new();
        let mut places: HashMap<(&DriverName, &str), usize> = HashMap::default();
        for Failure { newest, is_over, .. } in table.failures.values().rev() {
            if *is_over || newest.subject.is_empty() {
                continue;
            }
            let place = *places.entry((&newest.driver, &*newest.subject)).or_insert(failing.len());
            match failing.get_mut(place) {
                Some((_, since)) => *since = newest.failing_since.min(*since),
                None => failing.push((newest.clone(), newest.failing_since)),
            }
        }
        failing
    }

    /// The calls of those that are kept that were last sent to a node, the newest first.
    pub fn at(&self, node: &NodeName) -> Vec<Arc<EndedCall>> {
        self.latest(|call| call.node.as_ref() == Some(node))
    }

    /// The last calls of which this is true, the newest first.
    pub fn latest(&self, is_wanted: impl Fn(&EndedCall) -> bool) -> Vec<Arc<EndedCall>> {
        let table = self.lock();
        let failures = table.failures.values().map(|failure| &failure.newest);
        let all = failures.chain(&table.successes);
        let mut wanted: Vec<_> = all.filter(|call| is_wanted(call)).cloned().collect();
        drop(table);
        wanted.sort_by_key(|call| std::cmp::Reverse(call.number));
        wanted
    }

    /// Keeps a call, unless it was carried out and has no subject. Returns a failure that the log
    /// has not had in the last minute.
    pub(super) fn add(&self, facts: CallEnd<'_>) -> Option<Arc<EndedCall>> {
        let mut table = self.lock();
        if facts.outcome.code != Code::Ok {
            return table.add_failure(facts);
        }
        table.end_failures(&facts);
        if !facts.subject.is_empty() {
            table.add_success(facts);
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, EndedTable> {
        self.table.lock()
    }
}

impl EndedTable {
    /// Marks the failures as over that a call that was carried out ends: all about its subject, or
    /// those of its method if it has none.
    fn end_failures(&mut self, facts: &CallEnd<'_>) {
        let Some(numbers) = self.by_subject.get(facts.subject) else { return };
        for number in numbers {
            if let Some(Failure { newest, is_over, .. }) = self.failures.get_mut(number)
                && newest.driver == *facts.driver
                && (!facts.subject.is_empty() || newest.rpc == facts.rpc)
            {
                *is_over = true;
            }
        }
    }

    fn add_success(&mut self, facts: CallEnd<'_>) {
        let subject = self.subject(facts.subject);
        let call = facts.ended(self.take_number(), subject, None);
        if self.successes.len() == MAX_SUCCESSES {
            self.successes.pop_front();
        }
        self.successes.push_back(Arc::new(call));
    }

    /// Keeps a failure in place of the one before it. Returns it if the log has not had it.
    fn add_failure(&mut self, facts: CallEnd<'_>) -> Option<Arc<EndedCall>> {
        let subject = self.subject(facts.subject);
        let before = self.take_failure(&facts);
        let row = before.as_ref().filter(|before| !before.is_over);
        let number = self.take_number();
        let call = Arc::new(facts.ended(number, subject, row.map(|row| &*row.newest)));
        let mut logged = before.map(|before| before.logged).unwrap_or_default();
        let hash =
            self.by_subject.hasher().hash_one((i32::from(call.code), &call.node, &call.message));
        let is_news = logged.add(call.at, hash);
        self.by_subject.entry(call.subject.clone()).or_default().push(number);
        self.failures.insert(number, Failure { newest: call.clone(), is_over: false, logged });
        if self.failures.len() > MAX_FAILURES
            && let Some((oldest, failure)) = self.failures.pop_first()
        {
            self.forget_number(&failure.newest.subject, oldest);
        }
        is_news.then_some(call)
    }

    /// Takes out the failure of this method about this subject of this driver.
    fn take_failure(&mut self, facts: &CallEnd<'_>) -> Option<Failure> {
        let numbers = self.by_subject.get(facts.subject)?;
        let is_same = |call: &EndedCall| call.driver == *facts.driver && call.rpc == facts.rpc;
        let number = *numbers.iter().find(|number| {
            self.failures.get(number).is_some_and(|failure| is_same(&failure.newest))
        })?;
        self.forget_number(facts.subject, number);
        self.failures.remove(&number)
    }

    fn forget_number(&mut self, subject: &str, number: u64) {
        let Some(numbers) = self.by_subject.get_mut(subject) else { return };
        numbers.retain(|kept| *kept != number);
        if numbers.is_empty() {
            self.by_subject.remove(subject);
        }
    }

    /// The text of a subject, which its failures share.
    fn subject(&self, subject: &str) -> Arc<str> {
        match self.by_subject.get_key_value(subject) {
            Some((shared, _)) => shared.clone(),
            None => subject.into(),
        }
    }

    fn take_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}

impl Logged {
    /// Notes a failure. Returns false if the log had the same one within the last minute: a caller
    /// that is refused tries again for hours.
    fn add(&mut self, at: u64, hash: u64) -> bool {
        self.0.retain(|(logged, _)| *logged >= at.saturating_sub(LOG_INTERVAL_MS));
        if self.0.iter().any(|(_, logged)| *logged == hash) {
            return false;
        }
        if self.0.len() == MAX_LOGGED {
            self.0.remove(0);
        }
        self.0.push((at, hash));
        true
    }
}

impl EndedCall {
    /// True if its caller got another code than OK.
    pub fn failed(&self) -> bool {
        self.code != Code::Ok
    }
}

impl CallEnd<'_> {
    /// The call with this number, after `row`, the failure before it in its row of failures.
    fn ended(self, number: u64, subject: Arc<str>, row: Option<&EndedCall>) -> EndedCall {
        let failed = self.outcome.code != Code::Ok;
        EndedCall {
            number,
            subject,
            at: self.at,
            id: self.id,
            rpc: self.rpc,
            driver: self.driver.clone(),
            source: self.source.filter(|_| failed).map(Into::into),
            claim: self.claim.filter(|claim| claim.len() <= MAX_CLAIM).map(Into::into),
            code: self.outcome.code,
            message: start(&self.outcome.message, MAX_MESSAGE).into(),
            node: self.node,
            duration: self.duration,
            attempts: self.attempts,
            failures: row.map_or(0, |row| row.failures).saturating_add(u32::from(failed)),
            failing_since: row.map_or(self.at, |row| row.failing_since),
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
