//! Finds what is wrong now, in the words of `explain`: what, since when, where, and what to do
//! next.
//!
//! What is wrong in the same way at many places is one row with their number. Of many nodes only
//! the first are put into words.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::admin::cells::ending;
use proto::admin::view::{NodeCell, NodeState, PageTarget, Problem, Severity, Snapshot};
use proto::csi::Id;
use proto::csi::status::code_name;
use proto::host::clock::millis;
use proto::host::{clock, plain};
use proto::names::DriverName;

use super::sweep::{Sweep, TroubledHome};
use crate::admin::admin_state::AdminState;
use crate::explain::answer::Verdict;
use crate::explain::ended::failure;
use crate::explain::explainer::Explainer;
use crate::explain::volume::hanging;
use crate::telemetry::ended::EndedCall;

/// The places that a row names.
const NAMED: usize = 3;
/// The nodes in one state that are put into words.
const WORDED: usize = 3;
/// A failure that is older is nobody's concern any more: callers try again sooner.
const RECENT: Duration = Duration::from_secs(600);
/// csi-cloud's own certificates are a warning for so long before they end.
const OWN: Duration = Duration::from_secs(21 * 86_400);

/// What is wrong, and what to do next.
type Words = (String, String);

/// What is wrong at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Faults of the same sort are one row.
    pub(super) sort: Sort,
    /// Where: what is shown, and its page.
    pub(super) place: (String, PageTarget),
    /// What, for this place alone.
    pub(super) text: String,
    /// What to do next.
    pub(super) next: String,
    /// Since when, in ms since 1970, as far as is known.
    pub(super) since: Option<u64>,
}

/// A sort of faults.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sort {
    /// How bad it is.
    pub(super) severity: Severity,
    /// What it is: `{}` stands for the number of places.
    pub(super) many: String,
    /// The list of all places, if there is one.
    pub(super) all: Option<PageTarget>,
}

/// All that is wrong.
pub(super) fn faults(state: &AdminState, snapshot: &Snapshot, sweep: &Sweep) -> Vec<Fault> {
    let explainer = state.explainer();
    let mut faults = Vec::new();
    faults.extend(store(state));
    faults.extend(own_certificates(snapshot));
    faults.extend(nodes(&explainer, snapshot));
    faults.extend(sweep.found().filter_map(|found| volume(&explainer, found)));
    let calls = state.calls.running();
    faults.extend(calls.iter().filter_map(|(_, call)| {
        let verdict = hanging(call)?;
        let many = format!("{{}} calls {} of driver {} hang", call.rpc, call.driver);
        let sort = Sort { severity: Severity::Fault, many, all: Some(PageTarget::Calls) };
        let place = subject_place(&call.driver, &call.progress().subject);
        Some(fault(sort, place, words(verdict), Some(clock::at(call.begun))))
    }));
    faults.extend(failures(state, snapshot));
    faults.extend(not_taken(state, snapshot));
    faults
}

fn store(state: &AdminState) -> Option<Fault> {
    if state.store.is_open() {
        return None;
    }
    let sort = Sort { severity: Severity::Fault, many: "the store fails".into(), all: None };
    let text =
        "csi-cloud's store takes no more changes, so it answers no call that changes anything";
    let next = "see EdgeCsiStoreFailing in docs/troubleshoot/alerts.md";
    let place = ("store".into(), PageTarget::Overview);
    Some(fault(sort, place, (text.into(), next.into()), None))
}

fn own_certificates(snapshot: &Snapshot) -> Vec<Fault> {
    let soon = snapshot.own_ends.iter().filter(|(_, end)| *end <= snapshot.at + millis(OWN));
    let faults = soon.map(|(of, end)| {
        let has_ended = *end <= snapshot.at;
        let severity = if has_ended { Severity::Fault } else { Severity::Warning };
        let sort = Sort { severity, many: of.clone(), all: None };
        let text = format!("{of} {}", ending(*end, snapshot.at));
        let next = "see docs/how-to/certificates.md".into();
        fault(sort, (of.clone(), PageTarget::Certificates), (text, next), None)
    });
    faults.collect()
}

fn nodes(explainer: &Explainer<'_>, snapshot: &Snapshot) -> Vec<Fault> {
    let mut worded: BTreeMap<Sort, (usize, Option<Words>)> = BTreeMap::new();
    let mut faults = Vec::new();
    for node in &snapshot.nodes {
        let Some((sort, driver)) = node_sort(explainer, node) else { continue };
        let (count, words) = worded.entry(sort.clone()).or_default();
        *count += 1;
        // A row of more nodes has their number in place of their words.
        if *count <= WORDED {
            *words = node_words(explainer, node, driver.as_ref(), snapshot.at);
        }
        let Some(words) = words.clone() else { continue };
        let place = (node.name.to_string(), PageTarget::Node(node.name.clone()));
        faults.push(fault(sort, place, words, node.since));
    }
    faults
}

/// The sort of fault that a node is, and the driver that is down there.
fn node_sort(explainer: &Explainer<'_>, node: &NodeCell) -> Option<(Sort, Option<DriverName>)> {
    let (severity, many) = match node.state {
        NodeState::Away => (Severity::Fault, "{} nodes have no link to csi-cloud".to_owned()),
        NodeState::Revoked => (Severity::Fault, "the certificates of {} nodes are revoked".into()),
        NodeState::Apart => {
            (Severity::Warning, "{} nodes are set apart, so nothing new is made there".into())
        }
        NodeState::Ending => (Severity::Warning, "the certificates of {} nodes end soon".into()),
        NodeState::Down => {
            let driver = node.drivers.iter().find(|driver| {
                let health = explainer.links.driver_health(&node.name, driver);
                health.is_some_and(|health| health.down().is_some())
            });
            let driver = (**driver?).clone();
            let many = format!("driver {driver} is down at {{}} nodes");
            let all = PageTarget::Nodes { state: NodeState::Down, driver: Some(driver.clone()) };
            let sort = Sort { severity: Severity::Fault, many, all: Some(all) };
            return Some((sort, Some(driver)));
        }
        NodeState::Linked | NodeState::Removed => return None,
    };
    let all = Some(PageTarget::Nodes { state: node.state, driver: None });
    Some((Sort { severity, many, all }, None))
}

fn node_words(
    explainer: &Explainer<'_>,
    node: &NodeCell,
    driver: Option<&DriverName>,
    now: u64,
) -> Option<Words> {
    if node.state != NodeState::Ending {
        return explainer.node_trouble(&node.name, driver).map(words);
    }
    // `explain` does not know it: nothing waits for it yet.
    let text = format!("the certificate of node {} {}", node.name, ending(node.ends?, now));
    Some((text, "csi-edge renews it by itself; look at its log there (`csi-edge doctor`)".into()))
}

fn volume(explainer: &Explainer<'_>, found: &TroubledHome) -> Option<Fault> {
    let TroubledHome { driver, id, condition, .. } = found;
    let verdict = explainer.home_trouble(driver, id)?;
    let state = condition.name();
    let many = format!("{{}} volumes and snapshots of driver {driver} are {state}");
    let all = Some(PageTarget::Volumes { state: state.to_owned() });
    let target = match id {
        Id::Volume(id) => PageTarget::Volume { driver: driver.clone(), id: id.clone() },
        _ => PageTarget::Node(found.node.clone()),
    };
    let sort = Sort { severity: Severity::Fault, many, all };
    Some(fault(sort, (id.text().to_owned(), target), words(verdict), None))
}

/// What failed last, without what failed because its node is away.
fn failures(state: &AdminState, snapshot: &Snapshot) -> Vec<Fault> {
    let explained = |call: &EndedCall| {
        let node = call.node.as_ref().and_then(|node| snapshot.node(node.as_str()));
        node.is_some_and(|node| matches!(node.state, NodeState::Away | NodeState::Down))
    };
    let failing = state.calls.ended.failing().into_iter();
    let faults = failing.filter_map(|(call, since)| {
        if call.at + millis(RECENT) <= snapshot.at || explained(&call) {
            return None;
        }
        let EndedCall { rpc, driver, code, .. } = &*call;
        let code = code_name(*code);
        let many = format!("{rpc} fails for {{}} volumes of driver {driver} with {code}");
        let sort = Sort { severity: Severity::Warning, many, all: Some(PageTarget::Calls) };
        let place = subject_place(driver, &call.subject);
        Some(fault(sort, place, words(failure(&call)?), Some(since)))
    });
    faults.collect()
}

fn not_taken(state: &AdminState, snapshot: &Snapshot) -> Vec<Fault> {
    let faults = state.store.not_taken().totals().into_iter().filter_map(|(node, total)| {
        let known = snapshot.node(node.as_str())?;
        if known.state == NodeState::Removed {
            return None;
        }
        let many = "at {} nodes runtimes did not take direct volumes".into();
        let sort = Sort { severity: Severity::Warning, many, all: None };
        let text = format!("{total} direct volumes at node {node} were taken by no runtime");
        let next = "see EdgeCsiDirectNotTaken in docs/troubleshoot/alerts.md".into();
        Some(fault(sort, (node.to_string(), PageTarget::Node(node)), (text, next), None))
    });
    faults.collect()
}

/// The page of what a call is about.
fn subject_place(driver: &DriverName, subject: &str) -> (String, PageTarget) {
    if subject.is_empty() {
        return (driver.to_string(), PageTarget::Driver(driver.clone()));
    }
    let target = PageTarget::Volume { driver: driver.clone(), id: subject.to_owned() };
    (subject.to_owned(), target)
}

fn words(verdict: Verdict) -> Words {
    (verdict.text, verdict.next)
}

fn fault(
    sort: Sort,
    place: (String, PageTarget),
    (text, next): Words,
    since: Option<u64>,
) -> Fault {
    Fault { sort, place, text: plain(&text), next: plain(&next), since }
}

/// Makes the rows: the worst first, and then the newest.
pub(super) fn rows(faults: Vec<Fault>) -> Vec<Problem> {
    let mut sorts: BTreeMap<Sort, Vec<Fault>> = BTreeMap::new();
    for fault in faults {
        sorts.entry(fault.sort.clone()).or_default().push(fault);
    }
    let mut rows: Vec<_> = sorts.into_iter().filter_map(|(sort, all)| row(sort, all)).collect();
    rows.sort_by_key(|row| (row.severity, std::cmp::Reverse(row.latest)));
    rows
}

fn row(sort: Sort, mut faults: Vec<Fault>) -> Option<Problem> {
    // The newest first: it is what somebody looks for.
    faults.sort_by(|one, other| {
        other.since.cmp(&one.since).then_with(|| one.place.0.cmp(&other.place.0))
    });
    let count = faults.len();
    let first = faults.first()?;
    let text = match count {
        1 => first.text.clone(),
        _ => sort.many.replace("{}", &count.to_string()),
    };
    Some(Problem {
        severity: sort.severity,
        text,
        next: first.next.clone(),
        since: faults.iter().filter_map(|fault| fault.since).min(),
        latest: faults.iter().filter_map(|fault| fault.since).max(),
        count,
        places: faults.iter().take(NAMED).map(|fault| fault.place.clone()).collect(),
        all: sort.all.filter(|_| count > NAMED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault at a node.
    fn fault(severity: Severity, many: &str, at: &str, since: u64) -> Fault {
        Fault {
            sort: Sort { severity, many: many.into(), all: Some(PageTarget::Calls) },
            place: (at.into(), PageTarget::Node(at.parse().unwrap())),
            text: format!("{at} is alone"),
            next: "look there".into(),
            since: Some(since),
        }
    }

    #[test]
    fn the_same_at_many_places_is_one_row_and_the_worst_and_newest_come_first() {
        let mut faults: Vec<_> = (0..5)
            .map(|n| fault(Severity::Fault, "{} nodes are away", &format!("n{n}"), n * 10_000))
            .collect();
        faults.push(fault(Severity::Warning, "{} nodes are apart", "w", 90_000));
        faults.push(fault(Severity::Fault, "{} nodes are down", "d", 70_000));
        let rows = rows(faults);
        let texts: Vec<_> = rows.iter().map(|row| row.text.as_str()).collect();
        assert_eq!(texts, ["d is alone", "5 nodes are away", "w is alone"]);
        let away = &rows[1];
        assert_eq!((away.since, away.latest), (Some(0), Some(40_000)));
        let named: Vec<_> = away.places.iter().map(|place| place.0.as_str()).collect();
        assert_eq!(named, ["n4", "n3", "n2"]);
        assert_eq!(away.all, Some(PageTarget::Calls));
        assert_eq!(rows[0].all, None, "all places are named");
    }
}
