//! What the cloud has learned: which nodes have which drivers, what these say of themselves, and where
//! volumes live.
//!
//! It is kept in memory: after a restart it is learned again from links and answers (`docs/architecture.md`,
//! "What is not there yet").

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::hello::Driver;
use proto::identity::{DriverName, NodeName};
use proto::rpc::{Id, Segments};

use crate::route::Nodes;
use crate::topology::NODE_SEGMENT;

/// The one answer that every node gives otherwise.
const NODE_INFO: &str = "NodeGetInfo";

/// Everything learned; shared by fronts and links.
#[derive(Default)]
pub struct Known(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    drivers: HashMap<DriverName, OfDriver>,
    homes: HashMap<DriverName, HashMap<Id, NodeName>>,
}

/// What is known of one driver.
#[derive(Default)]
struct OfDriver {
    /// Behind an `Arc`, because every call that names a topology looks through it, and there may be thousands.
    nodes: Arc<Nodes>,
    /// What it answers at each node that has told.
    at: HashMap<NodeName, Answers>,
    /// What it answered last, anywhere.
    latest: Option<Answers>,
}

/// A driver's answers, as unframed messages.
#[derive(Clone)]
struct Answers {
    /// By RPC method; nodes that answer alike share it.
    alike: Arc<BTreeMap<String, Bytes>>,
    info: Option<Bytes>,
}

impl Answers {
    /// Takes what a node says; what is as in `latest` is not kept twice.
    fn new(driver: Driver, latest: Option<&Self>) -> Self {
        let mut alike: BTreeMap<_, _> =
            driver.answers.into_iter().map(|(method, answer)| (method, answer.0)).collect();
        let info = alike.remove(NODE_INFO);
        let shared = latest.filter(|latest| *latest.alike == alike).map(|latest| latest.alike.clone());
        Self { alike: shared.unwrap_or_else(|| Arc::new(alike)), info }
    }

    fn to(&self, method: &str) -> Option<Bytes> {
        if method == NODE_INFO { self.info.clone() } else { self.alike.get(method).cloned() }
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here can be left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a node says of its drivers. A driver that has no answers right now keeps those it gave.
    pub fn learn_drivers(&self, node: &NodeName, drivers: Vec<Driver>) {
        let mut inner = self.lock();
        for driver in drivers {
            let known = inner.drivers.entry(driver.name.clone()).or_default();
            // Copied only if a call is being routed at this moment.
            let place = Arc::make_mut(&mut known.nodes).entry(node.clone()).or_default();
            let mut segments: Segments = std::mem::take(place).into_iter().collect();
            segments.entry(NODE_SEGMENT.into()).or_insert_with(|| node.to_string());
            let answers = (!driver.answers.is_empty()).then(|| Answers::new(driver, known.latest.as_ref()));
            if let Some(info) = answers.as_ref().and_then(|answers| answers.info.as_ref()) {
                segments.extend(segments_of(info));
            }
            *place = segments.into_iter().collect();
            let Some(answers) = answers else { continue };
            known.at.insert(node.clone(), answers.clone());
            known.latest = Some(answers);
        }
    }

    /// What the driver answers to a method, as last learned from any node. `Err` if nothing is known of it.
    pub fn answer(&self, driver: &DriverName, method: &str) -> Result<Option<Bytes>, Unknown> {
        let inner = self.lock();
        let latest = inner.drivers.get(driver).and_then(|known| known.latest.as_ref());
        latest.map(|answers| answers.to(method)).ok_or(Unknown)
    }

    /// What the driver at a node answers to a method.
    pub fn answer_at(
        &self,
        node: &NodeName,
        driver: &DriverName,
        method: &str,
    ) -> Result<Option<Bytes>, Unknown> {
        let inner = self.lock();
        let at = inner.drivers.get(driver).and_then(|known| known.at.get(node));
        at.map(|answers| answers.to(method)).ok_or(Unknown)
    }

    /// The nodes that have the driver, with their topology segments.
    pub fn nodes(&self, driver: &DriverName) -> Arc<Nodes> {
        self.lock().drivers.get(driver).map(|known| known.nodes.clone()).unwrap_or_default()
    }

    /// The only node that has the driver, if there is just one.
    pub fn only_node(&self, driver: &DriverName) -> Option<NodeName> {
        let nodes = self.nodes(driver);
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

fn segments_of(info: &Bytes) -> Segments {
    let info = csi::NodeGetInfoResponse::decode(info.clone()).unwrap_or_default();
    info.accessible_topology.map(|topology| topology.segments.into_iter().collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::hello::Answer;

    fn says(version: &str, zone: &str) -> Vec<Driver> {
        let info = csi::GetPluginInfoResponse { vendor_version: version.into(), ..Default::default() };
        let segments = [("zone".to_owned(), zone.to_owned())].into();
        let accessible_topology = Some(csi::Topology { segments });
        let node = csi::NodeGetInfoResponse { accessible_topology, ..Default::default() };
        let answers = [("GetPluginInfo", info.encode_to_vec()), (NODE_INFO, node.encode_to_vec())]
            .map(|(method, bytes)| (method.to_owned(), Answer(bytes.into())));
        vec![Driver { name: "d.example".parse().unwrap(), answers: answers.into() }]
    }

    #[test]
    fn nodes_that_answer_alike_share_it_and_are_told_apart() {
        let (known, driver) = (Known::default(), "d.example".parse().unwrap());
        let nodes: Vec<NodeName> = ["n1", "n2", "n3"].map(|name| name.parse().unwrap()).into();
        for (node, (version, zone)) in nodes.iter().zip([("1", "a"), ("1", "b"), ("2", "b")]) {
            known.learn_drivers(node, says(version, zone));
        }
        let alike = |at: usize| known.lock().drivers[&driver].at[&nodes[at]].alike.clone();
        assert!(Arc::ptr_eq(&alike(0), &alike(1)) && !Arc::ptr_eq(&alike(1), &alike(2)));
        for (node, (version, zone)) in nodes.iter().zip([("1", "a"), ("1", "b"), ("2", "b")]) {
            for method in ["GetPluginInfo", NODE_INFO] {
                let expected = says(version, zone)[0].answers[method].0.clone();
                assert_eq!(known.answer_at(node, &driver, method), Ok(Some(expected)), "{node} {method}");
            }
            let segments =
                [(NODE_SEGMENT.to_owned(), node.to_string()), ("zone".to_owned(), zone.to_owned())];
            assert_eq!(*known.nodes(&driver)[node], segments);
        }
        assert_eq!(known.answer_at(&nodes[0], &driver, "NodeGetCapabilities"), Ok(None));
        assert_eq!(
            known.answer(&driver, "GetPluginInfo"),
            known.answer_at(&nodes[2], &driver, "GetPluginInfo")
        );
    }

    #[test]
    fn a_driver_that_is_away_keeps_what_it_said_and_one_that_never_spoke_is_unknown() {
        let (known, driver) = (Known::default(), "d.example".parse().unwrap());
        let away = || vec![Driver { answers: BTreeMap::new(), ..says("1", "a")[0].clone() }];
        let node: NodeName = "n1".parse().unwrap();
        known.learn_drivers(&node, away());
        assert_eq!(known.answer_at(&node, &driver, NODE_INFO), Err(Unknown));
        assert_eq!(known.answer(&driver, "GetPluginInfo"), Err(Unknown));
        assert_eq!(known.only_node(&driver), Some(node.clone()));
        known.learn_drivers(&node, says("1", "a"));
        known.learn_drivers(&node, away());
        assert!(known.answer_at(&node, &driver, "GetPluginInfo").is_ok());
    }
}
