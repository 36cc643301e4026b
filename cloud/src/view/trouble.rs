//! Finds what is wrong now, in the words of `explain`.
//!
//! Of what is wrong in the same way at many nodes only the first are put into words: the others
//! are counted.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::admin::cells::ending;
use proto::admin::view::{NodeCell, NodeState, Severity, Snapshot, Target};
use proto::csi::Id;
use proto::csi::status::code_name;
use proto::host::{clock, plain};
use proto::names::DriverName;

use super::problem::{Fault, Sort};
use super::sweep::{Sweep, Troubled};
use crate::admin::admin_state::AdminState;
use crate::explain::answer::Verdict;
use crate::explain::ended::failure;
use crate::explain::explainer::Explainer;
use crate::explain::volume::hanging;
use crate::telemetry::ended::EndedCall;

/// The nodes in one state that are put into words.
const WORDED: usize = 3;
/// A failure that is older is nobody's concern any more: callers try again sooner.
const RECENT: Duration = Duration::from_secs(600);
/// csi-cloud's own certificates are a warning for so long before they end.
const OWN: Duration = Duration::from_secs(21 * 86_400);

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
        let subject = call.progress().subject;
        let many = format!("{{}} calls {} of driver {} hang", call.rpc, call.driver);
        let since = Some(clock::at(call.begun));
        let sort = Sort { severity: Severity::Fault, many, all: Some(Target::Calls) };
        Some(fault(sort, subject_place(&call.driver, &subject), verdict, since))
    }));
    faults.extend(failures(state, snapshot));
    faults.extend(not_taken(state, snapshot));
    faults
}

fn store(state: &AdminState) -> Option<Fault> {
    if state.store.is_open() {
        return None;
    }
    Some(Fault {
        sort: Sort { severity: Severity::Fault, many: "the store fails".into(), all: None },
        place: ("store".into(), Target::Overview),
        text: "csi-cloud's store takes no more changes, so it answers no call that changes \
               anything"
            .into(),
        next: "see EdgeCsiStoreFailing in docs/operations.md".into(),
        since: None,
    })
}

fn own_certificates(snapshot: &Snapshot) -> Vec<Fault> {
    let millis = u64::try_from(OWN.as_millis()).unwrap_or(0);
    let soon = snapshot.own_ends.iter().filter(|(_, end)| *end <= snapshot.at + millis);
    let fault = |(of, end): &(String, u64)| Fault {
        sort: Sort {
            severity: if *end <= snapshot.at { Severity::Fault } else { Severity::Warning },
            many: of.clone(),
            all: None,
        },
        place: (of.clone(), Target::Certificates),
        text: format!("{of} {}", ending(*end, snapshot.at)),
        next: "see Certificates in docs/operations.md".into(),
        since: None,
    };
    soon.map(fault).collect()
}

fn nodes(explainer: &Explainer<'_>, snapshot: &Snapshot) -> Vec<Fault> {
    let mut worded: BTreeMap<Sort, Option<Verdict>> = BTreeMap::new();
    let mut counted: BTreeMap<Sort, usize> = BTreeMap::new();
    let mut faults = Vec::new();
    for node in &snapshot.nodes {
        let Some((sort, driver)) = node_sort(explainer, node) else { continue };
        let count = counted.entry(sort.clone()).or_default();
        *count += 1;
        let own =
            (*count <= WORDED).then(|| node_verdict(explainer, node, driver.as_ref(), snapshot.at));
        let verdict = match own {
            Some(verdict) => {
                worded.insert(sort.clone(), verdict.clone());
                verdict
            }
            // The row has the number of nodes in place of its words.
            None => worded.get(&sort).cloned().flatten(),
        };
        let Some(verdict) = verdict else { continue };
        let place = (node.name.to_string(), Target::Node(node.name.clone()));
        faults.push(fault(sort, place, verdict, node.since));
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
            let is_down = |driver: &&std::sync::Arc<DriverName>| {
                let health = explainer.links.driver_health(&node.name, driver);
                health.is_some_and(|health| health.down().is_some())
            };
            let driver = node.drivers.iter().find(is_down)?;
            let many = format!("driver {driver} is down at {{}} nodes");
            let driver = (**driver).clone();
            let all = Target::Nodes { state: NodeState::Down, driver: Some(driver.clone()) };
            let sort = Sort { severity: Severity::Fault, many, all: Some(all) };
            return Some((sort, Some(driver)));
        }
        NodeState::Linked | NodeState::Removed => return None,
    };
    let all = Some(Target::Nodes { state: node.state, driver: None });
    Some((Sort { severity, many, all }, None))
}

fn node_verdict(
    explainer: &Explainer<'_>,
    node: &NodeCell,
    driver: Option<&DriverName>,
    now: u64,
) -> Option<Verdict> {
    if node.state != NodeState::Ending {
        return explainer.node_trouble(&node.name, driver);
    }
    // `explain` does not know it: nothing waits for it yet.
    Some(Verdict {
        cause: crate::explain::answer::Cause::Fine,
        node: Some(node.name.clone()),
        text: format!("the certificate of node {} {}", node.name, ending(node.ends?, now)),
        next: "csi-edge renews it by itself; look at its log there (`csi-edge doctor`)".into(),
    })
}

fn volume(explainer: &Explainer<'_>, found: &Troubled) -> Option<Fault> {
    let Troubled { driver, id, condition, .. } = found;
    let verdict = explainer.home_trouble(driver, id)?;
    let word = condition.name();
    let many = format!("{{}} volumes and snapshots of driver {driver} are {word}");
    let all = Some(Target::Volumes { state: word.to_owned() });
    let sort = Sort { severity: Severity::Fault, many, all };
    let target = match id {
        Id::Volume(id) => Target::Volume { driver: driver.clone(), id: id.clone() },
        _ => Target::Node(found.node.clone()),
    };
    let place = (id.text().to_owned(), target);
    Some(fault(sort, place, verdict, None))
}

/// What failed last, without what failed because its node is away.
fn failures(state: &AdminState, snapshot: &Snapshot) -> Vec<Fault> {
    let recent = u64::try_from(RECENT.as_millis()).unwrap_or(0);
    let failing = state.calls.ended.failing();
    let now = failing.into_iter().filter(|(call, _)| call.at + recent > snapshot.at);
    let explained = |call: &EndedCall| {
        let node = call.node.as_ref().and_then(|node| snapshot.node(node.as_str()));
        node.is_some_and(|node| matches!(node.state, NodeState::Away | NodeState::Down))
    };
    let wanted = now.filter(|(call, _)| !explained(call));
    let each = wanted.filter_map(|(call, since)| {
        let verdict = failure(&call)?;
        let code = code_name(call.code);
        let rpc = call.rpc;
        let driver = &call.driver;
        let many = format!("{rpc} fails for {{}} volumes of driver {driver} with {code}");
        let sort = Sort { severity: Severity::Warning, many, all: Some(Target::Calls) };
        Some(fault(sort, subject_place(driver, &call.subject), verdict, Some(since)))
    });
    each.collect()
}

fn not_taken(state: &AdminState, snapshot: &Snapshot) -> Vec<Fault> {
    let totals = state.store.not_taken().totals();
    let known = totals.iter().filter(|(node, _)| {
        let node = snapshot.node(node.as_str());
        node.is_some_and(|node| node.state != NodeState::Removed)
    });
    let each = known.map(|(node, total)| Fault {
        sort: Sort {
            severity: Severity::Warning,
            many: "at {} nodes runtimes did not take direct volumes".into(),
            all: None,
        },
        place: (node.to_string(), Target::Node(node.clone())),
        text: format!("{total} direct volumes at node {node} were taken by no runtime"),
        next: "see EdgeCsiDirectNotTaken in docs/operations.md".into(),
        since: None,
    });
    each.collect()
}

/// The page of what a call is about.
fn subject_place(driver: &DriverName, subject: &str) -> (String, Target) {
    if subject.is_empty() {
        return (driver.to_string(), Target::Driver(driver.clone()));
    }
    let target = Target::Volume { driver: driver.clone(), id: subject.to_owned() };
    (subject.to_owned(), target)
}

fn fault(sort: Sort, place: (String, Target), verdict: Verdict, since: Option<u64>) -> Fault {
    let Verdict { text, next, .. } = verdict;
    Fault { sort, place, text: plain(&text), next: plain(&next), since }
}
