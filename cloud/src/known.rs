//! What the cloud has learned: which nodes have which drivers, what these say of themselves, and where
//! volumes live.
//!
//! It is kept in memory: after a restart it is learned again from links and answers (`docs/architecture.md`,
//! "What is not there yet").

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::hello::Driver;
use proto::identity::{DriverName, NodeName};
use proto::rpc::{Id, Segments};

/// The segment that names a node when its driver has no topology of its own.
pub const NODE_SEGMENT: &str = "topology.edge-csi.io/node";

/// A driver's answers by RPC method, as unframed messages.
type Answers = BTreeMap<String, Bytes>;

/// Everything learned; shared by fronts and links.
#[derive(Default)]
pub struct Known(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    nodes: HashMap<DriverName, BTreeMap<NodeName, At>>,
    latest: HashMap<DriverName, Answers>,
    homes: HashMap<DriverName, HashMap<Id, NodeName>>,
}

/// A driver at one node.
#[derive(Default)]
struct At {
    segments: Segments,
    answers: Answers,
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here can be left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a node says of its drivers. A driver that has no answers right now keeps those it gave.
    pub fn learn_drivers(&self, node: &NodeName, drivers: Vec<Driver>) {
        let mut inner = self.lock();
        for Driver { name, answers } in drivers {
            let at = inner.nodes.entry(name.clone()).or_default().entry(node.clone()).or_default();
            at.segments.entry(NODE_SEGMENT.into()).or_insert_with(|| node.to_string());
            if answers.is_empty() {
                continue;
            }
            at.answers = answers.into_iter().map(|(method, answer)| (method, answer.0)).collect();
            if let Some(info) = at.answers.get("NodeGetInfo") {
                at.segments.extend(segments(info));
            }
            let answers = at.answers.clone();
            inner.latest.insert(name, answers);
        }
    }

    /// What the driver answers to a method, as last learned from any node. `Err` if nothing is known of it.
    pub fn answer(&self, driver: &DriverName, method: &str) -> Result<Option<Bytes>, Unknown> {
        let inner = self.lock();
        inner.latest.get(driver).map(|answers| answers.get(method).cloned()).ok_or(Unknown)
    }

    /// What the driver at a node answers to a method.
    pub fn answer_at(
        &self,
        node: &NodeName,
        driver: &DriverName,
        method: &str,
    ) -> Result<Option<Bytes>, Unknown> {
        let inner = self.lock();
        let at = inner.nodes.get(driver).and_then(|nodes| nodes.get(node)).ok_or(Unknown)?;
        if at.answers.is_empty() { Err(Unknown) } else { Ok(at.answers.get(method).cloned()) }
    }

    /// The nodes that have the driver, with their topology segments.
    pub fn nodes(&self, driver: &DriverName) -> BTreeMap<NodeName, Segments> {
        let inner = self.lock();
        let nodes = inner.nodes.get(driver).into_iter().flatten();
        nodes.map(|(node, at)| (node.clone(), at.segments.clone())).collect()
    }

    /// The only node that has the driver, if there is just one.
    pub fn only_node(&self, driver: &DriverName) -> Option<NodeName> {
        let inner = self.lock();
        let nodes = inner.nodes.get(driver)?;
        if nodes.len() == 1 { nodes.keys().next().cloned() } else { None }
    }

    /// The node on which something lives.
    pub fn home(&self, driver: &DriverName, id: &Id) -> Option<NodeName> {
        self.lock().homes.get(driver)?.get(id).cloned()
    }

    /// Keeps that these ids live on a node.
    pub fn learn_homes(&self, driver: &DriverName, node: &NodeName, ids: Vec<Id>) {
        let mut inner = self.lock();
        let homes = inner.homes.entry(driver.clone()).or_default();
        homes.extend(ids.into_iter().map(|id| (id, node.clone())));
    }

    /// Forgets an id that is gone.
    pub fn forget(&self, driver: &DriverName, id: &Id) {
        if let Some(homes) = self.lock().homes.get_mut(driver) {
            homes.remove(id);
        }
    }
}

/// Nothing has been learned of the driver yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown;

fn segments(info: &Bytes) -> Segments {
    let info = csi::NodeGetInfoResponse::decode(info.clone()).unwrap_or_default();
    info.accessible_topology.map(|topology| topology.segments.into_iter().collect()).unwrap_or_default()
}
