//! Nodes, and drivers at nodes.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use proto::admin::cells::age;
use proto::control::hello::Run;
use proto::host::plain;
use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::explainer::Explainer;
use crate::kubernetes::objects::Seen;
use crate::nodes::cordon;
use crate::nodes::driver_health::DriverHealth;
use crate::nodes::link_history::{CertificateFault, RefusedMachine};
use crate::state::condition::NodeCondition;
use crate::state::known::State;

/// For so long after csi-cloud began it is no wonder that a node has not linked.
const SETTLING: Duration = Duration::from_secs(60);

/// What is known of a node, for one driver or for none.
#[derive(Clone, Debug)]
pub(super) struct NodeFacts {
    condition: NodeCondition,
    /// How long it has had no link; zero if it has one.
    away: Duration,
    /// Whether it has had none since csi-cloud began.
    awaited: bool,
    /// What is wrong with its certificate.
    certificate: Option<CertificateFault>,
    /// Why it is set apart: for the driver, or for any if none is asked about.
    apart: Option<String>,
    /// Whether it has the driver.
    has_driver: bool,
    /// How the driver is there, by the node's word.
    health: Option<DriverHealth>,
}

/// What a node is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Something new shall be made there.
    NewVolumes,
    /// What it has shall be used.
    Use,
}

impl Explainer<'_> {
    pub(super) fn node_facts(&self, node: &NodeName, driver: Option<&DriverName>) -> NodeFacts {
        let away = self.links.away(node);
        let health = driver.and_then(|driver| self.links.driver_health(node, driver));
        let awaited = away.is_some() && self.links.history.lost_for(node).is_none();
        let certificate = cordon::certificate_fault(self.links, node);
        self.store.read(|state| {
            let stored = stored(state, node, driver, away);
            NodeFacts { awaited, certificate, health, ..stored }
        })
    }

    /// What keeps a node from making new volumes, of this driver or of any.
    pub fn node_trouble(&self, node: &NodeName, driver: Option<&DriverName>) -> Option<Verdict> {
        judge(&self.node_facts(node, driver), node, driver, Need::NewVolumes)
    }

    /// Follows the chain to a node, and to a driver there.
    pub(super) fn follow_node(
        &self,
        chain: &mut Chain,
        node: &NodeName,
        driver: Option<&DriverName>,
        need: Need,
    ) {
        let facts = self.node_facts(node, driver);
        chain.step(format!("node {node}"), facts.condition.name(), facts.found());
        if let Some(driver) = driver.filter(|_| facts.condition == NodeCondition::Linked) {
            let (state, why) = facts.driver_state();
            chain.step(format!("driver {driver} at node {node}"), state, why);
        }
        chain.judge(judge(&facts, node, driver, need));
    }

    /// Whether the kubelet of a node has these drivers, as far as Kubernetes is seen.
    async fn follow_registrations(
        &self,
        chain: &mut Chain,
        node: &NodeName,
        drivers: &[&DriverName],
    ) {
        let Some(objects) = self.objects.filter(|_| !drivers.is_empty()) else { return };
        let registered = match objects.registered_drivers(node).await {
            Ok(registered) => registered,
            Err(why) => return chain.not_visible(format!("CSINode {node}"), &why),
        };
        for driver in drivers {
            let has = registered.as_ref().map(|names| names.contains(driver.as_str()));
            chain.judge_weakly(unregistered(&Ok(has), driver, node));
        }
    }

    /// A node by itself, with all its drivers.
    pub(super) async fn node(&self, node: &NodeName) -> Explanation {
        let mut chain = Chain::default();
        self.follow_node(&mut chain, node, None, Need::NewVolumes);
        let mut drivers = Vec::new();
        for driver in &self.drivers {
            if self.node_facts(node, Some(driver)).has_driver {
                self.follow_node(&mut chain, node, Some(driver), Need::NewVolumes);
                drivers.push(driver);
            }
        }
        self.follow_registrations(&mut chain, node, &drivers).await;
        let failed = self.follow_ended_at(&mut chain, node);
        chain.judge_weakly(failed);
        chain.end(|| Verdict::fine(format!("node {node} has a link, and its drivers are up")))
    }
}

/// What it means for a node that its kubelet does not have a driver.
pub(super) fn unregistered(
    registered: &Seen<bool>,
    driver: &DriverName,
    node: &NodeName,
) -> Option<Verdict> {
    let (text, next) = match registered.as_ref().ok()? {
        Some(true) => return None,
        Some(false) => (
            format!("the CSINode of node {node} does not have driver {driver}"),
            "look at csi-edge and the driver's registrar there",
        ),
        None => (
            format!(
                "Kubernetes has no CSINode of node {node}: its Node object is gone, or its \
                 kubelet has no driver"
            ),
            "`kubectl get nodes`; a kubelet makes its Node object again when it starts. If it is \
             there, look at csi-edge and the driver's registrar at the node",
        ),
    };
    Some(Verdict::of(Cause::NotRegistered, text, next).at(node))
}

/// `away` is how long the node has had no link; none if it has one.
fn stored(
    state: &State,
    node: &NodeName,
    driver: Option<&DriverName>,
    away: Option<Duration>,
) -> NodeFacts {
    let at = driver.and_then(|driver| state.driver(driver)?.at(node));
    let apart = state.apart();
    let why = match driver {
        Some(driver) => apart.why(node, driver),
        None => apart.at(node).map(|(_, apart)| apart).next(),
    };
    NodeFacts {
        condition: NodeCondition::of(state, node, away.is_none()),
        away: away.unwrap_or_default(),
        awaited: false,
        certificate: None,
        apart: why.map(|apart| apart.reason.to_string()),
        has_driver: at.is_some_and(|at| at.gone.is_none()),
        health: None,
    }
}

impl NodeFacts {
    fn found(&self) -> String {
        let is_away = !matches!(self.condition, NodeCondition::Linked | NodeCondition::Unknown);
        let away = is_away.then_some(self.away).filter(|away| !away.is_zero());
        let away = away.map(|away| format!("no link for {}", age(away)));
        let apart = self.apart.as_ref().map(|why| format!("set apart: {why}"));
        away.into_iter().chain(apart).collect::<Vec<_>>().join("; ")
    }

    /// The driver's state, and why.
    fn driver_state(&self) -> (&'static str, String) {
        match &self.health {
            _ if !self.has_driver => ("missing", String::new()),
            Some(health) => (health.name(), plain(&health.why)),
            None => ("unknown", "the node has not said how it is".into()),
        }
    }
}

/// What keeps a node from doing what it is needed for.
pub(super) fn judge(
    facts: &NodeFacts,
    node: &NodeName,
    driver: Option<&DriverName>,
    need: Need,
) -> Option<Verdict> {
    let verdict = match facts.condition {
        NodeCondition::Removed => Verdict::of(
            Cause::NodeRemoved,
            format!("node {node} was removed for good"),
            format!("`csi-cloud node admit {node}` lets it in again"),
        ),
        NodeCondition::Revoked => Verdict::of(
            Cause::NodeRevoked,
            format!("the certificates of node {node} were revoked"),
            format!("if it is trusted again, `csi-cloud token create {node}` lets it join"),
        ),
        NodeCondition::Unknown => Verdict::of(
            Cause::NodeUnknown,
            format!("no csi-edge at node {node} has ever linked"),
            "look whether csi-edge runs there, and at its log (`csi-edge doctor`)",
        ),
        NodeCondition::Away => shared(facts, node).unwrap_or_else(|| away(facts, node)),
        NodeCondition::Linked => {
            shared(facts, node).or_else(|| linked(facts, node, driver, need))?
        }
    };
    Some(verdict.at(node))
}

/// Whether two csi-edges have the node's certificate.
fn shared(facts: &NodeFacts, node: &NodeName) -> Option<Verdict> {
    match facts.certificate.as_ref()? {
        // A node with a link has a newer certificate, and lacks nothing.
        CertificateFault::Older(_) => None,
        fault => has_certificate(fault, node),
    }
}

/// Who else has the node's certificate, or an older one.
pub(crate) fn has_certificate(fault: &CertificateFault, node: &NodeName) -> Option<Verdict> {
    let addresses = match fault {
        CertificateFault::Ended(_) => return None,
        CertificateFault::OtherMachine(refused) => return Some(other_machine(refused, node)),
        CertificateFault::Older(from) => return Some(older(*from, node)),
        CertificateFault::Cordoned(runs) => return Some(cordoned(runs, node)),
        CertificateFault::Shared(addresses) => addresses,
    };
    let at = addresses.iter().flatten().map(ToString::to_string).collect::<Vec<_>>();
    Some(Verdict::of(
        Cause::CertificateShared,
        format!(
            "two csi-edges use the certificate of node {node} and replace each other's links: {}",
            at.join(" and ")
        ),
        format!(
            "end the one that is not node {node}; if it is another node, csi-cloud token create \
             with its own name gives it an identity of its own"
        ),
    ))
}

fn other_machine(refused: &RefusedMachine, node: &NodeName) -> Verdict {
    let machine = refused.machine;
    Verdict::of(
        Cause::CertificateShared,
        format!(
            "another machine has the certificate of node {node} and is refused: machine {refused}"
        ),
        format!(
            "if the node has moved there, `csi-cloud node accept {node} --machine {machine}`; if \
             it is a copy of the node's disk, delete its identity and state there"
        ),
    )
}

fn cordoned(runs: &[Run], node: &NodeName) -> Verdict {
    let runs = cordon::in_words(runs);
    Verdict::of(
        Cause::CertificateShared,
        format!(
            "two csi-edges are alive with the certificate of node {node}, each with a disk of its \
             own, and none may link: runs {runs}"
        ),
        format!(
            "`csi-edge status` on the node shows its run; `csi-cloud node accept {node} --run RUN` \
             links that one, and the other one must join under a name of its own"
        ),
    )
}

fn older(from: Option<SocketAddr>, node: &NodeName) -> Verdict {
    let from = from.map(|from| format!(" ({from})")).unwrap_or_default();
    Verdict::of(
        Cause::CertificateShared,
        format!("an older certificate of node {node} was shown{from}, and was not renewed"),
        format!(
            "if that is the node, whose disk was restored, `csi-cloud token create {node}` lets it \
             join again; if it is a copy, delete it"
        ),
    )
}

fn away(facts: &NodeFacts, node: &NodeName) -> Verdict {
    let lasts = age(facts.away);
    if let Some(CertificateFault::Older(from)) = facts.certificate {
        return older(from, node);
    }
    if let Some(CertificateFault::Ended(at)) = facts.certificate {
        let since = SystemTime::now().duration_since(at).unwrap_or_default();
        return Verdict::of(
            Cause::CertificateEnded,
            format!(
                "the certificate of node {node} ended {} ago, so its csi-edge has no link",
                age(since)
            ),
            format!(
                "look at both clocks; a csi-edge that joined renews by itself, else `csi-cloud \
                 token create {node}` lets it join"
            ),
        );
    }
    if facts.awaited && facts.away < SETTLING {
        return Verdict::of(
            Cause::CloudBegan,
            format!("node {node} has had no link to csi-cloud since that began {lasts} ago"),
            "it links again by itself; after a minute, look at its power and network",
        );
    }
    Verdict::of(
        Cause::NodeAway,
        format!("node {node} has had no link to csi-cloud for {lasts}"),
        "look at its power and network, and at csi-edge's log there (`csi-edge doctor`)",
    )
}

fn linked(
    facts: &NodeFacts,
    node: &NodeName,
    driver: Option<&DriverName>,
    need: Need,
) -> Option<Verdict> {
    if let Some(driver) = driver {
        if !facts.has_driver {
            return Some(Verdict::of(
                Cause::DriverMissing,
                format!("csi-edge at node {node} does not name driver {driver}"),
                "look at `csi-edge drivers` and the driver's log there",
            ));
        }
        let down = facts.health.as_ref().filter(|health| !health.is_up());
        if let Some(health) = down {
            let lasts = age(health.lasts());
            let state = health.name();
            let why = plain(&health.why);
            return Some(Verdict::of(
                Cause::DriverDown,
                format!("driver {driver} at node {node} has been {state} for {lasts} ({why})"),
                "look at the driver's log there",
            ));
        }
    }
    let why = facts.apart.as_ref().filter(|_| need == Need::NewVolumes)?;
    Some(Verdict::of(
        Cause::NodeSetApart,
        format!("node {node} is set apart, so nothing new is made there: {why}"),
        "docs/design/nodes-and-drivers.md says what to do",
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_channel::mpsc;
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use proto::control::health::{Health, HealthState};
    use proto::control::machine::MachineId;
    use proto::host::tasks::Tasks;
    use serde_json::json;

    use super::super::commands::check_commands;
    use super::*;
    use crate::kubernetes::objects::Objects;
    use crate::nodes::handle::{Handle, Peer};
    use crate::nodes::links::Links;
    use crate::state::record::NodeDriver;
    use crate::state::store::memory::Memory;
    use crate::state::store::writer::Store;
    use crate::telemetry::calls::Calls;

    fn good() -> NodeFacts {
        NodeFacts {
            condition: NodeCondition::Linked,
            away: Duration::ZERO,
            awaited: false,
            certificate: None,
            apart: None,
            has_driver: true,
            health: None,
        }
    }

    fn cause(facts: &NodeFacts, need: Need) -> Option<Cause> {
        let driver: DriverName = "d.example".parse().unwrap();
        let verdict = judge(facts, &"n1".parse().unwrap(), Some(&driver), need)?;
        assert!(verdict.text.contains("n1") && verdict.node.is_some(), "{verdict:?}");
        check_commands(&verdict);
        Some(verdict.cause)
    }

    #[tokio::test(start_paused = true)]
    async fn each_state_of_a_node_is_a_cause_of_its_own() {
        let unlinked = |condition| NodeFacts { condition, away: Duration::from_secs(60), ..good() };
        let away = unlinked(NodeCondition::Away);
        let began = NodeFacts { awaited: true, away: Duration::from_secs(9), ..away.clone() };
        let ended = Some(CertificateFault::Ended(SystemTime::UNIX_EPOCH));
        let shared = Some(CertificateFault::Shared([None, None]));
        let refused = RefusedMachine { machine: MachineId::new("board 2"), address: None };
        let refused = Some(CertificateFault::OtherMachine(refused));
        let older = Some(CertificateFault::Older(None));
        let down = Health { state: HealthState::Gone, seconds: 9, why: "no socket".into() };
        let down = Some(DriverHealth::reported(&down));
        let apart = Some("w".to_owned());
        let table = [
            (good(), None),
            (began.clone(), Some(Cause::CloudBegan)),
            (NodeFacts { certificate: ended.clone(), ..began }, Some(Cause::CertificateEnded)),
            (NodeFacts { certificate: ended, ..good() }, None),
            (NodeFacts { awaited: true, ..away.clone() }, Some(Cause::NodeAway)),
            (
                NodeFacts { certificate: shared.clone(), ..away.clone() },
                Some(Cause::CertificateShared),
            ),
            (NodeFacts { certificate: shared, ..good() }, Some(Cause::CertificateShared)),
            (
                NodeFacts { certificate: refused.clone(), ..away.clone() },
                Some(Cause::CertificateShared),
            ),
            (NodeFacts { certificate: refused, ..good() }, Some(Cause::CertificateShared)),
            (NodeFacts { certificate: older.clone(), ..good() }, None),
            (NodeFacts { certificate: older, ..away.clone() }, Some(Cause::CertificateShared)),
            (away, Some(Cause::NodeAway)),
            (unlinked(NodeCondition::Unknown), Some(Cause::NodeUnknown)),
            (unlinked(NodeCondition::Revoked), Some(Cause::NodeRevoked)),
            (unlinked(NodeCondition::Removed), Some(Cause::NodeRemoved)),
            (NodeFacts { has_driver: false, ..good() }, Some(Cause::DriverMissing)),
            (NodeFacts { health: down.clone(), ..good() }, Some(Cause::DriverDown)),
            (NodeFacts { apart: apart.clone(), ..good() }, Some(Cause::NodeSetApart)),
            (NodeFacts { apart: apart.clone(), health: down, ..good() }, Some(Cause::DriverDown)),
        ];
        for (facts, expected) in table {
            assert_eq!(cause(&facts, Need::NewVolumes), expected, "{facts:?}");
        }
        assert_eq!(cause(&NodeFacts { apart, ..good() }, Need::Use), None);
    }

    #[test]
    fn a_node_whose_node_object_is_gone_is_told_so() {
        let (node, driver) = ("n1".parse().unwrap(), "d.example".parse().unwrap());
        let gone = unregistered(&Ok(None), &driver, &node).unwrap();
        assert!(gone.text.contains("its Node object is gone"), "{}", gone.text);
        assert_eq!(gone.cause, Cause::NotRegistered);
        assert_eq!(unregistered(&Ok(Some(true)), &driver, &node), None);
        assert_eq!(unregistered(&Err("forbidden".into()), &driver, &node), None);
    }

    #[tokio::test]
    async fn the_csinode_is_read_once_for_all_drivers_of_a_node() {
        let node: NodeName = "n1".parse().unwrap();
        let names = ["a.example", "b.example", "c.example"];
        let drivers: BTreeSet<DriverName> = names.map(|name| name.parse().unwrap()).into();
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let (at, all) = (node.clone(), drivers.clone());
        let write = store.write(move |txn| {
            for driver in &all {
                txn.set_at(driver, &at, Some(NodeDriver::default()));
            }
        });
        write.await.unwrap();
        let links = Links::new(store.clone(), tasks.clone(), |_, _, _, _| Box::pin(async { None }));
        let (want, _wanted) = mpsc::channel(1);
        links.enter(&node, &Arc::new(Handle::new(Peer::default(), want, tasks.child())));
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = reads.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let entry = |name: &str| json!({"name": name, "nodeID": "n1", "topologyKeys": null});
            let csinode = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
                "metadata": {"name": "n1"}, "spec": {"drivers": names.map(entry)[..2]}});
            let answer = Response::new(Body::from(csinode.to_string().into_bytes()));
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let objects = Objects::of(Client::new(service, "edge-csi"));
        let (links, calls) = (Arc::new(links), Calls::default());
        let explainer = Explainer {
            store: &store,
            links: &links,
            calls: &calls,
            drivers,
            objects: Some(&objects),
        };
        let verdict = explainer.node(&node).await.verdict;
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        assert_eq!(verdict.cause, Cause::NotRegistered, "{verdict:?}");
        assert!(verdict.text.contains("c.example"), "{verdict:?}");
    }
}
