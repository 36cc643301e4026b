//! Asks a driver for its own node's topology, whatever topology is requested.
//!
//! Of several requested nodes, a driver may take the first for the place of the volume, and be at
//! another one itself. And the scheduler does not know sources. With WaitForFirstConsumer it may
//! choose a node that the driver must refuse, and choose the same node again for ever. So the
//! driver is asked for its own node. Its answer tells where the volume is; the claim and the pod
//! follow.

use bytes::Bytes;
use prost::Message;
use proto::csi::wire;
use proto::csi::wire::{Edit, Malformed};
use proto::csi::{Segments, TopologyRequirement};

use crate::state::record::NodeDriver;

// Field numbers of CSI messages; the tests decode the edited messages with the generated code.
const SOURCE: u32 = 6;
const REQUIREMENT: u32 = 7;
const REQUISITE: u32 = 1;
const PREFERRED: u32 = 2;
const SEGMENTS: u32 = 1;

/// A CreateVolume for the driver at the source's node. If no requested topology includes that node,
/// the request asks for the node's own topology.
///
/// # Errors
/// The request is malformed.
pub(crate) fn with_source(create_volume: &Bytes, at: &NodeDriver) -> Result<Bytes, Malformed> {
    let mut has_source = false;
    for field in wire::fields(create_volume) {
        has_source |= field?.number == SOURCE;
    }
    if !has_source {
        return Ok(create_volume.clone());
    }
    let edited = wire::edit(create_volume, &[REQUIREMENT], |requirement| {
        let asked = TopologyRequirement::decode(requirement)?.requisite;
        let is_here = |segments| at.is_at(&segments);
        // CSI: without requisite topologies the plugin may choose any.
        if asked.is_empty()
            || asked.into_iter().any(|one| is_here(one.segments.into_iter().collect()))
        {
            return Ok(Edit::Keep);
        }
        let own = topology_of(&at.own_segments());
        let mut requirement = Vec::new();
        wire::append(&mut requirement, &[REQUISITE], &own);
        Ok(Edit::Replace(requirement))
    })?;
    Ok(edited.map_or_else(|| create_volume.clone(), Bytes::from))
}

/// A CreateVolume whose requirement has these segments alone, in both of its lists, as
/// external-provisioner asks at a node.
///
/// # Errors
/// The request is malformed.
pub(crate) fn narrowed(create_volume: &Bytes, segments: &Segments) -> Result<Bytes, Malformed> {
    let edited = wire::edit(create_volume, &[REQUIREMENT], |_| {
        let only = topology_of(segments);
        let mut requirement = Vec::new();
        wire::append(&mut requirement, &[REQUISITE], &only);
        wire::append(&mut requirement, &[PREFERRED], &only);
        Ok(Edit::Replace(requirement))
    })?;
    Ok(edited.map_or_else(|| create_volume.clone(), Bytes::from))
}

/// A topology with these segments, which are the driver's own.
pub(super) fn topology_of(segments: &Segments) -> Vec<u8> {
    let mut topology = Vec::new();
    for (key, value) in segments {
        wire::append(&mut topology, &[SEGMENTS], &wire::entry(key, value));
    }
    topology
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use proto::csi::topology::NODE_SEGMENT;
    use proto::csi::volume_content_source::{SnapshotSource, Type};
    use proto::csi::{CreateVolumeRequest, Topology, VolumeContentSource};

    use super::*;

    fn at(node: &str) -> NodeDriver {
        let place = [(NODE_SEGMENT, "ours"), ("zone", "a"), ("node", node)];
        NodeDriver {
            segments: place.map(|(key, value)| Arc::new((key.to_owned(), value.to_owned()))).into(),
            ..NodeDriver::default()
        }
    }

    fn topology(node: &str) -> Topology {
        Topology { segments: [("node".to_owned(), node.to_owned())].into() }
    }

    fn request(from: Option<&str>, nodes: &[&str]) -> CreateVolumeRequest {
        let snapshot = |id: &str| Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() });
        let requisite: Vec<_> = nodes.iter().map(|node| topology(node)).collect();
        CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            volume_content_source: from
                .map(|id| VolumeContentSource { r#type: Some(snapshot(id)) }),
            accessibility_requirements: Some(TopologyRequirement {
                preferred: requisite.clone(),
                requisite,
            }),
            ..Default::default()
        }
    }

    /// The request as the driver gets it, and whether its bytes are unchanged.
    fn asked(request: &CreateVolumeRequest) -> (CreateVolumeRequest, bool) {
        let came = Bytes::from(request.encode_to_vec());
        let goes = with_source(&came, &at("n1")).unwrap();
        (CreateVolumeRequest::decode(goes.clone()).unwrap(), goes == came)
    }

    #[test]
    fn only_what_is_made_of_a_source_at_another_node_is_asked_for_where_that_is() {
        let (goes, _) = asked(&request(Some("s"), &["n2", "n3"]));
        let wanted = goes.accessibility_requirements.unwrap();
        assert!(wanted.preferred.is_empty());
        let here = wanted.requisite.iter().map(|one| one.segments.clone()).collect::<Vec<_>>();
        assert_eq!(
            here,
            [[("zone".to_owned(), "a".to_owned()), ("node".to_owned(), "n1".to_owned())].into()]
        );
        for same in [
            request(Some("s"), &["n2", "n1"]),
            request(Some("s"), &[]),
            request(None, &["n2"]),
            CreateVolumeRequest { accessibility_requirements: None, ..request(Some("s"), &[]) },
        ] {
            assert!(asked(&same).1);
        }
    }

    #[test]
    fn a_narrowed_request_has_the_nodes_own_topology_in_both_lists_and_all_else() {
        let own = [("node".to_owned(), "n1".to_owned())].into();
        let came = request(Some("s"), &["n2", "n1"]);
        let goes = narrowed(&came.encode_to_vec().into(), &own).unwrap();
        let wanted = TopologyRequirement {
            requisite: vec![topology("n1")],
            preferred: vec![topology("n1")],
        };
        let wanted = CreateVolumeRequest { accessibility_requirements: Some(wanted), ..came };
        assert!(CreateVolumeRequest::decode(goes).unwrap() == wanted);
        let without = CreateVolumeRequest { accessibility_requirements: None, ..wanted };
        let without = Bytes::from(without.encode_to_vec());
        assert_eq!(narrowed(&without, &own).unwrap(), without);
    }

    proptest! {
        #[test]
        fn bytes_from_outside_do_not_panic_and_all_else_passes(bytes: Vec<u8>, name: String) {
            let _ = with_source(&bytes.into(), &at("n1"));
            let request = CreateVolumeRequest { name: name.clone(), ..request(Some("s"), &["n2"]) };
            let (goes, _) = asked(&request);
            prop_assert_eq!(goes.name, name);
            prop_assert!(goes.volume_content_source == request.volume_content_source);
        }
    }
}
