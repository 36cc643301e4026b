//! Makes the answers about single things from what the admin commands read.

use std::collections::BTreeMap;

use proto::admin::view::{
    CallRow, Calls, ClaimPage, DriverHealth, Explanation, Latency, NodeFacts, NodePage, SetApart,
    Step, Subject as Asked, Timeline, VolumeFacts, VolumeOf, VolumePage,
};
use proto::csi::{Id, Method};
use proto::names::{DriverName, NodeName};

use super::timeline;
use crate::admin::admin_state::AdminState;
use crate::admin::nodes::HealthView;
use crate::admin::nodes::NodeView;
use crate::admin::volumes::{VolumeView, VolumesQuery};
use crate::explain::answer::{Cause, Explanation as Explained, Verdict};
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

/// The explanation of a driver, pod or PersistentVolume; `None` if it can have no such name.
pub(super) async fn explain(state: &AdminState, asked: Asked) -> Option<Explanation> {
    let subject = match asked {
        Asked::Driver(driver) => Subject::Driver(driver),
        Asked::Pod(pod) => Subject::Pod(pod.parse().ok()?),
        Asked::Pv(name) => Subject::Pv(name),
    };
    Some(explanation(state.explain(&subject).await))
}

fn explanation(explained: Explained) -> Explanation {
    let Explained { steps, verdict } = explained;
    let step = |step: crate::explain::answer::Step| Step {
        object: step.object,
        state: step.state,
        found: step.found,
    };
    Explanation {
        steps: steps.into_iter().map(step).collect(),
        is_fine: verdict.cause == Cause::Fine,
        text: verdict.text,
        next: verdict.next,
    }
}

/// A node; `None` if it never linked.
pub(super) async fn node(state: &AdminState, name: &NodeName) -> Option<NodePage> {
    let facts = node_facts(state.node(name)?);
    let explanation = explanation(state.explain(&Subject::Node(name.clone())).await);
    let query = VolumesQuery { node: Some(name.clone()), ..VolumesQuery::default() };
    let all = state.volumes(&query).items;
    let has_more = all.len() > VOLUMES;
    let volumes = all.into_iter().take(VOLUMES).map(volume_facts).collect();
    let ended = state.ended_at(name);
    let latest = ended.iter().take(CALLS_AT_NODE).rev();
    let calls = latest.map(|call| timeline::ended(call)).collect();
    Some(NodePage { facts, explanation, volumes, has_more, calls })
}

fn node_facts(mut view: NodeView) -> NodeFacts {
    let mut health = std::mem::take(&mut view.health);
    let drivers = view.drivers.into_iter().map(|driver| {
        let of = health.remove(&driver).map(driver_health);
        (driver, of)
    });
    let set_apart = view.set_apart.into_iter().map(|apart| SetApart {
        driver: apart.driver,
        why: apart.why,
        since_ms: apart.since_ms,
    });
    NodeFacts {
        since_ms: view.since_ms,
        transport: view.transport,
        address: view.address,
        version: view.version,
        drivers: drivers.collect(),
        unserved: view.unserved,
        not_taken: view.not_taken,
        removed_ms: view.removed_ms,
        revoked_ms: view.revoked_ms,
        set_apart: set_apart.collect(),
    }
}

fn driver_health(view: HealthView) -> DriverHealth {
    DriverHealth { state: view.state, for_s: view.for_s, why: view.why }
}

fn volume_facts(view: VolumeView) -> VolumeFacts {
    VolumeFacts {
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
        Some(verdict) => Explained { steps: Vec::new(), verdict },
        None => {
            let volume = Subject::Volume { driver: driver.clone(), id: id.clone() };
            state.explain(&timeline::claim(state, driver, &id).unwrap_or(volume)).await
        }
    };
    let life = timeline::of_volume(state, driver, &id);
    VolumePage { id, facts: view.map(volume_facts), explanation: explanation(explained), life }
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
    ClaimPage { explanation, volume, life: life.unwrap_or_else(Timeline::default) }
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
pub(super) fn calls(state: &AdminState) -> Calls {
    let running = state.oldest_calls(RUNNING).into_iter().map(|call| CallRow {
        rpc: call.rpc,
        driver: call.driver,
        node: call.node,
        subject: call.subject,
        age_ms: call.age_ms,
        stage: call.stage,
    });
    let ended = state.calls.ended.latest(|_| true);
    let mut by_rpc: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for call in &ended {
        let took = u64::try_from(call.duration.as_millis()).unwrap_or(u64::MAX);
        by_rpc.entry(call.rpc).or_default().push(took);
    }
    let latencies =
        by_rpc.into_iter().filter_map(|(rpc, took)| Some((rpc.to_owned(), latency(took)?)));
    let failed = ended.iter().filter(|call| call.failed()).take(FAILURES);
    let mut failures: Vec<_> = failed.map(|call| timeline::ended(call)).collect();
    failures.reverse();
    Calls {
        running: running.collect(),
        kept: ended.len(),
        latencies: latencies.collect(),
        failures,
    }
}

fn latency(mut took: Vec<u64>) -> Option<Latency> {
    took.sort_unstable();
    let last = took.len().checked_sub(1)?;
    let at = |percent: usize| took.get(last * percent / 100).copied();
    Some(Latency { calls: took.len(), half: at(50)?, most: at(95)?, longest: at(100)? })
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
