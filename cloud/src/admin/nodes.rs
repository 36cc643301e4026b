//! `csi-cloud nodes`: all nodes that ever linked.

use proto::admin::command::{Command, Page, Refusal, Row};
use proto::admin::view::{HealthDetails, SetApartDetails};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use clap::Args;
use proto::control::hello::Run;
use proto::control::machine::MachineId;
use proto::names::certificate::Subject;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::admin::admin_state::AdminState;
use crate::admin::cells::{age, joined, optional, since, until};
use crate::admin::page::PAGE;
use crate::nodes::cordon;
use crate::nodes::handle::Handle;
use crate::nodes::link_history::CertificateFault;
use crate::state::condition::NodeCondition;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::record::Node;
use crate::state::set_apart::Apart;

/// Show the nodes.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodesQuery {
    /// The last node of the page before.
    #[arg(skip)]
    pub after: Option<NodeName>,
}

impl Command<AdminState> for NodesQuery {
    const NAME: &'static str = "nodes";
    const PATH: &'static str = "/nodes";
    const READS: bool = true;
    const NEEDS_LINKS: bool = true;
    type Answer = Page<NodeView, String>;

    async fn carry_out(self, admin: &AdminState) -> Result<Page<NodeView, String>, Refusal> {
        Ok(admin.nodes(&self))
    }
}

/// A node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its name.
    pub name: NodeName,
    /// `linked`, `away`, `revoked` or `removed`.
    pub state: String,
    /// The time since it linked, in s.
    pub linked_s: Option<u64>,
    /// The time for which it has been away, in s; at most since csi-cloud began.
    pub away_s: Option<u64>,
    /// `wss` or `quic`.
    pub transport: Option<String>,
    /// From where it dialed.
    pub address: Option<String>,
    /// The version of csi-edge.
    pub version: Option<String>,
    /// The drivers that it has.
    pub drivers: Vec<DriverName>,
    /// Drivers that it names and that have no front; nothing is stored of them.
    #[serde(default)]
    pub unserved: Vec<DriverName>,
    /// The health of its drivers, as its edge reports it; empty without a link.
    #[serde(default)]
    pub health: BTreeMap<DriverName, HealthDetails>,
    /// Volumes that live or are being created there, without lost ones.
    pub volumes: u64,
    /// Direct volumes there that no runtime took, by the edge's last report.
    pub not_taken: u64,
    /// The time at which it first linked, in ms since 1970.
    pub since_ms: u64,
    /// The time at which it was removed, in ms since 1970.
    pub removed_ms: Option<u64>,
    /// The end of the certificate of its link, in ms since 1970; none without a link.
    #[serde(default)]
    pub not_after_ms: Option<u64>,
    /// The machine that it is; none while no csi-edge there has told its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
    /// Another machine with its certificate, which was refused within the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_machine: Option<MachineId>,
    /// The runs of csi-edge that are alive with its certificate at the same time; none may link.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cordoned_runs: Vec<Run>,
    /// The fault of its certificate: `cordoned`, `shared`, `other-machine`, `older` or `ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_fault: Option<String>,
    /// The time at which its certificates were revoked, in ms since 1970, also if it has joined
    /// again.
    #[serde(default)]
    pub revoked_ms: Option<u64>,
    /// The reason why it is set apart, for each driver or for all.
    #[serde(default)]
    pub set_apart: Vec<SetApartDetails>,
}

impl Row for NodeView {
    const HEADERS: &'static [&'static str] = &[
        "NAME",
        "STATE",
        "FOR",
        "TRANSPORT",
        "ADDRESS",
        "VERSION",
        "CERT",
        "VOLUMES",
        "NOT-TAKEN",
        "DRIVERS",
        "AGE",
        "NOT UP",
        "SET APART",
    ];

    fn row(&self) -> Vec<String> {
        let in_state = match self.removed_ms {
            Some(removed) => Some(since(removed)),
            None => self.linked_s.or(self.away_s).map(|s| age(Duration::from_secs(s))),
        };
        vec![
            self.name.to_string(),
            self.state.clone(),
            in_state.unwrap_or_default(),
            optional(self.transport.as_ref()),
            optional(self.address.as_ref()),
            optional(self.version.as_ref()),
            certificate(self),
            self.volumes.to_string(),
            self.not_taken.to_string(),
            joined(&[self.drivers.clone(), self.unserved.clone()].concat()),
            since(self.since_ms),
            self.health.iter().filter_map(not_up).collect::<Vec<_>>().join("; "),
            self.set_apart.iter().map(set_apart).collect::<Vec<_>>().join("; "),
        ]
    }
}

/// The end of a node's certificate, and its fault.
fn certificate(node: &NodeView) -> String {
    let end = node.not_after_ms.map(until);
    end.into_iter().chain(node.certificate_fault.clone()).collect::<Vec<_>>().join(", ")
}

fn not_up((driver, health): (&DriverName, &HealthDetails)) -> Option<String> {
    (!health.is_up()).then(|| format!("{driver}: {}", health.text()))
}

fn set_apart(apart: &SetApartDetails) -> String {
    match &apart.driver {
        Some(driver) => format!("{driver}: {}", apart.why),
        None => apart.why.clone(),
    }
}

fn set_apart_details(driver: Option<&DriverName>, apart: &Apart) -> SetApartDetails {
    SetApartDetails {
        driver: driver.cloned(),
        reason: apart.reason.kind().name().into(),
        why: apart.reason.to_string(),
        since_ms: apart.since,
    }
}

impl AdminState {
    /// The health of a driver at a node; none without a link.
    pub(super) fn health(&self, node: &NodeName, driver: &DriverName) -> Option<HealthDetails> {
        let health = self.links.driver_health(node, driver)?;
        Some(HealthDetails {
            state: health.name().into(),
            for_s: health.lasts().as_secs(),
            why: health.why.to_string(),
        })
    }

    /// Nodes by name.
    pub(super) fn nodes(&self, query: &NodesQuery) -> Page<NodeView, String> {
        let from = query.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let stored: Vec<_> = self.store.read(|state| {
            let nodes = state.nodes().range((from, Bound::Unbounded)).take(PAGE);
            let stored = |(name, node)| {
                let link = self.links.now(name);
                (stored(state, name, node, link.is_some()), link)
            };
            nodes.map(stored).collect()
        });
        let items: Vec<_> =
            stored.into_iter().map(|(node, link)| self.with_link(node, link)).collect();
        let next = items.last().filter(|_| items.len() == PAGE).map(|node| node.name.to_string());
        Page { items, next }
    }

    /// One node; none if it never linked.
    pub(crate) fn node(&self, name: &NodeName) -> Option<NodeView> {
        let (node, link) = self.store.read(|state| {
            let link = self.links.now(name);
            Some((stored(state, name, state.node(name)?, link.is_some()), link))
        })?;
        Some(self.with_link(node, link))
    }

    /// Adds the state of the node's link, or the time without one.
    fn with_link(&self, mut node: NodeView, link: Option<Arc<Handle>>) -> NodeView {
        node.not_taken = self.store.not_taken().total(&node.name);
        let fault = cordon::certificate_fault(&self.links, &node.name);
        node.certificate_fault = fault.as_ref().map(|fault| fault.name().into());
        match fault {
            Some(CertificateFault::OtherMachine(refused)) => {
                node.refused_machine = Some(refused.machine);
            }
            Some(CertificateFault::Cordoned(runs)) => node.cordoned_runs = runs,
            _ => {}
        }
        let Some(link) = link else {
            node.away_s = self.links.away(&node.name).map(|away| away.as_secs());
            return node;
        };
        let end = link.expires().and_then(|end| end.duration_since(UNIX_EPOCH).ok());
        node.not_after_ms = end.and_then(|end| u64::try_from(end.as_millis()).ok());
        node.unserved = link.unserved().into_iter().map(|driver| driver.name).collect();
        let health = |driver: &DriverName| Some((driver.clone(), self.health(&node.name, driver)?));
        node.health = node.drivers.iter().filter_map(health).collect();
        node.linked_s = Some(link.begun.elapsed().as_secs());
        node.transport = Some(link.peer.transport).filter(|name| !name.is_empty()).map(Into::into);
        node.address = link.peer.address.map(|address| address.to_string());
        node.version = Some(link.peer.version.to_string());
        node
    }
}

/// A node as the store knows it.
fn stored(state: &State, name: &NodeName, node: &Node, is_linked: bool) -> NodeView {
    let revocation = state.trust().revocation(&Subject::Node(name.clone()));
    let drivers = state.drivers();
    let has = |of: &DriverState| of.at(name).is_some_and(|at| at.gone.is_none());
    let apart = state.apart().at(name);
    let here = drivers.iter().filter(|(_, of)| has(of));
    NodeView {
        name: name.clone(),
        state: NodeCondition::of(state, name, is_linked).name().into(),
        linked_s: None,
        away_s: None,
        transport: None,
        address: None,
        version: None,
        drivers: here.map(|(driver, _)| (*driver).clone()).collect(),
        unserved: Vec::new(),
        health: BTreeMap::new(),
        volumes: drivers.values().map(|of| of.load(name)).sum(),
        not_taken: 0,
        since_ms: node.since,
        removed_ms: node.removed,
        not_after_ms: None,
        machine: node.machine,
        refused_machine: None,
        cordoned_runs: Vec::new(),
        certificate_fault: None,
        revoked_ms: revocation.map(|revocation| revocation.since),
        set_apart: apart.map(|(driver, apart)| set_apart_details(driver, apart)).collect(),
    }
}
