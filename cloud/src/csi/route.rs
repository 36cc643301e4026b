//! Decides to which node a call goes. Pure: what is known goes in, a plan or the reason for none comes out.
//!
//! Nothing here may guess: a call whose node is not certain gets a reason, and while a node may hold what the
//! call is about the reason is answered UNAVAILABLE, because a code that is final would make the sidecars
//! forget a volume that may exist.

use std::collections::BTreeSet;

use proto::csi::{Id, Key, Method, Segments};
use proto::names::NodeName;

use crate::state::known::DriverState;
use crate::state::node_names::first_few;
use crate::state::policy::{Placement, Policy, Scope};
use crate::state::record::Intent;

/// How many nodes at one topology are compared by their volumes; more would cost each create of a large zone.
const COMPARED: usize = 64;

/// Where a call goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// The front answers it.
    Local,
    /// This node's driver carries it out.
    Node(NodeName),
    /// This node's driver answers with a stream.
    Stream(NodeName),
    /// One of these nodes' drivers makes something, after the intent is durable: the one with the
    /// fewest volumes. All have a link.
    Create(Id, Vec<NodeName>),
    /// The create of this name was sent to this node before.
    CreateAgain(Id, NodeName),
    /// A list over all nodes.
    All,
    /// The capacity of these nodes together.
    Capacity(Vec<NodeName>),
    /// What is to end has no home: each node is told to end it.
    Everywhere(Id),
    /// These have no home: the nodes are asked for them, and then it is decided again.
    Discover(Vec<Id>),
    /// It is done, since the node where it would be done is gone for good.
    Done,
    /// It makes sense on a node's own socket only.
    NodeOnly,
}

/// Why no node is certain.
#[derive(Debug, PartialEq, Eq)]
pub enum Unclear {
    /// It may become clear when an edge links; the reason is for an operator.
    Yet(String),
    /// The node is certain and has no link; nothing was sent to it.
    Away(NodeName),
    /// No node is where the volume shall be. CSI: "Unable to provision in accessible_topology".
    Nowhere(String),
    /// The source lives at this node, the requested topology excludes it, and the operator refuses
    /// that.
    NotBesideSource {
        /// The source's node.
        node: NodeName,
        /// The kind and id of the source.
        made_from: String,
        /// The requested topology.
        topology: String,
    },
    /// An operator removed the node.
    Removed(NodeName),
    /// It never will be: these ids live on several nodes.
    SeveralHomes(Vec<NodeName>),
}

/// What is known of one driver.
pub struct Facts<'a> {
    /// What the store keeps; none if no node ever had the driver.
    pub driver: Option<&'a DriverState>,
    /// Whether a node has a link.
    pub linked: &'a dyn Fn(&NodeName) -> bool,
    /// Whether an operator removed a node.
    pub removed: &'a dyn Fn(&NodeName) -> bool,
    /// The node whose own front this is, if it is one.
    pub only: Option<&'a NodeName>,
    /// How far the driver's volumes reach.
    pub scope: Scope,
    /// What the operator wants.
    pub policy: &'a Policy,
    /// This moment, in ms since 1970.
    pub now: u64,
}

/// Decides.
///
/// # Errors
/// Why no node is certain.
pub fn route(method: Method, key: &Key, facts: &Facts<'_>) -> Result<Plan, Unclear> {
    let plan = decide(method, key, facts)?;
    Ok(match plan {
        Plan::Node(node) if method.streaming() => Plan::Stream(node),
        plan => plan,
    })
}

fn decide(method: Method, key: &Key, facts: &Facts<'_>) -> Result<Plan, Unclear> {
    if let Some(node) = facts.only.filter(|_| !matches!(key, Key::Local | Key::Node(_))) {
        return facts.at_front(method, key, node);
    }
    match (key, facts.scope) {
        (Key::Local, _) => Ok(Plan::Local),
        (Key::Node(_), _) => Ok(Plan::NodeOnly),
        (Key::Create { name, .. } | Key::Snapshot { name, .. }, Scope::Shared)
            if !name.is_empty() =>
        {
            facts.create_shared(Id::Name(method, name.clone()))
        }
        // Without a name it is the driver's to refuse.
        (_, Scope::Shared) => facts.elected().map(Plan::Node),
        (Key::Create { name, source: Some(source), topology, required }, Scope::Node) => {
            let name = Id::Name(method, name.clone());
            let requested = Requested { topology, required: *required };
            facts.sent(&name).unwrap_or_else(|| facts.beside_source(name, source, &requested))
        }
        (Key::Create { name, source: None, topology, .. }, Scope::Node) => {
            let name = Id::Name(method, name.clone());
            facts.sent(&name).unwrap_or_else(|| facts.place(name, topology))
        }
        (Key::Snapshot { name, volumes }, Scope::Node) => {
            let name = Id::Name(method, name.clone());
            facts.sent(&name).unwrap_or_else(|| facts.snapshot(name, volumes))
        }
        (Key::Home(id), Scope::Node) => {
            facts.home(id).unwrap_or_else(|| facts.only_or(Plan::Discover(vec![id.clone()])))
        }
        (Key::Delete(id), Scope::Node) => match facts.home(id) {
            Some(Err(Unclear::Removed(_))) if method.detaches() => Ok(Plan::Done),
            Some(home) => home,
            None => facts.only_or(Plan::Everywhere(id.clone())),
        },
        (Key::All, Scope::Node) => facts.any().map(|()| Plan::All),
        (Key::Capacity(topology), Scope::Node) => {
            facts.any().map(|()| Plan::Capacity(facts.located(topology.as_ref())))
        }
    }
}

/// Where a caller wants a new volume.
struct Requested<'a> {
    topology: &'a [Segments],
    required: bool,
}

impl Facts<'_> {
    /// On a node's own front: there, unless it is known to be elsewhere.
    fn at_front(&self, method: Method, key: &Key, node: &NodeName) -> Result<Plan, Unclear> {
        match key {
            // Without a name nothing can be written down, and the driver refuses it itself.
            Key::Create { name, source: Some(source), topology, required } if !name.is_empty() => {
                let name = Id::Name(method, name.clone());
                let requested = Requested { topology, required: *required };
                self.sent(&name)
                    .unwrap_or_else(|| self.create_beside(name, node.clone(), source, &requested))
            }
            Key::Create { name, .. } | Key::Snapshot { name, .. } if !name.is_empty() => {
                let name = Id::Name(method, name.clone());
                self.sent(&name).unwrap_or_else(|| self.create_at(name, node.clone()))
            }
            Key::Home(id) | Key::Delete(id) => self.home(id).unwrap_or_else(|| self.at(node)),
            Key::Create { .. }
            | Key::Snapshot { .. }
            | Key::Local
            | Key::All
            | Key::Capacity(_)
            | Key::Node(_) => self.at(node),
        }
    }

    /// Where a create was sent before: it goes nowhere else until its outcome is known.
    fn sent(&self, name: &Id) -> Option<Result<Plan, Unclear>> {
        let intent = self.driver?.intent(name)?;
        Some(self.admitted(&intent.node).map(|node| Plan::CreateAgain(name.clone(), node)))
    }

    fn home(&self, id: &Id) -> Option<Result<Plan, Unclear>> {
        self.driver?.home(id).map(|home| self.at(&home.node))
    }

    fn at(&self, node: &NodeName) -> Result<Plan, Unclear> {
        self.admitted(node).map(Plan::Node)
    }

    fn admitted(&self, node: &NodeName) -> Result<NodeName, Unclear> {
        if (self.removed)(node) { Err(Unclear::Removed(node.clone())) } else { Ok(node.clone()) }
    }

    /// A new volume with a source: at its source's home.
    fn beside_source(
        &self,
        name: Id,
        source: &Id,
        requested: &Requested<'_>,
    ) -> Result<Plan, Unclear> {
        let home = self.driver.and_then(|driver| driver.home(source));
        match home.map(|home| home.node.clone()).or_else(|| self.only_node()) {
            Some(node) => self.create_beside(name, node, source, requested),
            None => Ok(Plan::Discover(vec![source.clone()])),
        }
    }

    /// A new volume at its source's node, unless the operator refuses it there.
    fn create_beside(
        &self,
        name: Id,
        node: NodeName,
        source: &Id,
        requested: &Requested<'_>,
    ) -> Result<Plan, Unclear> {
        let is_refusing = !self.policy.beside_source && self.scope == Scope::Node;
        let at = self.driver.and_then(|driver| driver.at(&node)).filter(|_| is_refusing);
        if at.is_some_and(|at| !at.is_requested(requested.topology, requested.required)) {
            return Err(Unclear::NotBesideSource {
                node: self.admitted(&node)?,
                made_from: source_text(source),
                topology: topology_text(requested.topology),
            });
        }
        self.create_at(name, node)
    }

    /// A new volume without a source: where the topology says, else where the operator does.
    fn place(&self, name: Id, topology: &[Segments]) -> Result<Plan, Unclear> {
        let mut asked = topology.iter().filter(|segments| !segments.is_empty()).peekable();
        if asked.peek().is_none() {
            return self.placed(name);
        }
        self.any()?;
        match asked.find_map(|segments| self.among(segments)) {
            Some(nodes) => nodes.map(|nodes| Plan::Create(name, nodes)),
            None => Err(Unclear::Nowhere(self.no_such_topology(topology))),
        }
    }

    /// The operator's word, else the linked node with the fewest volumes.
    fn placed(&self, name: Id) -> Result<Plan, Unclear> {
        if let Placement::Pinned(node) = &self.policy.placement {
            return self.create_at(name, node.clone());
        }
        let driver = self.driver.filter(|driver| !driver.nodes().is_empty()).ok_or_else(never)?;
        let linked = driver.by_load().filter(|node| (self.linked)(node) && !(self.removed)(node));
        let linked: Vec<_> = linked.take(COMPARED).cloned().collect();
        if !linked.is_empty() {
            return Ok(Plan::Create(name, linked));
        }
        match self.only_node() {
            Some(node) => self.create_at(name, node),
            None => Err(none_linked(driver)),
        }
    }

    /// The linked ones of the nodes at a topology. None if no node is there.
    fn among(&self, segments: &Segments) -> Option<Result<Vec<NodeName>, Unclear>> {
        let nodes = self.driver?.located(segments).filter(|node| !(self.removed)(node));
        let mut nodes = nodes.peekable();
        let away = (*nodes.peek()?).clone();
        let linked: Vec<_> =
            nodes.filter(|node| (self.linked)(node)).take(COMPARED).cloned().collect();
        Some(if linked.is_empty() { Err(Unclear::Away(away)) } else { Ok(linked) })
    }

    /// A snapshot. CSI: it is cut of volumes that one plugin holds; here that is one node.
    fn snapshot(&self, name: Id, volumes: &[Id]) -> Result<Plan, Unclear> {
        let home =
            |id: &Id| self.driver.and_then(|driver| driver.home(id)).map(|home| home.node.clone());
        let unknown: Vec<_> = volumes.iter().filter(|id| home(id).is_none()).cloned().collect();
        if !unknown.is_empty() || volumes.is_empty() {
            return match self.only_node() {
                Some(node) => self.create_at(name, node),
                None if volumes.is_empty() => self.placed(name),
                None => Ok(Plan::Discover(unknown)),
            };
        }
        let mut nodes: Vec<_> = volumes.iter().filter_map(home).collect();
        nodes.sort();
        nodes.dedup();
        match nodes.as_slice() {
            [node] => self.create_at(name, node.clone()),
            _ => Err(Unclear::SeveralHomes(nodes)),
        }
    }

    /// Nothing is written down for a node that it cannot be sent to.
    fn create_at(&self, name: Id, node: NodeName) -> Result<Plan, Unclear> {
        if (self.removed)(&node) {
            Err(Unclear::Removed(node))
        } else if (self.linked)(&node) {
            Ok(Plan::Create(name, vec![node]))
        } else {
            Err(Unclear::Away(node))
        }
    }

    /// The only node that has the driver: whatever has no home can live nowhere else.
    fn only_node(&self) -> Option<NodeName> {
        let mut nodes = self.driver?.nodes().keys();
        nodes.next().filter(|_| nodes.next().is_none()).cloned()
    }

    /// The only node that has the driver; this if there are more.
    fn only_or(&self, plan: Plan) -> Result<Plan, Unclear> {
        self.any()?;
        Ok(self.only_node().map_or(plan, Plan::Node))
    }

    fn any(&self) -> Result<(), Unclear> {
        self.driver.filter(|driver| !driver.nodes().is_empty()).map(|_| ()).ok_or_else(never)
    }

    fn located(&self, topology: Option<&Segments>) -> Vec<NodeName> {
        let Some(driver) = self.driver else { return Vec::new() };
        let nodes: Vec<_> = match topology.filter(|segments| !segments.is_empty()) {
            Some(segments) => driver.located(segments).cloned().collect(),
            None => driver.nodes().keys().cloned().collect(),
        };
        nodes.into_iter().filter(|node| !(self.removed)(node)).collect()
    }

    fn elected(&self) -> Result<NodeName, Unclear> {
        let driver = self.driver.filter(|driver| !driver.nodes().is_empty()).ok_or_else(never)?;
        driver.elected().cloned().ok_or_else(|| none_linked(driver))
    }

    /// A create of a shared driver. What another node may still begin is not begun here.
    fn create_shared(&self, name: Id) -> Result<Plan, Unclear> {
        let elected = self.elected()?;
        match self.driver.and_then(|driver| driver.intent(&name)) {
            Some(intent) if intent.made.is_some() => Ok(Plan::CreateAgain(name, elected)),
            Some(intent) if intent.node != elected && self.may_begin(intent) => Err(Unclear::Yet(
                format!("it was sent to {} and may still be carried out there", intent.node),
            )),
            _ => self.create_at(name, elected),
        }
    }

    fn may_begin(&self, intent: &Intent) -> bool {
        intent.until > self.now && !(self.removed)(&intent.node)
    }

    fn no_such_topology(&self, asked: &[Segments]) -> String {
        let asked: Vec<_> = asked.iter().map(|segments| written(segments.iter())).collect();
        let nodes = self.driver.map(|driver| driver.nodes().iter()).unwrap_or_default();
        let known = first_few(nodes.map(|(node, at)| {
            format!(
                "{node} {}",
                written(at.segments.iter().map(|segment| (&segment.0, &segment.1)))
            )
        }));
        format!("no known node is at the topology {}; known: {known}", asked.join(" or "))
    }
}

/// The kind and id of a volume's source.
pub(super) fn source_text(source: &Id) -> String {
    match source {
        Id::Snapshot(id) => format!("snapshot {id}"),
        Id::Volume(id) | Id::Group(id) | Id::Name(_, id) => format!("volume {id}"),
    }
}

/// A requested topology: the first few of its alternatives.
pub(super) fn topology_text(requested: &[Segments]) -> String {
    let different: BTreeSet<_> = requested.iter().collect();
    first_few(different.into_iter().map(|segments| written(segments.iter())))
}

fn never() -> Unclear {
    Unclear::Yet("no node with this driver has ever linked; is csi-edge running there?".into())
}

fn none_linked(driver: &DriverState) -> Unclear {
    Unclear::Yet(format!(
        "none of the nodes {} has a link",
        first_few(driver.nodes().keys().map(ToString::to_string))
    ))
}

fn written<'a>(segments: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let pairs: Vec<_> = segments.map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests;
