//! Colocates a new volume with its source, whatever topology is requested.
//!
//! The scheduler does not know sources. With WaitForFirstConsumer it may choose a node that the
//! driver must refuse, and choose the same node again for ever. So the driver is asked for its own
//! node. Its answer tells where the volume is; the claim and the pod follow.

use bytes::Bytes;
use prost::Message;
use proto::csi::TopologyRequirement;
use proto::csi::topology::NODE_SEGMENT;
use proto::csi::wire;
use proto::csi::wire::{Edit, Malformed};

use crate::state::record::NodeDriver;

// Field numbers of CSI messages; the tests decode the edited messages with the generated code.
const SOURCE: u32 = 6;
const REQUIREMENT: u32 = 7;
const REQUISITE: u32 = 1;
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
        Ok(Edit::Replace(own_topology(at)))
    })?;
    Ok(edited.map_or_else(|| create_volume.clone(), Bytes::from))
}

/// A requirement for the driver's own topology of its node, without our segment, which the driver
/// does not know.
fn own_topology(at: &NodeDriver) -> Vec<u8> {
    let mut topology = Vec::new();
    for segment in at.segments.iter().filter(|segment| segment.0 != NODE_SEGMENT) {
        wire::append(&mut topology, &[SEGMENTS], &wire::entry(&segment.0, &segment.1));
    }
    let mut requirement = Vec::new();
    wire::append(&mut requirement, &[REQUISITE], &topology);
    requirement
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
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
