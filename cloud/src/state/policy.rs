//! The operator's rules for one driver: scope, placement, and patience with absent nodes.
//!
//! A policy is complete: every default is set here, and nowhere else.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::config::{HOUR, Reader};
use proto::csi::topology::NODE_SEGMENT;
pub use proto::csi::topology::Scope;
use proto::names::NodeName;

use crate::state::node_labels::NodeLabels;
use crate::state::node_set::{NodePattern, NodeSet};
use crate::state::record::Home;

/// The settings that contradict scope `shared`, in the order of the checks.
const OF_SHARED: [&str; 5] = [
    "a shared driver needs controllers, the nodes of which one is elected: it sees all secrets of \
     the driver. controllers = \"any\" allows every node",
    "placement and node are for scope \"node\"; a shared driver's node is elected",
    "reschedule is for scope \"node\"; a shared driver fails over by itself",
    "beside_source is for scope \"node\"; any node has a shared driver's sources",
    "ask_with_secrets is for scope \"node\"; a shared driver's elected node gets every call",
];

/// The default grace period, in seconds.
const GRACE: u16 = 10;
/// The most nodes that are all asked for each list and sum.
const ALWAYS_ASKED: usize = 64;

/// The placement of a volume without a requested topology and without a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// At the linked node with the fewest volumes.
    #[default]
    Spread,
    /// Always at this node.
    Pinned(NodeName),
}

/// The nodes that may have one value of a topology key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// One node: the value tells it apart from all others.
    Node,
    /// Any number of nodes, as with a zone.
    Any,
}

/// The nodes that may be elected to carry out a shared driver's calls. Whoever is elected sees all
/// of the driver's secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Controllers {
    /// Any node that may have the driver.
    Any,
    /// These nodes, as far as they may have the driver.
    Of(NodeSet),
}

/// The rules for one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The operator's setting; inferred from the driver if none.
    pub scope: Option<Scope>,
    /// The placement of volumes without a requested topology.
    pub placement: Placement,
    /// If the chosen node is away and the create was certainly not dispatched, the answer is
    /// RESOURCE_EXHAUSTED. The scheduler then chooses another node.
    pub reschedule: bool,
    /// A volume with a source is colocated with it, whatever topology is requested. If false, a
    /// create is refused whose requested topology excludes the source's node.
    pub beside_source: bool,
    /// The time for which a node may be away, or its driver down. After it another node is elected
    /// (scope `shared`), and the node's capacity counts as 0. Creates that may go elsewhere wait no
    /// longer for a node without a link. One second to one hour.
    pub grace: Duration,
    /// The nodes that may have the driver; none for all.
    pub nodes: Option<NodeSet>,
    /// The nodes that may be elected; none if the operator has not said.
    pub controllers: Option<Controllers>,
    /// The topology keys of the driver, as far as the operator has declared them.
    pub topology: BTreeMap<String, KeyKind>,
    /// Requests that go to several nodes keep their secrets. By default only the one node that has
    /// the thing gets them.
    pub ask_with_secrets: bool,
    /// Among so many nodes all are asked for each list and sum of capacities; among more, those
    /// whose answers are not recent. 64 but in tests.
    pub always_asked: usize,
}

impl Policy {
    /// The policy of a driver without a section.
    pub fn new(default_node: Option<&NodeName>) -> Self {
        let placement = default_node.cloned().map_or(Placement::Spread, Placement::Pinned);
        Self {
            scope: None,
            placement,
            reschedule: false,
            beside_source: true,
            grace: Duration::from_secs(GRACE.into()),
            nodes: None,
            controllers: None,
            topology: BTreeMap::new(),
            ask_with_secrets: false,
            always_asked: ALWAYS_ASKED,
        }
    }

    /// True if a node may have the driver.
    pub fn allows(&self, node: &NodeName) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(node))
    }

    /// True if more than its node's own word says where a home is.
    pub fn is_confirmed(&self, home: &Home) -> bool {
        home.is_confirmed() || self.allows_just(&home.node)
    }

    /// True if this node alone may have the driver, by the operator's word.
    pub fn allows_just(&self, node: &NodeName) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| nodes.is_just(node))
    }

    /// True if a node may be elected, if the driver is shared. Without the operator's setting none
    /// may: the scope is only inferred then, from the nodes' reports.
    pub fn may_elect(&self, node: &NodeName) -> bool {
        let is_controller = match &self.controllers {
            Some(Controllers::Of(nodes)) => nodes.contains(node),
            Some(Controllers::Any) => true,
            None => false,
        };
        is_controller && self.allows(node)
    }

    /// The labels of nodes, if they decide which nodes may have the driver, or be elected.
    pub fn labels(&self) -> Option<&NodeLabels> {
        let controllers = match &self.controllers {
            Some(Controllers::Of(nodes)) => nodes.labels(),
            Some(Controllers::Any) | None => None,
        };
        self.nodes.as_ref().and_then(NodeSet::labels).or(controllers)
    }

    /// True if labels select nodes for the driver, and none are known yet.
    pub(crate) fn awaits_all_labels(&self) -> bool {
        let labels = self.nodes.as_ref().and_then(NodeSet::labels);
        labels.is_some_and(|labels| !labels.is_known())
    }

    /// True if a node may not have the driver because no labels are known yet.
    pub(crate) fn awaits_labels_of(&self, node: &NodeName) -> bool {
        self.awaits_all_labels() && !self.allows(node)
    }

    /// Reads a driver's section. Contradictions are reported as problems of the section.
    pub(crate) fn read(
        driver: &str,
        section: &mut Reader,
        default_node: Option<&NodeName>,
        labels: &NodeLabels,
    ) -> Self {
        let default = Self::new(default_node);
        let scope = section.parsed("scope", scope);
        let pinned = section.parsed("placement", pinned);
        let node = section.parsed("node", str::parse::<NodeName>);
        let reschedule = section.yes_no("reschedule");
        let beside_source = section.yes_no("beside_source");
        let grace = section.number("failover_s", HOUR);
        let nodes = section.some("nodes", str::parse::<NodePattern>).map(NodeSet::new);
        let nodes = nodes.map(|nodes| nodes.with_labels(labels));
        let controllers = controllers(section, labels);
        let topology = section.texts("topology", key_kind);
        let ask_with_secrets = section.yes_no("ask_with_secrets");
        let mut contradiction = |text: &str| section.problem(format!("[driver.{driver:?}] {text}"));
        if scope == Some(Scope::Node) && controllers.is_some() {
            contradiction("controllers are for scope \"shared\"; with \"node\" none is elected");
        }
        if scope == Some(Scope::Shared) {
            let given = [
                controllers.is_none(),
                pinned.is_some() || node.is_some(),
                reschedule == Some(true),
                beside_source == Some(false),
                ask_with_secrets == Some(true),
            ];
            let wrong = OF_SHARED.iter().zip(given).filter(|(_, is_given)| *is_given);
            wrong.for_each(|(text, _)| contradiction(text));
        }
        if let Some(text) = placement_contradiction(pinned, node.as_ref(), default_node) {
            contradiction(text);
        }
        let placement = match (pinned, node) {
            (Some(false), _) => Placement::Spread,
            (Some(true) | None, Some(node)) => Placement::Pinned(node),
            (Some(true) | None, None) => default.placement,
        };
        let grace = grace.map_or(default.grace, |s| Duration::from_secs(s.into()));
        let reschedule = reschedule.unwrap_or(default.reschedule);
        let beside_source = beside_source.unwrap_or(default.beside_source);
        let ask_with_secrets = ask_with_secrets.unwrap_or(default.ask_with_secrets);
        Self {
            scope,
            placement,
            reschedule,
            beside_source,
            grace,
            nodes,
            controllers,
            topology,
            ask_with_secrets,
            always_asked: default.always_asked,
        }
    }
}

/// The reason why a placement and a node cannot be configured together.
fn placement_contradiction(
    pinned: Option<bool>,
    node: Option<&NodeName>,
    default_node: Option<&NodeName>,
) -> Option<&'static str> {
    match (pinned, node) {
        (Some(false), Some(_)) => {
            Some("placement \"spread\" goes to no single node; leave it or node out")
        }
        (Some(true), None) if default_node.is_none() => {
            Some("placement \"pinned\" needs a node, here or as default_node")
        }
        (Some(_) | None, _) => None,
    }
}

fn key_kind(key: &str, kind: &str) -> Result<KeyKind, String> {
    match kind {
        _ if key == NODE_SEGMENT => Err("that key is csi-cloud's own".into()),
        "node" => Ok(KeyKind::Node),
        "any" => Ok(KeyKind::Any),
        other => Err(format!("{other:?} is no kind of key; there are \"node\" and \"any\"")),
    }
}

/// `controllers = "any"`, or names, patterns and labels.
fn controllers(section: &mut Reader, labels: &NodeLabels) -> Option<Controllers> {
    let patterns = section.some("controllers", |text| match text {
        "any" => Ok(None),
        pattern => pattern.parse::<NodePattern>().map(Some),
    })?;
    let named: Option<Vec<_>> = patterns.into_iter().collect();
    let of = |named| Controllers::Of(NodeSet::new(named).with_labels(labels));
    Some(named.map_or(Controllers::Any, of))
}

fn scope(text: &str) -> Result<Scope, String> {
    match text {
        "node" => Ok(Scope::Node),
        "shared" => Ok(Scope::Shared),
        other => Err(format!("{other:?} is no scope; there are \"node\" and \"shared\"")),
    }
}

fn pinned(text: &str) -> Result<bool, String> {
    match text {
        "spread" => Ok(false),
        "pinned" => Ok(true),
        other => Err(format!("{other:?} is no placement; there are \"spread\" and \"pinned\"")),
    }
}
