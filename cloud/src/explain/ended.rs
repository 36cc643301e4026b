//! The last calls that ended, as links of the chain. The newest is the last one.

use std::sync::Arc;
use std::time::Duration;

use proto::admin::cells::age;
use proto::csi::status::code_name;
use proto::host::plain;
use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Chain, Verdict};
use super::explainer::Explainer;
use crate::state::clock;
use crate::telemetry::ended::EndedCall;

/// Calls that are shown of one subject.
const SHOWN: usize = 3;

impl Explainer<'_> {
    /// The last calls about something, under any of its names. Returns the verdict if the last one
    /// failed.
    pub(super) fn follow_ended(
        &self,
        chain: &mut Chain,
        driver: &DriverName,
        subjects: &[&str],
    ) -> Option<Verdict> {
        let about = subjects.iter().flat_map(|subject| self.calls.ended.about(driver, subject));
        let mut ended: Vec<_> = about.collect();
        ended.sort_by_key(|call| std::cmp::Reverse(call.number));
        self.follow_known(chain, &ended)
    }

    /// The last calls at a node. Returns the verdict if the last one failed.
    pub(super) fn follow_ended_at(&self, chain: &mut Chain, node: &NodeName) -> Option<Verdict> {
        self.follow_known(chain, &self.calls.ended.at(node))
    }

    /// Adds the first of these calls. If they are few, says since when calls are known.
    fn follow_known(&self, chain: &mut Chain, ended: &[Arc<EndedCall>]) -> Option<Verdict> {
        let now = clock::now();
        if ended.len() < SHOWN {
            let known = age(Duration::from_millis(now.saturating_sub(self.calls.ended.since())));
            let found = format!("since csi-cloud started, {known} ago");
            chain.step("calls that ended", "known", found);
        }
        follow(chain, ended.iter().map(|call| &**call), now)
    }
}

/// The verdict on a call that failed; none if it did not.
pub fn failure(call: &EndedCall) -> Option<Verdict> {
    failed(call, clock::now())
}

/// Adds the first of some calls, of which the newest is the first one.
fn follow<'a>(
    chain: &mut Chain,
    newest_first: impl Iterator<Item = &'a EndedCall>,
    now: u64,
) -> Option<Verdict> {
    let shown: Vec<_> = newest_first.take(SHOWN).collect();
    for call in shown.iter().rev() {
        let object = format!("last {} of {}", call.rpc, subject(call));
        chain.step(object, code_name(call.code), found(call, now));
    }
    shown.first().and_then(|last| failed(last, now))
}

fn subject(call: &EndedCall) -> String {
    if call.subject.is_empty() { "nothing single".into() } else { plain(&call.subject) }
}

fn found(call: &EndedCall, now: u64) -> String {
    let at = call.node.as_ref().map(|node| format!("at node {node} ")).unwrap_or_default();
    let took = age(call.duration);
    let attempts = match call.attempts {
        0 | 1 => String::new(),
        more => format!(", sent {more} times"),
    };
    let message = plain(&call.message);
    let message = if message.is_empty() { message } else { format!(": {message}") };
    let row = row(call, now);
    format!("{at}{} ago, took {took}{attempts}{row}{message}", since(call.at, now))
}

/// The failures before this one, if there are any.
fn row(call: &EndedCall, now: u64) -> String {
    match call.failures {
        0 | 1 => String::new(),
        many => format!(", failed {many} times in {}", since(call.failing_since, now)),
    }
}

fn since(at: u64, now: u64) -> String {
    age(Duration::from_millis(now.saturating_sub(at)))
}

/// The verdict on a call that failed. Its message is what its caller got.
fn failed(call: &EndedCall, now: u64) -> Option<Verdict> {
    if !call.failed() {
        return None;
    }
    let EndedCall { rpc, driver, .. } = call;
    let code = code_name(call.code);
    let message = plain(&call.message);
    let what = format!("{rpc} of {} failed", subject(call));
    let when = since(call.at, now);
    let verdict = match &call.node {
        Some(node) => Verdict::of(
            Cause::CallFailed,
            format!("{what} at node {node} {when} ago with {code}: {message}"),
            format!("it is tried again by itself; look at the log of driver {driver} there"),
        )
        .at(node),
        None => Verdict::of(
            Cause::CallFailed,
            format!("{what} {when} ago with {code}: {message}"),
            "mend that; it is tried again by itself",
        ),
    };
    Some(verdict)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn call(number: u64, code: Code, message: &str) -> EndedCall {
        EndedCall {
            number,
            at: number * 1000,
            id: 7.into(),
            rpc: "ControllerPublishVolume",
            driver: "d.example".parse().unwrap(),
            node: "n1".parse().ok(),
            subject: "v1".into(),
            source: None,
            claim: None,
            code,
            message: message.into(),
            duration: Duration::from_secs(2),
            attempts: 3,
            failures: if code == Code::Ok { 0 } else { 7 },
            failing_since: 1000,
        }
    }

    #[test]
    fn at_most_three_calls_are_shown_and_the_newest_is_the_last() {
        let calls = [5, 4, 3, 2].map(|number| call(number, Code::Ok, ""));
        let mut chain = Chain::default();
        assert_eq!(follow(&mut chain, calls.iter(), 10_000), None);
        let ended = chain.end(|| Verdict::fine(""));
        let found: Vec<_> = ended.steps.iter().map(|step| step.found.as_str()).collect();
        let line = |seconds| format!("at node n1 {seconds}s ago, took 2s, sent 3 times");
        assert_eq!(found, [line(7), line(6), line(5)]);
        assert_eq!(ended.steps[0].object, "last ControllerPublishVolume of v1");
        assert_eq!(ended.steps[0].state, "OK");
        let mut chain = Chain::default();
        follow(&mut chain, [call(5, Code::Internal, "no")].iter(), 10_000);
        let failed = &chain.end(|| Verdict::fine("")).steps[0].found;
        assert_eq!(failed, "at node n1 5s ago, took 2s, sent 3 times, failed 7 times in 9s: no");
    }

    #[test]
    fn only_the_last_call_is_a_cause_and_it_names_its_node() {
        let good = call(5, Code::Ok, "");
        let bad = call(4, Code::ResourceExhausted, "the disk is\u{1b} full");
        let verdict =
            |calls: [&EndedCall; 2]| follow(&mut Chain::default(), calls.into_iter(), 10_000);
        assert_eq!(verdict([&good, &bad]), None);
        let failed = verdict([&bad, &good]).unwrap();
        assert_eq!((failed.cause, failed.node.clone()), (Cause::CallFailed, bad.node.clone()));
        assert_eq!(
            failed.sentence(),
            "ControllerPublishVolume of v1 failed at node n1 6s ago with RESOURCE_EXHAUSTED: the \
             disk is\\u{1b} full; it is tried again by itself; look at the log of driver d.example \
             there"
        );
        let nowhere = EndedCall { node: None, ..bad.clone() };
        let failed = verdict([&nowhere, &good]).unwrap();
        assert!(failed.text.starts_with("ControllerPublishVolume of v1 failed 6s ago"));
        assert_eq!(failed.node, None);
    }
}
