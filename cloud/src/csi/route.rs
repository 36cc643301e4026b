//! Decides to which node a call goes. Pure: what is known goes in, a plan or the reason for none comes out.
//!
//! Nothing here may guess: a call whose node is not certain gets a reason, and while a node may hold what the
//! call is about the reason is answered UNAVAILABLE, because a code that is final would make the sidecars
//! forget a volume that may exist.

use proto::csi::rpc::{Id, Key, Rpc, Segments};
use proto::names::NodeName;

use crate::state::known::OfDriver;
use crate::state::node_names::some;
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
    /// One of these nodes' drivers makes something, once it is written down which may have: the one with the
    /// fewest volumes. All have a link.
    Make(Vec<NodeName>),
    /// A list over all nodes.
    All,
    /// The capacity of these nodes together.
    Capacity(Vec<NodeName>),
    /// What is to end has no home: each node is told to end it.
    Everywhere,
    /// These have no home: the nodes are asked for them, and then it is decided again.
    Ask(Vec<Id>),
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
    /// An operator removed the node.
    Removed(NodeName),
    /// It never will be: these ids live on several nodes.
    SeveralHomes(Vec<NodeName>),
}

/// What is known of one driver.
pub struct Facts<'a> {
    /// What the store keeps; none if no node ever had the driver.
    pub driver: Option<&'a OfDriver>,
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
pub fn route(rpc: &Rpc, key: &Key, facts: &Facts<'_>) -> Result<Plan, Unclear> {
    if let Some(node) = facts.only.filter(|_| !matches!(key, Key::Local | Key::Node(_))) {
        return facts.at_front(rpc, key, node);
    }
    match (key, facts.scope) {
        (Key::Local, _) => Ok(Plan::Local),
        (Key::Node(_), _) => Ok(Plan::NodeOnly),
        (Key::Place { name, .. } | Key::Cut { name, .. }, Scope::Shared) if !name.is_empty() => {
            facts.make_shared(&Id::Name(rpc.method, name.clone()))
        }
        (_, Scope::Shared) => facts.elected().map(Plan::Node),
        (Key::Place { name, source, topology }, Scope::Node) => {
            let sent = facts.sent(&Id::Name(rpc.method, name.clone()));
            sent.unwrap_or_else(|| facts.place(source.as_ref(), topology))
        }
        (Key::Cut { name, volumes }, Scope::Node) => {
            let sent = facts.sent(&Id::Name(rpc.method, name.clone()));
            sent.unwrap_or_else(|| facts.cut(volumes))
        }
        (Key::Home(id), Scope::Node) => {
            facts.home(id).unwrap_or_else(|| facts.only_or(Plan::Ask(vec![id.clone()])))
        }
        (Key::End(id), Scope::Node) => match facts.home(id) {
            Some(Err(Unclear::Removed(_))) if rpc.detaches() => Ok(Plan::Done),
            Some(home) => home,
            None => facts.only_or(Plan::Everywhere),
        },
        (Key::All, Scope::Node) => facts.any().map(|()| Plan::All),
        (Key::Capacity(topology), Scope::Node) => {
            facts.any().map(|()| Plan::Capacity(facts.located(topology.as_ref())))
        }
    }
}

impl Facts<'_> {
    /// On a node's own front: there, unless it is known to be elsewhere.
    fn at_front(&self, rpc: &Rpc, key: &Key, node: &NodeName) -> Result<Plan, Unclear> {
        match key {
            Key::Place { name, .. } | Key::Cut { name, .. } => {
                let sent = self.sent(&Id::Name(rpc.method, name.clone()));
                sent.unwrap_or_else(|| self.make_at(node.clone()))
            }
            Key::Home(id) | Key::End(id) => self.home(id).unwrap_or_else(|| self.at(node)),
            _ => self.at(node),
        }
    }

    /// Where a create was sent before: it goes nowhere else until what came of it is known.
    fn sent(&self, name: &Id) -> Option<Result<Plan, Unclear>> {
        self.driver?.intent(name).map(|intent| self.at(&intent.node))
    }

    fn home(&self, id: &Id) -> Option<Result<Plan, Unclear>> {
        self.driver?.home(id).map(|home| self.at(&home.node))
    }

    fn at(&self, node: &NodeName) -> Result<Plan, Unclear> {
        if (self.removed)(node) { Err(Unclear::Removed(node.clone())) } else { Ok(Plan::Node(node.clone())) }
    }

    /// A new volume: beside its source, else where the topology says, else where the operator does.
    fn place(&self, source: Option<&Id>, topology: &[Segments]) -> Result<Plan, Unclear> {
        if let Some(source) = source {
            return match self.home(source) {
                Some(home) => home.and_then(|home| self.make(home)),
                None => self
                    .only_node()
                    .map_or_else(|| Ok(Plan::Ask(vec![source.clone()])), |node| self.make_at(node)),
            };
        }
        let mut asked = topology.iter().filter(|segments| !segments.is_empty()).peekable();
        if asked.peek().is_none() {
            return self.placed();
        }
        self.any()?;
        let found = asked.find_map(|segments| self.among(segments));
        found.unwrap_or_else(|| Err(Unclear::Nowhere(self.no_such_topology(topology))))
    }

    /// The operator's word, else the linked node with the fewest volumes.
    fn placed(&self) -> Result<Plan, Unclear> {
        if let Placement::Pinned(node) = &self.policy.placement {
            return self.make_at(node.clone());
        }
        let driver = self.driver.filter(|driver| !driver.nodes().is_empty()).ok_or_else(never)?;
        let linked = driver.by_load().filter(|node| (self.linked)(node) && !(self.removed)(node));
        let linked: Vec<_> = linked.take(COMPARED).cloned().collect();
        if !linked.is_empty() {
            return Ok(Plan::Make(linked));
        }
        self.only_node().map_or_else(|| Err(none_linked(driver)), |node| self.make_at(node))
    }

    /// The linked ones of the nodes at a topology. None if no node is there.
    fn among(&self, segments: &Segments) -> Option<Result<Plan, Unclear>> {
        let nodes = self.driver?.located(segments).filter(|node| !(self.removed)(node));
        let mut nodes = nodes.peekable();
        let away = (*nodes.peek()?).clone();
        let linked: Vec<_> = nodes.filter(|node| (self.linked)(node)).take(COMPARED).cloned().collect();
        Some(if linked.is_empty() { Err(Unclear::Away(away)) } else { Ok(Plan::Make(linked)) })
    }

    /// A snapshot. CSI: it is cut of volumes that one plugin holds; here that is one node.
    fn cut(&self, volumes: &[Id]) -> Result<Plan, Unclear> {
        let homes = |id: &Id| self.driver.and_then(|driver| driver.home(id)).map(|home| home.node.clone());
        let unknown: Vec<_> = volumes.iter().filter(|id| homes(id).is_none()).cloned().collect();
        if !unknown.is_empty() || volumes.is_empty() {
            return match self.only_node() {
                Some(node) => self.make_at(node),
                None if volumes.is_empty() => self.placed(),
                None => Ok(Plan::Ask(unknown)),
            };
        }
        let mut nodes: Vec<_> = volumes.iter().filter_map(homes).collect();
        nodes.sort();
        nodes.dedup();
        match nodes.as_slice() {
            [node] => self.at(node).and_then(|home| self.make(home)),
            _ => Err(Unclear::SeveralHomes(nodes)),
        }
    }

    fn make(&self, home: Plan) -> Result<Plan, Unclear> {
        if let Plan::Node(node) = home { self.make_at(node) } else { Ok(home) }
    }

    /// Nothing is written down for a node that it cannot be sent to.
    fn make_at(&self, node: NodeName) -> Result<Plan, Unclear> {
        if (self.removed)(&node) {
            Err(Unclear::Removed(node))
        } else if (self.linked)(&node) {
            Ok(Plan::Make(vec![node]))
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
    fn make_shared(&self, name: &Id) -> Result<Plan, Unclear> {
        let elected = self.elected()?;
        match self.driver.and_then(|driver| driver.intent(name)) {
            Some(intent) if intent.made.is_some() => Ok(Plan::Node(elected)),
            Some(intent) if intent.node != elected && self.may_begin(intent) => Err(Unclear::Yet(format!(
                "it was sent to {} and may still be carried out there",
                intent.node
            ))),
            _ => self.make_at(elected),
        }
    }

    fn may_begin(&self, intent: &Intent) -> bool {
        intent.until > self.now && !(self.removed)(&intent.node)
    }

    fn no_such_topology(&self, asked: &[Segments]) -> String {
        let asked: Vec<_> = asked.iter().map(|segments| written(segments.iter())).collect();
        let nodes = self.driver.map(|driver| driver.nodes().iter()).unwrap_or_default();
        let known = some(nodes.map(|(node, at)| {
            format!("{node} {}", written(at.place.iter().map(|segment| (&segment.0, &segment.1))))
        }));
        format!("no known node is at the topology {}; known: {known}", asked.join(" or "))
    }
}

fn never() -> Unclear {
    Unclear::Yet("no node with this driver has ever linked; is csi-edge running there?".into())
}

fn none_linked(driver: &OfDriver) -> Unclear {
    Unclear::Yet(format!(
        "none of the nodes {} has a link",
        some(driver.nodes().keys().map(ToString::to_string))
    ))
}

fn written<'a>(segments: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let pairs: Vec<_> = segments.map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests;
