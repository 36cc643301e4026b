//! Compares where a driver says that its new volume is with the node that made the volume.
//!
//! The topologies of the answer become the affinity of the PersistentVolume. A driver that takes
//! them from the request can name a node that has no data.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message;
use proto::csi::wire;
use proto::csi::wire::{Edit, Malformed};
use proto::csi::{CreateVolumeResponse, Segments, Volume};
use proto::names::NodeName;

use super::colocate::topology_of;
use crate::state::affinity::{Affinity, NodesOf};
use crate::state::policy::{Policy, Scope};
use crate::state::record::NodeDriver;

// Field numbers of CSI messages; the tests decode the edited messages with the generated code.
const VOLUME: u32 = 1;
const ACCESSIBLE_TOPOLOGY: u32 = 5;

/// Where the topologies of an answer are, seen from the node that gave the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// One of them includes this node, or there are none.
    Here,
    /// Each of them is another node's, by keys of which each node has a value of its own.
    Elsewhere(BTreeSet<NodeName>),
    /// None of them includes this node, and not each is known to be another node's.
    Unclear,
}

impl Placed {
    /// True if the answer is corrected. Only the operator's word says that a volume is where it was
    /// made: with an inferred scope it may well be where the driver says.
    pub(crate) fn is_corrected(&self, policy: Option<&Policy>) -> bool {
        let is_at_node = policy.is_some_and(|policy| policy.scope == Some(Scope::Node));
        is_at_node && matches!(self, Self::Elsewhere(_))
    }
}

/// Where the answer to a CreateVolume places the volume that this node made.
///
/// # Errors
/// The answer is malformed.
pub(crate) fn placed(
    answer: &Bytes,
    node: &NodeName,
    at: &NodeDriver,
    nodes: NodesOf<'_>,
) -> Result<Placed, Malformed> {
    let volume = CreateVolumeResponse::decode(answer.clone())?.volume.unwrap_or_default();
    Ok(volume_placed(volume, node, at, nodes))
}

/// The same of a volume that this node made, as its driver describes it.
pub(crate) fn volume_placed(
    volume: Volume,
    node: &NodeName,
    at: &NodeDriver,
    nodes: NodesOf<'_>,
) -> Placed {
    let topologies: Vec<Segments> = volume
        .accessible_topology
        .into_iter()
        .map(|topology| topology.segments.into_iter().collect())
        .collect();
    if topologies.is_empty() || topologies.iter().any(|segments| at.is_at(segments)) {
        return Placed::Here;
    }
    match Affinity::new(topologies).others(node, nodes) {
        Some(others) => Placed::Elsewhere(others),
        None => Placed::Unclear,
    }
}

/// The answer to a CreateVolume with these segments as its only topology.
///
/// # Errors
/// The answer is malformed.
pub(crate) fn corrected(answer: &Bytes, segments: &Segments) -> Result<Bytes, Malformed> {
    let edited = wire::edit(answer, &[VOLUME], |volume| {
        wire::edit(volume, &[ACCESSIBLE_TOPOLOGY], |_| Ok(Edit::Drop)).map(Edit::from)
    })?;
    let mut answer = edited.unwrap_or_else(|| answer.to_vec());
    wire::append(&mut answer, &[VOLUME, ACCESSIBLE_TOPOLOGY], &topology_of(segments));
    Ok(answer.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto::csi::Topology;

    use super::*;
    use crate::state::driver_state::DriverState;
    use crate::state::policy::KeyKind;

    type Topologies<'a> = &'a [&'a [(&'a str, &'a str)]];

    const NODE: &str = "d.example/node";
    const ZONE: &str = "d.example/zone";

    fn name(node: &str) -> NodeName {
        node.parse().unwrap()
    }

    fn segments(pairs: &[(&str, &str)]) -> Segments {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn answer(topologies: Topologies<'_>) -> Bytes {
        let topology =
            |pairs: &&[(&str, &str)]| Topology { segments: segments(pairs).into_iter().collect() };
        let accessible_topology = topologies.iter().map(topology).collect();
        let volume = Volume { volume_id: "v".into(), accessible_topology, ..Default::default() };
        CreateVolumeResponse { volume: Some(volume) }.encode_to_vec().into()
    }

    fn elsewhere(nodes: &[&str]) -> Placed {
        Placed::Elsewhere(nodes.iter().map(|node| name(node)).collect())
    }

    #[test]
    fn a_topology_is_elsewhere_only_if_keys_of_single_nodes_say_so() {
        let mut driver = DriverState::default();
        for (node, value) in [("n1", "a"), ("n2", "b"), ("n3", "c")] {
            let own = [(NODE, value), (ZONE, "z")];
            let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()).into());
            let at = NodeDriver { segments: own.into_iter().collect(), ..NodeDriver::default() };
            driver.set_at(name(node), Some(at));
        }
        let topology = BTreeMap::from([(NODE.to_owned(), KeyKind::Node)]);
        let declared = Policy { topology, ..Policy::new(None) };
        let at = driver.at(&name("n2")).unwrap();
        let cases: [(Topologies<'_>, Placed, Placed); 7] = [
            (&[], Placed::Here, Placed::Here),
            (&[&[(NODE, "b")]], Placed::Here, Placed::Here),
            (&[&[(ZONE, "z")]], Placed::Here, Placed::Here),
            (&[&[(NODE, "a")]], elsewhere(&["n1"]), Placed::Unclear),
            (
                &[&[(NODE, "a"), (ZONE, "z")], &[(NODE, "c")]],
                elsewhere(&["n1", "n3"]),
                Placed::Unclear,
            ),
            (&[&[(NODE, "a")], &[(ZONE, "other")]], Placed::Unclear, Placed::Unclear),
            (&[&[(NODE, "unknown")]], Placed::Unclear, Placed::Unclear),
        ];
        for (topologies, with_policy, without) in cases {
            let answer = answer(topologies);
            for (policy, expected) in [(Some(&declared), with_policy), (None, without)] {
                let nodes = NodesOf { driver: &driver, policy };
                let placed = placed(&answer, &name("n2"), at, nodes).unwrap();
                assert_eq!(placed, expected, "{topologies:?}");
            }
        }
    }

    #[test]
    fn a_corrected_answer_has_one_topology_and_all_else_of_the_volume() {
        let own = segments(&[(NODE, "b")]);
        let corrected = corrected(&answer(&[&[(NODE, "a")], &[(ZONE, "z")]]), &own).unwrap();
        let expected = CreateVolumeResponse::decode(answer(&[&[(NODE, "b")]])).unwrap();
        assert!(CreateVolumeResponse::decode(corrected).unwrap() == expected);
    }
}
