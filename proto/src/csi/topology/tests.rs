//! Each test decodes edited bytes with the generated code, and finds unknown fields again.

use proptest::prelude::*;

use crate::csi::topology::*;
use crate::csi::types as csi;

/// An unknown field.
const NEW: &[u8] = b"\xa2\x06\x03new";

fn n1() -> NodeName {
    "n1".parse().unwrap()
}

fn at(segments: &[(&str, &str)]) -> csi::Topology {
    let segments =
        segments.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    csi::Topology { segments }
}

fn with_new(message: &impl Message) -> Bytes {
    [NEW, &message.encode_to_vec(), NEW].concat().into()
}

fn read<M: Message + Default>(message: &Bytes) -> M {
    assert!(message.windows(NEW.len()).any(|part| part == NEW), "a field was lost");
    M::decode(message.clone()).unwrap()
}

fn same(edited: &Bytes, whole: &Bytes) -> bool {
    edited.as_ptr() == whole.as_ptr() && edited.len() == whole.len()
}

fn capabilities(types: &[service::Type]) -> csi::GetPluginCapabilitiesResponse {
    let service = |kind: &service::Type| Service { r#type: (*kind).into() };
    let capability = |kind| csi::PluginCapability {
        r#type: Some(plugin_capability::Type::Service(service(kind))),
    };
    csi::GetPluginCapabilitiesResponse { capabilities: types.iter().map(capability).collect() }
}

use service::Type::{ControllerService, VolumeAccessibilityConstraints};

#[test]
fn a_driver_has_topology_if_it_reports_constraints_and_segments() {
    let says = capabilities(&[ControllerService, VolumeAccessibilityConstraints]).encode_to_vec();
    let silent = capabilities(&[ControllerService]).encode_to_vec();
    let info =
        |topology| csi::NodeGetInfoResponse { accessible_topology: topology, ..Default::default() };
    let zone = info(Some(at(&[("zone", "a")]))).encode_to_vec();
    assert!(has_own(&says, &zone));
    assert!(!has_own(&silent, &zone));
    assert!(!has_own(&says, &info(None).encode_to_vec()));
    assert!(!has_own(&says, &info(Some(at(&[]))).encode_to_vec()));
    assert!(!has_own(&says, b"\xff") && !has_own(b"\xff", &zone));
}

#[test]
fn a_front_without_topology_has_neither_the_capability_nor_segments() {
    let all =
        [ControllerService, VolumeAccessibilityConstraints, service::Type::GroupControllerService];
    let answer = with_new(&capabilities(&all));
    let edited = out_of_answer(Rewrite::PluginCapabilities, &answer).unwrap();
    let left = capabilities(&[ControllerService, service::Type::GroupControllerService]);
    assert!(read::<csi::GetPluginCapabilitiesResponse>(&edited) == left);
    assert!(same(&out_of_answer(Rewrite::PluginCapabilities, &edited).unwrap(), &edited));

    let info = csi::NodeGetInfoResponse {
        node_id: "i".into(),
        max_volumes_per_node: 7,
        accessible_topology: Some(at(&[("zone", "a"), (NODE_SEGMENT, "n1")])),
    };
    // Twice, as protobuf merges them.
    let answer: Bytes = [with_new(&info), with_new(&info)].concat().into();
    let edited = out_of_answer(Rewrite::NodeInfo, &answer).unwrap();
    let left = csi::NodeGetInfoResponse { accessible_topology: None, ..info };
    assert!(read::<csi::NodeGetInfoResponse>(&edited) == left);
    assert!(same(&out_of_answer(Rewrite::NodeInfo, &edited).unwrap(), &edited));
    assert!(same(&out_of_answer(Rewrite::CreateVolume, &answer).unwrap(), &answer));
    for rewrite in [Rewrite::PluginCapabilities, Rewrite::NodeInfo] {
        assert!(out_of_answer(rewrite, &b"\xff".to_vec().into()).is_err());
    }
}

#[test]
fn the_capability_is_added_once() {
    let answer = with_new(&capabilities(&[ControllerService]));
    let added = into_plugin_capabilities(&answer).unwrap();
    assert!(
        read::<csi::GetPluginCapabilitiesResponse>(&added)
            == capabilities(&[ControllerService, VolumeAccessibilityConstraints])
    );
    assert!(added.starts_with(&answer));
    assert!(same(&into_plugin_capabilities(&added).unwrap(), &added));
    assert!(into_plugin_capabilities(&Bytes::from_static(b"\x0a\x05")).is_err());
}

#[test]
fn node_info_gets_the_segment_of_the_node() {
    for topology in [None, Some(at(&[("zone", "a")])), Some(at(&[(NODE_SEGMENT, "n9")]))] {
        let mut info = csi::NodeGetInfoResponse {
            node_id: "id".into(),
            accessible_topology: topology,
            ..Default::default()
        };
        let told = into_node_info(&with_new(&info), &n1()).unwrap();
        let segments = &mut info.accessible_topology.get_or_insert_default().segments;
        segments.insert(NODE_SEGMENT.into(), "n1".into());
        assert!(read::<csi::NodeGetInfoResponse>(&told) == info);
        assert!(same(&into_node_info(&told, &n1()).unwrap(), &told));
    }
}

#[test]
fn a_volume_gets_the_segment_of_its_node() {
    let created = |topologies: &[csi::Topology]| {
        let volume = csi::Volume {
            volume_id: "v".into(),
            accessible_topology: topologies.to_vec(),
            ..Default::default()
        };
        csi::CreateVolumeResponse { volume: Some(volume) }
    };
    for (before, after) in [
        (vec![], vec![at(&[(NODE_SEGMENT, "n1")])]),
        (vec![at(&[])], vec![at(&[(NODE_SEGMENT, "n1")])]),
        (
            vec![at(&[("zone", "a")]), at(&[("zone", "b"), (NODE_SEGMENT, "n2")])],
            vec![
                at(&[("zone", "a"), (NODE_SEGMENT, "n1")]),
                at(&[("zone", "b"), (NODE_SEGMENT, "n1")]),
            ],
        ),
    ] {
        let told = into_created_volume(&with_new(&created(&before)), &n1()).unwrap();
        assert!(read::<csi::CreateVolumeResponse>(&told) == created(&after));
        assert!(same(&into_created_volume(&told, &n1()).unwrap(), &told));
    }
    let empty = Bytes::from_static(NEW);
    assert!(same(&into_created_volume(&empty, &n1()).unwrap(), &empty), "no volume was made");
}

#[test]
fn a_snapshot_gets_the_segment_only_if_the_driver_reports_a_topology() {
    let cut = |topologies: &[csi::Topology]| {
        let snapshot = csi::Snapshot {
            snapshot_id: "s".into(),
            accessible_topology: topologies.to_vec(),
            ..Default::default()
        };
        csi::CreateSnapshotResponse { snapshot: Some(snapshot) }
    };
    let silent = with_new(&cut(&[]));
    assert!(same(&into_created_snapshot(&silent, &n1()).unwrap(), &silent));
    let told = into_created_snapshot(&with_new(&cut(&[at(&[("zone", "a")])])), &n1()).unwrap();
    let expected = cut(&[at(&[("zone", "a"), (NODE_SEGMENT, "n1")])]);
    assert!(read::<csi::CreateSnapshotResponse>(&told) == expected);
}

#[test]
fn the_driver_does_not_see_our_segment() {
    let ours = at(&[(NODE_SEGMENT, "n1")]);
    let both = at(&[(NODE_SEGMENT, "n1"), ("zone", "a")]);
    let zone = at(&[("zone", "a")]);
    let require = |requisite: &[&csi::Topology], preferred: &[&csi::Topology]| {
        let [requisite, preferred] =
            [requisite, preferred].map(|topologies| topologies.iter().copied().cloned().collect());
        Some(csi::TopologyRequirement { requisite, preferred })
    };
    for (asked, seen) in [
        (None, None),
        (require(&[&ours], &[&ours]), None),
        (require(&[&ours, &both], &[&ours]), require(&[&zone], &[])),
        (require(&[], &[&both, &zone]), require(&[], &[&zone, &zone])),
        (require(&[&zone], &[]), require(&[&zone], &[])),
    ] {
        let volume = |accessibility_requirements| csi::CreateVolumeRequest {
            name: "v".into(),
            accessibility_requirements,
            ..Default::default()
        };
        let sent = out_of_create_volume(&with_new(&volume(asked.clone()))).unwrap();
        assert!(read::<csi::CreateVolumeRequest>(&sent) == volume(seen.clone()));
        let snapshot = |accessibility_requirements| csi::CreateSnapshotRequest {
            name: "s".into(),
            accessibility_requirements,
            ..Default::default()
        };
        let sent = out_of_create_snapshot(&with_new(&snapshot(asked))).unwrap();
        assert!(read::<csi::CreateSnapshotRequest>(&sent) == snapshot(seen));
    }
    for (asked, seen) in [(None, None), (Some(ours), None), (Some(both), Some(zone))] {
        let capacity = |accessible_topology| csi::GetCapacityRequest {
            accessible_topology,
            ..Default::default()
        };
        let sent = out_of_capacity(&with_new(&capacity(asked))).unwrap();
        assert!(read::<csi::GetCapacityRequest>(&sent) == capacity(seen));
    }
}

#[test]
fn unknown_fields_survive_at_every_depth() {
    // A requirement with an unknown field; in it a topology with ours and an unknown field.
    let topology =
        [[b"\x0a".as_slice(), &[segment_len()], &segment(&n1())].concat(), NEW.to_vec()].concat();
    let mut requirement = NEW.to_vec();
    wire::append(&mut requirement, &[PREFERRED], &topology);
    let mut request = Vec::new();
    wire::append(&mut request, &[VOLUME_REQUIREMENT], &requirement);
    let mut expected = Vec::new();
    let mut left = NEW.to_vec();
    wire::append(&mut left, &[PREFERRED], NEW);
    wire::append(&mut expected, &[VOLUME_REQUIREMENT], &left);
    assert_eq!(out_of_create_volume(&request.into()).unwrap(), expected);
}

fn segment_len() -> u8 {
    segment(&n1()).len().try_into().unwrap()
}

proptest! {
    #[test]
    fn the_segment_that_is_added_to_a_request_is_removed_again(
        segments in proptest::collection::vec(
            proptest::collection::hash_map("[a-z]{1,9}", ".{0,200}", 1..4),
            1..4,
        ),
    ) {
        let topologies = segments.iter().cloned();
        let preferred: Vec<_> = topologies.map(|segments| csi::Topology { segments }).collect();
        let requirement = csi::TopologyRequirement { preferred, ..Default::default() };
        let plain = csi::CreateVolumeRequest {
            accessibility_requirements: Some(requirement),
            ..Default::default()
        };
        let plain = with_new(&plain);
        prop_assert!(same(&out_of_create_volume(&plain).unwrap(), &plain));
        let with_ours = wire::edit(&plain, &[VOLUME_REQUIREMENT], |requirement| {
            let edited =
                wire::edit(requirement, &[PREFERRED], |topology| into_topology(topology, &n1()));
            edited.map(Edit::from)
        });
        let with_ours = Bytes::from(with_ours.unwrap().unwrap());
        prop_assert_eq!(out_of_create_volume(&with_ours).unwrap(), plain);
    }

    #[test]
    fn any_bytes_are_edited_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let bytes = Bytes::from(bytes);
        let _ = has_own(&bytes, &bytes);
        let _ = into_plugin_capabilities(&bytes);
        for edit in [into_node_info, into_created_volume, into_created_snapshot] {
            let _ = edit(&bytes, &n1());
        }
        for edit in [out_of_create_volume, out_of_create_snapshot, out_of_capacity] {
            let _ = edit(&bytes);
        }
    }
}

#[test]
fn our_segment_is_corrected_and_only_where_it_is() {
    let volume = |segments: &[&[(&str, &str)]]| {
        let accessible_topology = segments.iter().map(|segments| at(segments)).collect();
        let volume = csi::Volume { accessible_topology, ..Default::default() };
        with_new(&csi::CreateVolumeResponse { volume: Some(volume) })
    };
    let lie = volume(&[&[(NODE_SEGMENT, "victim"), ("zone", "a")]]);
    let read: csi::CreateVolumeResponse = read(&correct_volume(&lie, &n1()).unwrap());
    let expected = at(&[(NODE_SEGMENT, "n1"), ("zone", "a")]);
    assert!(read.volume.unwrap().accessible_topology == [expected]);
    for honest in [volume(&[&[("zone", "a")]]), volume(&[&[(NODE_SEGMENT, "n1")]]), volume(&[])] {
        assert!(same(&correct_volume(&honest, &n1()).unwrap(), &honest));
    }
}

#[test]
fn segments_are_taken_out_of_a_nodes_info() {
    let info = |segments| {
        let accessible_topology = Some(at(segments));
        with_new(&csi::NodeGetInfoResponse { accessible_topology, ..Default::default() })
    };
    let said = info(&[("node", "victim"), ("zone", "a")]);
    let left: csi::NodeGetInfoResponse = read(&out_of_node_info(&said, &["node"]).unwrap());
    assert!(left.accessible_topology == Some(at(&[("zone", "a")])));
    let none: csi::NodeGetInfoResponse = read(&out_of_node_info(&said, &["node", "zone"]).unwrap());
    assert!(none.accessible_topology.is_none());
    assert!(same(&out_of_node_info(&said, &["other"]).unwrap(), &said));
}
