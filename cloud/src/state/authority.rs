//! Decides which node may have which driver, by the operator's settings for each driver.
//!
//! A certificate proves the node's name, and nothing about its drivers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use proto::control::hello::{Driver, Protobuf};
use proto::csi::{Capabilities, Local, Method};
use proto::names::{DriverName, NodeName};

use crate::state::capabilities;
use crate::state::known::NamedNodes;
use crate::state::lost_segments;
use crate::state::node_labels::NodeLabels;
use crate::state::policy::{Policy, Scope};
use crate::state::profile;
use crate::state::set_apart::{Reason, ReasonKind};
use crate::state::store::writer::Store;

/// The policies of all drivers that have a front. Clones share them.
#[derive(Clone, Default)]
pub struct Authority {
    /// None without an operator's settings: then every driver of every node counts.
    policies: Option<Arc<BTreeMap<DriverName, Policy>>>,
    /// Held while the settings are applied, so that an older view of labels is not applied last.
    applying: Arc<Mutex<()>>,
}

/// A driver without a front, as a node reports it. It is shown, never stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// Its name.
    pub name: DriverName,
    /// The scope that this node's driver implies; none before it answers. It is told to this node
    /// only, whose own front needs it.
    pub scope: Option<Scope>,
}

impl Unserved {
    /// Reads a node's report of such a driver.
    pub(super) fn of(driver: Driver) -> Self {
        let method = Method::answering(Local::Capabilities(Capabilities::Plugin)).name();
        let said = driver.answers.get(method).map(|Protobuf(answer)| answer);
        let info = driver.answers.get(Method::answering(Local::NodeInfo).name());
        let info = info.map(|Protobuf(answer)| answer);
        let scope = said.map(|answer| capabilities::inferred_scope([answer], [info]));
        Self { name: driver.name, scope }
    }
}

impl Authority {
    /// The operator's settings for these drivers. No other driver has a front.
    pub fn new(policies: BTreeMap<DriverName, Policy>) -> Self {
        Self { policies: Some(Arc::new(policies)), applying: Arc::default() }
    }

    /// True if a driver has a front.
    pub fn serves(&self, driver: &DriverName) -> bool {
        self.policies.as_ref().is_none_or(|policies| policies.contains_key(driver))
    }

    /// True if a node may have a driver.
    pub fn allows(&self, driver: &DriverName, node: &NodeName) -> bool {
        self.policy(driver).is_none_or(|policy| policy.allows(node))
    }

    /// The policy of a driver, if it has a front.
    pub fn policy(&self, driver: &DriverName) -> Option<&Policy> {
        self.policies.as_ref()?.get(driver)
    }

    /// The labels of nodes, if they decide for some driver.
    pub fn labels(&self) -> Option<&NodeLabels> {
        self.policies.iter().flat_map(|policies| policies.values()).find_map(Policy::labels)
    }

    /// Sets a node apart for a driver that it may not have, or ends that. Returns whether it may.
    pub(super) fn check(&self, store: &Store, driver: &DriverName, node: &NodeName) -> bool {
        loop {
            let is_allowed = self.allows(driver, node);
            if is_allowed {
                store.clear_apart(node, Some(driver), ReasonKind::NotAllowed);
            } else {
                let policy = self.policy(driver);
                let awaits = policy.is_some_and(|policy| policy.awaits_labels_of(node));
                let reason = if awaits { Reason::LabelsUnknown } else { Reason::NotAllowed };
                store.set_apart(node, Some(driver), reason);
            }
            // Labels may change meanwhile, and another task may have looked at the newer ones.
            if is_allowed == self.allows(driver, node) {
                return is_allowed;
            }
        }
    }

    /// Sets apart all known nodes that may not have a driver, or whose record lacks something of
    /// its profile. The configuration, or labels, may have changed since they were recorded. Says
    /// which nodes the operator names, whether or not they ever linked.
    pub fn apply(&self, store: &Store) {
        let _applying = self.applying.lock();
        for (driver, policy) in self.policies.iter().flat_map(|policies| policies.iter()) {
            // Asked first: labels that become known meanwhile are applied again.
            let awaits = policy.awaits_all_labels();
            if awaits {
                store.set_awaits_labels(driver, true);
            }
            let named = policy
                .nodes
                .as_ref()
                .map(|nodes| NamedNodes { nodes: nodes.named(), are_all: nodes.names_all() });
            store.set_named(driver.clone(), named.unwrap_or_default());
            let nodes: BTreeSet<_> = store.read(|state| {
                let of = state.driver(driver);
                let recorded = of.into_iter().flat_map(|of| of.nodes().keys());
                let apart = state.apart().for_driver(driver);
                let refused =
                    apart.filter(|(_, apart)| apart.reason.kind() == ReasonKind::NotAllowed);
                recorded.chain(refused.map(|(node, _)| node)).cloned().collect()
            });
            for node in nodes {
                self.check(store, driver, &node);
            }
            profile::check(store, driver);
            lost_segments::judge_recorded(store, driver, policy);
            // Not before each node counts that has a label.
            store.set_awaits_labels(driver, awaits);
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use proto::csi;
    use proto::csi::plugin_capability::{Service, Type, service};
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::state::node_labels::Labels;
    use crate::state::node_set::NodeSet;
    use crate::state::record::{Node, NodeDriver};
    use crate::state::store::memory::Memory;
    use crate::state::txn::Txn;

    #[tokio::test]
    async fn before_labels_are_known_no_label_allows_a_node() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let labels = NodeLabels::default();
        let selector = "node-restriction.kubernetes.io/storage=yes".parse().unwrap();
        let nodes = NodeSet::new(vec![selector]).with_labels(&labels);
        let policy = Policy { nodes: Some(nodes), ..Policy::new(None) };
        let driver: DriverName = "d.example".parse().unwrap();
        let node: NodeName = "n1".parse().unwrap();
        let authority = Authority::new([(driver.clone(), policy)].into());
        authority.apply(&store);
        assert!(store.read(|state| state.awaits_labels(&driver)));
        assert!(!authority.check(&store, &driver, &node));
        assert_eq!(store.why_apart(&node, &driver), Some(Reason::LabelsUnknown));
        labels.set(Labels::new());
        authority.apply(&store);
        assert_eq!(store.why_apart(&node, &driver), Some(Reason::NotAllowed));
        assert!(!store.read(|state| state.awaits_labels(&driver)));
        let label = ("node-restriction.kubernetes.io/storage".to_owned(), "yes".to_owned());
        labels.set([(node.clone(), [label].into())].into());
        authority.apply(&store);
        assert_eq!(store.why_apart(&node, &driver), None, "it was never recorded");
    }

    #[tokio::test]
    async fn nobody_is_known_to_ask_while_all_nodes_are_excluded() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let driver: DriverName = "d.example".parse().unwrap();
        let [removed, node] = ["n0", "n1"].map(|name| name.parse::<NodeName>().unwrap());
        let why = || store.read(|state| state.why_uncounted(&driver));
        assert_eq!(why(), None, "no node ever had the driver");
        let of = driver.clone();
        let at = node.clone();
        let write = move |txn: &mut Txn<'_>| {
            txn.set_node(&removed, Some(Node { since: 1, removed: Some(2), ..Node::default() }));
            txn.set_at(&of, &removed, Some(NodeDriver::default()));
            txn.set_node(&at, Some(Node { since: 1, ..Node::default() }));
        };
        store.write(write).await.unwrap();
        assert_eq!(why(), None, "what a removed node had is given up");
        let of = driver.clone();
        let at = node.clone();
        let write = move |txn: &mut Txn<'_>| txn.set_at(&of, &at, Some(NodeDriver::default()));
        store.write(write).await.unwrap();
        assert_eq!(why(), None, "one node counts");
        let allowing = |name: &str| {
            let nodes = Some(NodeSet::new(vec![name.parse().unwrap()]));
            Authority::new([(driver.clone(), Policy { nodes, ..Policy::new(None) })].into())
        };
        allowing("m*").apply(&store);
        let counts = async || {
            let of = driver.clone();
            let at = node.clone();
            store.write(move |txn| txn.counts(&of, &at)).await.unwrap()
        };
        assert!(why().is_some_and(|why| why.contains("is excluded")), "{:?}", why());
        assert!(!counts().await);
        allowing("m1").apply(&store);
        assert_eq!(why(), None, "the node m1 may have it, and is awaited");
        allowing("n*").apply(&store);
        assert_eq!(why(), None);
        assert!(counts().await);
    }

    #[test]
    fn a_driver_without_a_front_implies_a_scope_for_its_own_node() {
        let service = |kind: service::Type| Service { r#type: kind.into() };
        let says = |kinds: &[service::Type]| {
            let capability =
                |kind: &_| csi::PluginCapability { r#type: Some(Type::Service(service(*kind))) };
            let capabilities = kinds.iter().map(capability).collect();
            let answer = csi::GetPluginCapabilitiesResponse { capabilities }.encode_to_vec();
            let method = "GetPluginCapabilities".to_owned();
            let answers = [(method, Protobuf(answer.into()))].into();
            Unserved::of(Driver { name: "d.example".parse().unwrap(), answers, health: None }).scope
        };
        assert_eq!(says(&[]), Some(Scope::Shared));
        let constrained = service::Type::VolumeAccessibilityConstraints;
        assert_eq!(says(&[constrained]), Some(Scope::Node));
        let away =
            Driver { name: "d.example".parse().unwrap(), answers: BTreeMap::new(), health: None };
        assert_eq!(Unserved::of(away).scope, None);
    }
}
