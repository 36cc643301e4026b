//! Makes the answers about single things from what the admin commands read.

use std::collections::{BTreeMap, BTreeSet};

use proto::admin::view::{
    CallRow, CallsPage, ClaimPage, ExplainAnswer, ExplainQuery, GroupValues, Latency, NodeDetails,
    NodePage, VolumeDetails, VolumeOf, VolumePage,
};
use proto::csi::{Id, Method};
use proto::host::clock::millis;
use proto::names::{DriverName, NodeName};

use super::timeline;
use crate::admin::admin_state::AdminState;
use crate::admin::calls::CallView;
use crate::admin::nodes::NodeView;
use crate::admin::volumes::{VolumeView, VolumesQuery};
use crate::explain::answer::{Cause, Explanation, Verdict};
use crate::explain::ended::failure;
use crate::explain::subject::{Namespaced, Subject};

/// Calls at a node that are served.
const CALLS_AT_NODE: usize = 30;
/// Volumes of a node that are served.
const VOLUMES: usize = 200;
/// Calls in flight that are served.
const RUNNING: usize = 200;
/// Failures that are served.
const FAILURES: usize = 30;

/// A key with more values is of no use as a group: a node's name, for example.
const VALUES: usize = 200;
/// The keys that are offered.
const KEYS: usize = 20;

/// The explanation of a driver, pod or PersistentVolume; `None` if it can have no such name.
pub(super) async fn explain(state: &AdminState, asked: ExplainQuery) -> Option<ExplainAnswer> {
    let subject = match asked {
        ExplainQuery::Driver(driver) => Subject::Driver(driver),
        ExplainQuery::Pod(pod) => Subject::Pod(pod.parse().ok()?),
        ExplainQuery::Pv(name) => Subject::Pv(name),
    };
    Some(explanation(state.explain(&subject).await))
}

fn explanation(Explanation { steps, verdict }: Explanation) -> ExplainAnswer {
    let is_fine = verdict.cause == Cause::Fine;
    ExplainAnswer { steps, is_fine, text: verdict.text, next: verdict.next }
}

/// A node; `None` if it never linked.
pub(super) async fn node(state: &AdminState, name: &NodeName) -> Option<NodePage> {
    let facts = node_details(state.node(name)?);
    let explanation = explanation(state.explain(&Subject::Node(name.clone())).await);
    let query = VolumesQuery { node: Some(name.clone()), ..VolumesQuery::default() };
    let all = state.volumes(&query).items;
    let has_more = all.len() > VOLUMES;
    let volumes = all.into_iter().take(VOLUMES).map(volume_details).collect();
    let ended = state.ended_at(name);
    let latest = ended.iter().take(CALLS_AT_NODE).rev();
    let calls = latest.map(|call| timeline::ended(call)).collect();
    Some(NodePage { facts, explanation, volumes, has_more, calls })
}

fn node_details(mut view: NodeView) -> NodeDetails {
    let drivers = view.drivers.into_iter().map(|driver| {
        let health = view.health.remove(&driver);
        (driver, health)
    });
    NodeDetails {
        drivers: drivers.collect(),
        since_ms: view.since_ms,
        transport: view.transport,
        address: view.address,
        version: view.version,
        unserved: view.unserved,
        not_taken: view.not_taken,
        removed_ms: view.removed_ms,
        revoked_ms: view.revoked_ms,
        set_apart: view.set_apart,
    }
}

fn volume_details(view: VolumeView) -> VolumeDetails {
    VolumeDetails {
        id: view.id,
        driver: view.driver,
        node: view.node,
        name: view.name,
        capacity_bytes: view.capacity_bytes,
        published: view.published,
        claim: view.claim_namespace.zip(view.claim_name),
        persistent_volume: view.persistent_volume,
        since_ms: view.since_ms,
        state: view.state,
    }
}

/// A volume. A name under which one was made leads to it.
pub(super) async fn volume(state: &AdminState, asked: &VolumeOf) -> VolumePage {
    let driver = &asked.driver;
    let id = timeline::made(state, driver, &asked.id).unwrap_or_else(|| asked.id.clone());
    let view = state.volume(driver, &Id::Volume(id.clone()));
    let failed = create_failed(state, driver, &id).filter(|_| view.is_none());
    let explained = match failed {
        Some(verdict) => Explanation { steps: Vec::new(), verdict },
        None => {
            let volume = Subject::Volume { driver: driver.clone(), id: id.clone() };
            state.explain(&timeline::claim(state, driver, &id).unwrap_or(volume)).await
        }
    };
    let life = timeline::of_volume(state, driver, &id);
    VolumePage { id, facts: view.map(volume_details), explanation: explanation(explained), life }
}

/// A claim.
pub(super) async fn claim(state: &AdminState, claim: Namespaced) -> ClaimPage {
    let explainer = state.explainer();
    let made = explainer.volume_of(&claim).await;
    let sent = explainer.create_of(&claim).await;
    let refused = state.calls.ended.for_claim(&claim.to_string());
    let explanation = explanation(state.explain(&Subject::Pvc(claim)).await);
    let known = made.or_else(|| sent.map(|(driver, _, name)| (driver, name)));
    let known = known.or_else(|| refused.map(|of| (of.driver.clone(), of.subject.to_string())));
    let life = known.as_ref().map(|(driver, id)| timeline::of_volume(state, driver, id));
    let volume = known.map(|(driver, id)| VolumeOf { driver, id });
    ClaimPage { explanation, volume, life: life.unwrap_or_default() }
}

/// Why the last create under a name failed; `None` if the last call about it was not a create. What
/// was sent to no node has no other record.
fn create_failed(state: &AdminState, driver: &DriverName, name: &str) -> Option<Verdict> {
    let ended = state.ended_about(driver, name);
    let last = ended.first()?;
    Method::of_name(last.rpc)?.creates()?;
    failure(last)
}

/// Calls in flight, and those that ended.
pub(super) fn calls(state: &AdminState) -> CallsPage {
    let running = state.oldest_calls(RUNNING).into_iter().map(|call| {
        let CallView { rpc, driver, node, subject, age_ms, stage, .. } = call;
        CallRow { rpc, driver, node, subject, age_ms, stage }
    });
    let ended = state.calls.ended.latest(|_| true);
    let mut by_rpc: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for call in &ended {
        by_rpc.entry(call.rpc).or_default().push(millis(call.duration));
    }
    let latencies =
        by_rpc.into_iter().filter_map(|(rpc, took)| Some((rpc.to_owned(), latency(took)?)));
    let failed = ended.iter().filter(|call| call.failed()).take(FAILURES);
    let failures: Vec<_> = failed.map(|call| timeline::ended(call)).collect();
    CallsPage {
        running: running.collect(),
        kept: ended.len(),
        latencies: latencies.collect(),
        failures: failures.into_iter().rev().collect(),
    }
}

fn latency(mut took: Vec<u64>) -> Option<Latency> {
    took.sort_unstable();
    let last = took.len().checked_sub(1)?;
    let at = |percent: usize| took.get(last * percent / 100).copied();
    Some(Latency { calls: took.len(), half: at(50)?, most: at(95)?, longest: at(100)? })
}

/// The keys by which nodes can be grouped, of topology segments and of labels, and the values of
/// one of them.
pub(super) fn groups(state: &AdminState, key: Option<&str>) -> GroupValues {
    let mut values: BTreeMap<String, BTreeMap<NodeName, String>> = BTreeMap::new();
    let mut note = |key: &str, node: &NodeName, value: &str| {
        values.entry(key.to_owned()).or_default().insert(node.clone(), value.to_owned());
    };
    state.store.read(|known| {
        let drivers = state.policies.keys().filter_map(|driver| known.driver(driver));
        for (node, at) in drivers.flat_map(|of| of.nodes()) {
            for segment in &at.segments {
                note(&segment.0, node, &segment.1);
            }
        }
    });
    let labels = state.policies.values().find_map(|policy| policy.labels());
    for (node, of) in labels.and_then(|labels| labels.all()).unwrap_or_default() {
        for (key, value) in &of {
            note(key, &node, value);
        }
    }
    values.retain(|_, of| (2..=VALUES).contains(&of.values().collect::<BTreeSet<_>>().len()));
    let keys = values.keys().take(KEYS).cloned().collect();
    let of = key.and_then(|key| values.remove(key));
    GroupValues { keys, values: of.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_told_by_rank() {
        let latency = latency((1..=100).collect()).unwrap();
        let Latency { calls, half, most, longest } = latency;
        assert_eq!((calls, half, most, longest), (100, 50, 95, 100));
        assert_eq!(super::latency(Vec::new()), None);
    }
}
