//! The node affinity of a PersistentVolume: the nodes on which Kubernetes lets the volume be used.
//!
//! The provisioner wrote it when the volume was made, and it cannot be changed. So it is evidence
//! of the volume's home that no node can forge later.

use proto::csi::Segments;
use proto::names::NodeName;

use crate::state::policy::{KeyKind, Policy};

/// The terms of a node affinity, of which a node must meet one. Of each term only the labels with
/// exactly one allowed value are here; more conditions would only exclude more nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity(Vec<Segments>);

/// The facts about a volume in its PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFacts {
    /// The nodes on which it may be used; none if on any.
    pub affinity: Option<Affinity>,
    /// True if its expansion on a node takes a secret (`nodeExpandSecretRef`).
    pub expands_with_secret: bool,
}

/// The largest age of an answer of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// A minute.
    Minute,
    /// A minute if the answer has the volume; otherwise Kubernetes is asked again.
    MinuteIfKnown,
}

/// An answer of Kubernetes about a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAnswer {
    /// It has the volume.
    Known(VolumeFacts),
    /// It has no such volume.
    Unknown,
    /// It does not answer.
    Silent,
}

impl Affinity {
    /// The affinity with these terms.
    pub fn new(terms: Vec<Segments>) -> Self {
        Self(terms)
    }

    /// True if each term names this node: the value of a topology key is the node's name. Keys that
    /// the operator declares as `any` name no node.
    pub fn names(&self, node: &NodeName, policy: Option<&Policy>) -> bool {
        let is_any = |key: &str| {
            let kind = policy.and_then(|policy| policy.topology.get(key));
            kind == Some(&KeyKind::Any)
        };
        let names = |term: &Segments| {
            term.iter().any(|(key, value)| value == node.as_str() && !is_any(key))
        };
        !self.0.is_empty() && self.0.iter().all(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affinity(terms: &[&[(&str, &str)]]) -> Affinity {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Affinity::new(terms.iter().map(|term| term.iter().map(pair).collect()).collect())
    }

    #[test]
    fn every_term_must_name_the_node_by_a_key_that_is_of_nodes() {
        let node = "n1".parse().unwrap();
        let own = ("topology.edge-csi.io/node", "n1");
        assert!(affinity(&[&[own]]).names(&node, None));
        assert!(affinity(&[&[("zone", "a"), own]]).names(&node, None));
        assert!(!affinity(&[]).names(&node, None), "a volume without affinity is anywhere");
        assert!(!affinity(&[&[]]).names(&node, None));
        assert!(!affinity(&[&[("zone", "a")]]).names(&node, None));
        assert!(!affinity(&[&[own], &[("zone", "a")]]).names(&node, None));
        let two = [own, ("topology.edge-csi.io/node", "n2")];
        assert!(!affinity(&[&two[..1], &two[1..]]).names(&node, None), "it may be at n2");
        let mut policy = Policy::new(None);
        policy.topology.insert("zone".into(), KeyKind::Any);
        assert!(!affinity(&[&[("zone", "n1")]]).names(&node, Some(&policy)));
        assert!(affinity(&[&[("zone", "n1"), own]]).names(&node, Some(&policy)));
    }
}
