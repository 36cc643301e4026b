//! Decides to which node a call goes. Pure: what is known goes in, a plan or the reason for none comes out.
//!
//! Nothing here may guess: a call whose node is not certain gets a reason, which is answered UNAVAILABLE,
//! because a code that is final would make the sidecars forget a volume that may exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::identity::NodeName;
use proto::rpc::{Id, Key, Segments};

/// The nodes that have a driver.
pub type Nodes = BTreeMap<NodeName, Place>;

/// A node's topology segments. There may be thousands of nodes, and a map takes half a KiB for two segments.
pub type Place = Box<[(String, String)]>;

/// Where a call goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// The front answers it.
    Local,
    /// This node's driver carries it out.
    Node(NodeName),
    /// It makes sense on a node's own socket only.
    NodeOnly,
}

/// Why no node is certain.
#[derive(Debug, PartialEq, Eq)]
pub enum Unclear {
    /// It may become clear when an edge links; the reason is for an operator.
    Yet(String),
    /// It never will: these ids live on several nodes.
    SeveralHomes(Vec<NodeName>),
}

/// What is known of one driver.
pub struct Facts<'a> {
    /// On which node something lives.
    pub home: &'a dyn Fn(&Id) -> Option<NodeName>,
    /// Which nodes have the driver, with their segments.
    pub nodes: &'a dyn Fn() -> Arc<Nodes>,
    /// The operator's word on where a call goes that names no node.
    pub default: Option<&'a NodeName>,
}

/// Decides.
///
/// # Errors
/// Why no node is certain.
pub fn route(key: &Key, facts: &Facts<'_>) -> Result<Plan, Unclear> {
    match key {
        Key::Local => Ok(Plan::Local),
        Key::Node(_) => Ok(Plan::NodeOnly),
        Key::Place { source, topology, .. } => match source.as_ref().and_then(facts.home) {
            Some(home) => Ok(Plan::Node(home)),
            None => at(topology, facts),
        },
        Key::Capacity(topology) => at(topology.as_slice(), facts),
        Key::Home(id) => (facts.home)(id).map_or_else(|| fallback(facts), |home| Ok(Plan::Node(home))),
        Key::End(id) => (facts.home)(id).map_or_else(|| only_node(facts), |home| Ok(Plan::Node(home))),
        Key::Cut { volumes, .. } => one_home(volumes, facts),
        Key::All => fallback(facts),
    }
}

/// The first node, in the caller's order, whose segments hold all that a topology asks for.
fn at(topology: &[Segments], facts: &Facts<'_>) -> Result<Plan, Unclear> {
    let mut asked = topology.iter().filter(|segments| !segments.is_empty()).peekable();
    if asked.peek().is_none() {
        return fallback(facts);
    }
    let nodes = (facts.nodes)();
    let holds = |place: &Place, asked: &Segments| {
        asked.iter().all(|(key, value)| place.iter().any(|(its, at)| (its, at) == (key, value)))
    };
    asked
        .find_map(|topology| nodes.iter().find(|(_, place)| holds(place, topology)))
        .map(|(node, _)| Plan::Node(node.clone()))
        .ok_or_else(|| Unclear::Yet(no_such_topology(topology, &nodes)))
}

/// CSI: a snapshot is cut of volumes that one plugin holds; here that is one node.
fn one_home(ids: &[Id], facts: &Facts<'_>) -> Result<Plan, Unclear> {
    let mut homes: Vec<_> = ids.iter().filter_map(facts.home).collect();
    homes.sort();
    homes.dedup();
    match homes.as_slice() {
        [] => fallback(facts),
        [home] => Ok(Plan::Node(home.clone())),
        several => Err(Unclear::SeveralHomes(several.to_vec())),
    }
}

/// The operator's word, else the only node there is.
fn fallback(facts: &Facts<'_>) -> Result<Plan, Unclear> {
    facts.default.map_or_else(|| only_node(facts), |node| Ok(Plan::Node(node.clone())))
}

fn only_node(facts: &Facts<'_>) -> Result<Plan, Unclear> {
    let nodes = (facts.nodes)();
    let mut names = nodes.keys();
    match (names.next(), names.next()) {
        (Some(node), None) => Ok(Plan::Node(node.clone())),
        (None, _) => {
            let reason =
                "no node with this driver has linked since csi-cloud started; is csi-edge running there?";
            Err(Unclear::Yet(reason.into()))
        }
        (Some(_), Some(_)) => Err(Unclear::Yet(format!(
            "nothing says which of the nodes {} it is for; --default-node names one for what is new and for lists",
            some(nodes.keys().map(ToString::to_string))
        ))),
    }
}

fn no_such_topology(asked: &[Segments], nodes: &Nodes) -> String {
    let asked: Vec<_> = asked.iter().map(written).collect();
    let known = some(nodes.iter().map(|(node, place)| {
        let pairs = place.iter().map(|(key, value)| (key, value));
        format!("{node} {}", written(pairs))
    }));
    format!("no known node is at the topology {}; known: {known}", asked.join(" or "))
}

fn written<'a>(segments: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let pairs: Vec<_> = segments.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(","))
}

/// The nodes' names, for an operator.
pub fn names(nodes: &[NodeName]) -> String {
    some(nodes.iter().map(ToString::to_string))
}

/// The first few, and how many more: a status message has to fit in a caller's header list.
fn some(all: impl ExactSizeIterator<Item = String>) -> String {
    const FEW: usize = 10;
    let more = all.len().saturating_sub(FEW);
    let first = all.take(FEW).collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

#[cfg(test)]
mod tests;
