//! What Kubernetes' PersistentVolumes say of where a volume is.
//!
//! The provisioner wrote a PersistentVolume's node affinity when the volume was made, and it cannot
//! be changed. So it is evidence of the volume's home that no node can forge later.

use std::collections::BTreeSet;

use proto::csi::Segments;
use proto::csi::topology::NODE_SEGMENT;
use proto::names::NodeName;

use crate::state::driver_state::DriverState;
use crate::state::policy::{KeyKind, Policy};

/// The terms of a node affinity, of which a node must meet one. Of each term only the labels with
/// exactly one allowed value are here; more conditions would only exclude more nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity(Vec<Segments>);

/// The facts about a volume in one of its PersistentVolumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFacts {
    /// The PersistentVolume's name.
    pub name: String,
    /// The nodes on which it may be used; none if on any.
    pub affinity: Option<Affinity>,
    /// True if nobody uses it any more: it is Released or Failed, or is being deleted.
    pub is_ended: bool,
    /// True if its expansion on a node takes a secret (`nodeExpandSecretRef`).
    pub expands_with_secret: bool,
}

/// The largest age of an answer of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Read after the question.
    Now,
    /// A minute.
    Minute,
    /// A minute if the answer has the volume; otherwise Kubernetes is asked again.
    MinuteIfKnown,
}

/// An answer of Kubernetes about a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAnswer {
    /// It has these PersistentVolumes with the volume's id. There is at least one.
    Known(Vec<VolumeFacts>),
    /// It has no such volume.
    Unknown,
    /// It does not answer.
    Silent,
}

/// Where a call about a volume without a certain home goes, by what Kubernetes says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAt {
    /// Kubernetes does not say it.
    Unsaid,
    /// At this node.
    Node(NodeName),
    /// Nowhere, for this reason.
    Refused(String),
}

/// A driver's nodes, and what the operator says of their topology.
#[derive(Clone, Copy)]
pub struct NodesOf<'a> {
    /// The nodes.
    pub driver: &'a DriverState,
    /// The operator's policy.
    pub policy: Option<&'a Policy>,
}

impl VolumeFacts {
    fn node(&self, nodes: NodesOf<'_>) -> Option<NodeName> {
        self.affinity.as_ref()?.node(nodes)
    }
}

impl Affinity {
    /// The affinity with these terms.
    pub fn new(terms: Vec<Segments>) -> Self {
        Self(terms)
    }

    /// The node that each term names by a key of which each node has a value of its own.
    pub fn node(&self, nodes: NodesOf<'_>) -> Option<NodeName> {
        self.named(|key, value| nodes.by_own_key(key, value))
    }

    /// The one of these claimants that each term names. Here a key counts too that tells nodes
    /// apart by what they report, because the claimant's own word says the same.
    pub fn claimant(&self, claimants: &[NodeName], nodes: NodesOf<'_>) -> Option<NodeName> {
        let named = self.named(|key, value| {
            nodes.by_own_key(key, value).or_else(|| nodes.by_reports(key, value))
        });
        named.filter(|node| claimants.contains(node))
    }

    /// The nodes that the terms name by keys of which each node has a value of its own. `None` if
    /// some term names nobody, or this node.
    pub fn others(&self, node: &NodeName, nodes: NodesOf<'_>) -> Option<BTreeSet<NodeName>> {
        let named = self.by_term(|key, value| nodes.by_own_key(key, value))?;
        (!named.contains(node)).then_some(named)
    }

    /// The node that at least one segment of each term names, if none names another one.
    fn named(&self, node_of: impl Fn(&str, &str) -> Option<NodeName>) -> Option<NodeName> {
        let mut all = self.by_term(node_of)?;
        all.pop_first().filter(|_| all.is_empty())
    }

    /// All nodes that its terms name. `None` if one term names nobody.
    fn by_term(
        &self,
        node_of: impl Fn(&str, &str) -> Option<NodeName>,
    ) -> Option<BTreeSet<NodeName>> {
        let mut all = BTreeSet::new();
        for term in &self.0 {
            let named: BTreeSet<_> =
                term.iter().filter_map(|(key, value)| node_of(key, value)).collect();
            if named.is_empty() {
                return None;
            }
            all.extend(named);
        }
        Some(all)
    }
}

impl NodesOf<'_> {
    /// The node with this value of a key by which nodes are told apart: ours, one that the operator
    /// declares so, or one of which the value is the node's own name.
    fn by_own_key(self, key: &str, value: &str) -> Option<NodeName> {
        let node = self.only(key, value)?;
        let is_own = match self.kind(key) {
            Some(KeyKind::Any) => false,
            Some(KeyKind::Node) => true,
            None => key == NODE_SEGMENT || value == node.as_str(),
        };
        is_own.then_some(node)
    }

    /// The node with this value of a key that every node reports.
    fn by_reports(self, key: &str, value: &str) -> Option<NodeName> {
        let node = self.only(key, value)?;
        let is_any = self.kind(key) == Some(&KeyKind::Any);
        let mut members = self.driver.members();
        let is_everywhere =
            members.all(|(_, at)| at.segments.iter().any(|segment| segment.0 == key));
        (!is_any && is_everywhere).then_some(node)
    }

    fn kind(&self, key: &str) -> Option<&KeyKind> {
        self.policy?.topology.get(key)
    }

    /// The only node that reports this segment.
    fn only(&self, key: &str, value: &str) -> Option<NodeName> {
        let segment = Segments::from([(key.to_owned(), value.to_owned())]);
        let mut nodes = self.driver.located(&segment);
        nodes.next().filter(|_| nodes.next().is_none()).cloned()
    }
}

impl VolumeAnswer {
    /// True if all PersistentVolumes of the id name this node.
    pub fn confirms(&self, node: &NodeName, nodes: NodesOf<'_>) -> bool {
        match self {
            Self::Known(volumes) => used_at(volumes, nodes).as_ref() == Some(node),
            Self::Unknown | Self::Silent => false,
        }
    }
}

/// The node that all PersistentVolumes of one id name.
pub fn used_at(volumes: &[VolumeFacts], nodes: NodesOf<'_>) -> Option<NodeName> {
    common(volumes, |affinity| affinity.node(nodes))
}

/// The claimant that all PersistentVolumes of one id name.
pub fn claimant_of(
    volumes: &[VolumeFacts],
    claimants: &[NodeName],
    nodes: NodesOf<'_>,
) -> Option<NodeName> {
    common(volumes, |affinity| affinity.claimant(claimants, nodes))
}

fn common(
    volumes: &[VolumeFacts],
    node_of: impl Fn(&Affinity) -> Option<NodeName>,
) -> Option<NodeName> {
    let mut named = volumes.iter().map(|volume| volume.affinity.as_ref().and_then(&node_of));
    let first = named.next().flatten()?;
    named.all(|node| node.as_ref() == Some(&first)).then_some(first)
}

/// Where the delete of a volume goes. Its id may be another volume's too, at another node.
pub fn deleted_at(volumes: &[VolumeFacts], nodes: NodesOf<'_>) -> VolumeAt {
    let (ended, used): (Vec<_>, Vec<_>) = volumes.iter().partition(|volume| volume.is_ended);
    let mut at: BTreeSet<_> = ended.into_iter().filter_map(|volume| volume.node(nodes)).collect();
    let target = at.pop_first();
    if let (Some(one), Some(other)) = (&target, at.pop_first()) {
        let why = format!("PersistentVolumes that have ended name {one} and {other} as its node");
        return VolumeAt::Refused(why);
    }
    let mut others = used.into_iter().map(|volume| (&volume.name, volume.node(nodes)));
    match others.find(|(_, at)| at.is_none() || *at != target) {
        Some((name, at)) => {
            let at =
                at.map_or_else(|| "at an unknown node".to_owned(), |node| format!("at {node}"));
            VolumeAt::Refused(format!("PersistentVolume {name}, which is in use, has it {at}"))
        }
        None => target.map_or(VolumeAt::Unsaid, VolumeAt::Node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::record::NodeDriver;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn segments(pairs: Pairs<'_>) -> Segments {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn affinity(terms: &[Pairs<'_>]) -> Affinity {
        Affinity::new(terms.iter().map(|term| segments(term)).collect())
    }

    fn name(node: &str) -> NodeName {
        node.parse().unwrap()
    }

    /// Nodes with these segments, and ours.
    fn driver(nodes: &[(&str, Pairs<'_>)]) -> DriverState {
        let mut driver = DriverState::default();
        for (node, pairs) in nodes {
            let own = [(NODE_SEGMENT, *node)];
            let all = pairs.iter().chain(&own);
            let all = all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()).into());
            let at = NodeDriver { segments: all.collect(), ..NodeDriver::default() };
            driver.set_at(name(node), Some(at));
        }
        driver
    }

    fn three() -> DriverState {
        let two: Pairs<'_> = &[("zone", "a"), ("uuid", "2"), ("host", "n2")];
        driver(&[("n1", &[("zone", "a"), ("uuid", "1"), ("host", "n1")]), ("n2", two)])
    }

    fn declared(key: &str, kind: KeyKind) -> Policy {
        Policy { topology: [(key.to_owned(), kind)].into(), ..Policy::new(None) }
    }

    #[test]
    fn every_term_must_name_the_node_by_a_key_that_tells_nodes_apart() {
        let driver = &three();
        let node = |terms: &[Pairs<'_>], policy| {
            affinity(terms).node(NodesOf { driver, policy }).map(|node| node.to_string())
        };
        let n1 = || Some("n1".to_owned());
        assert_eq!(node(&[&[(NODE_SEGMENT, "n1")]], None), n1());
        assert_eq!(node(&[&[("zone", "a"), (NODE_SEGMENT, "n1")]], None), n1());
        assert_eq!(node(&[&[("host", "n1")]], None), n1(), "it is the node's own name");
        assert_eq!(node(&[&[("uuid", "1")]], None), None, "one node alone may have made that up");
        let by_uuid = declared("uuid", KeyKind::Node);
        assert_eq!(node(&[&[("uuid", "1")]], Some(&by_uuid)), n1());
        let any = declared("host", KeyKind::Any);
        assert_eq!(node(&[&[("host", "n1")]], Some(&any)), None);
        let zones = declared("zone", KeyKind::Node);
        assert_eq!(node(&[&[("zone", "a")]], Some(&zones)), None, "two nodes are there");
        let unknown: Pairs<'_> = &[(NODE_SEGMENT, "n9")];
        for terms in [&[][..], &[&[][..]], &[unknown]] {
            assert_eq!(node(terms, None), None);
        }
        let [one, two]: [Pairs<'_>; 2] = [&[(NODE_SEGMENT, "n1")], &[(NODE_SEGMENT, "n2")]];
        assert_eq!(node(&[one, &[("zone", "a")]], None), None);
        assert_eq!(node(&[one, two], None), None, "it may be at either");
        assert_eq!(node(&[&[(NODE_SEGMENT, "n1"), ("host", "n2")]], None), None);
    }

    #[test]
    fn among_claimants_a_key_counts_that_every_node_reports() {
        let among = |driver: &DriverState, claimants: &[&str], pair, policy| {
            let claimants: Vec<_> = claimants.iter().map(|node| name(node)).collect();
            let nodes = NodesOf { driver, policy };
            affinity(&[&[pair]]).claimant(&claimants, nodes).map(|node| node.to_string())
        };
        let uuid = ("uuid", "1");
        assert_eq!(among(&three(), &["n1", "n2"], uuid, None), Some("n1".to_owned()));
        assert_eq!(among(&three(), &["n2"], uuid, None), None, "n1 does not claim it");
        assert_eq!(among(&three(), &["n1"], ("zone", "a"), None), None);
        let any = declared("uuid", KeyKind::Any);
        assert_eq!(among(&three(), &["n1"], uuid, Some(&any)), None);
        let silent = driver(&[("n1", &[uuid]), ("n2", &[])]);
        assert_eq!(among(&silent, &["n1"], uuid, None), None, "n2 may have it too");
    }

    #[test]
    fn a_delete_goes_where_what_has_ended_was_and_nobody_else_has_the_id() {
        let driver = &three();
        let nodes = NodesOf { driver, policy: None };
        let volume = |at: Option<&str>, is_ended| VolumeFacts {
            name: "pv".into(),
            affinity: at.map(|at| affinity(&[&[(NODE_SEGMENT, at)]])),
            is_ended,
            expands_with_secret: false,
        };
        let n1 = || VolumeAt::Node(name("n1"));
        assert_eq!(deleted_at(&[volume(Some("n1"), true)], nodes), n1());
        assert_eq!(deleted_at(&[volume(Some("n1"), true), volume(None, true)], nodes), n1());
        assert_eq!(deleted_at(&[volume(Some("n1"), true), volume(Some("n1"), false)], nodes), n1());
        assert_eq!(deleted_at(&[volume(None, true)], nodes), VolumeAt::Unsaid);
        for others in [
            &[volume(Some("n1"), true), volume(Some("n2"), true)][..],
            &[volume(Some("n1"), true), volume(Some("n2"), false)],
            &[volume(Some("n1"), true), volume(None, false)],
            &[volume(Some("n1"), false)],
        ] {
            assert!(matches!(deleted_at(others, nodes), VolumeAt::Refused(_)), "{others:?}");
        }
    }

    #[test]
    fn what_several_name_is_at_one_node_only_if_all_say_so() {
        let driver = &three();
        let nodes = NodesOf { driver, policy: None };
        let of = |at: &[&str]| {
            let volume = |at: &&str| VolumeFacts {
                affinity: Some(affinity(&[&[(NODE_SEGMENT, *at)]])),
                ..VolumeFacts::default()
            };
            used_at(&at.iter().map(volume).collect::<Vec<_>>(), nodes)
        };
        assert_eq!(of(&["n1", "n1"]), Some(name("n1")));
        assert_eq!(of(&["n1", "n2"]), None);
        assert_eq!(of(&[]), None);
    }
}
