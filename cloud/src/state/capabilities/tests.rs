//! Answers are encoded with the generated code, and their intersection is decoded with it.

use csi::controller_service_capability::rpc;
use csi::controller_service_capability::rpc::Type::{
    CloneVolume, CreateDeleteVolume, GetCapacity, ListVolumes,
};
use proptest::prelude::*;

use crate::state::capabilities::*;

/// An unknown RPC capability, as a field of the answer.
const NEW: &[u8] = b"\x0a\x05\x0a\x03\x08\xe7\x07";

fn says(types: &[rpc::Type]) -> Bytes {
    let capability = |kind: &rpc::Type| {
        let rpc = csi::controller_service_capability::Rpc { r#type: (*kind).into() };
        csi::ControllerServiceCapability {
            r#type: Some(csi::controller_service_capability::Type::Rpc(rpc)),
        }
    };
    let capabilities = types.iter().map(capability).collect();
    csi::ControllerGetCapabilitiesResponse { capabilities }.encode_to_vec().into()
}

fn of(said: &[Option<Bytes>]) -> Agreed {
    let names: Vec<NodeName> =
        (0..said.len()).map(|i| format!("n{i:04}").parse().unwrap()).collect();
    agree(Capabilities::Controller, names.iter().zip(said.iter().map(Option::as_ref)))
}

fn mismatches(agreed: &Agreed) -> Vec<String> {
    agreed.mismatches.iter().map(ToString::to_string).collect()
}

#[test]
fn nodes_that_say_the_same_are_quoted() {
    let answer = Bytes::from([&says(&[CreateDeleteVolume]), NEW].concat());
    for nodes in [1, 3000] {
        let agreed = of(&vec![Some(answer.clone()); nodes]);
        assert_eq!((agreed.answer.as_ref(), agreed.mismatches.len()), (Some(&answer), 0));
    }
    // A single undecodable answer is passed on too.
    assert_eq!(
        of(&[Some(Bytes::from_static(b"\xff"))]).answer.as_deref(),
        Some(b"\xff".as_slice())
    );
    assert_eq!(of(&[None, None]), Agreed { answer: None, mismatches: Vec::new() });
    assert_eq!(of(&[]), Agreed { answer: None, mismatches: Vec::new() });
}

#[test]
fn only_what_all_can_is_said_and_the_odd_are_named() {
    let all = says(&[CreateDeleteVolume, CloneVolume, GetCapacity]);
    let lacks = says(&[GetCapacity, CreateDeleteVolume]);
    let more = Bytes::from([&all, says(&[ListVolumes]).as_ref(), NEW].concat());
    let agreed = of(&[Some(all.clone()), Some(lacks), Some(more), Some(all)]);
    assert_eq!(agreed.answer, Some(says(&[CreateDeleteVolume, GetCapacity])));
    let mismatches = mismatches(&agreed);
    assert_eq!(mismatches.len(), 3);
    assert!(
        mismatches.contains(&"CLONE_VOLUME everywhere but at n0001".to_owned()),
        "{mismatches:?}"
    );
    assert!(mismatches.contains(&"LIST_VOLUMES only at n0002".to_owned()), "{mismatches:?}");
    assert!(
        mismatches
            .iter()
            .any(|text| text.contains("an unknown capability") && text.ends_with("n0002")),
        "{mismatches:?}"
    );
}

#[test]
fn a_capability_is_named_once_and_one_that_csi_has_reserved_is_unknown() {
    // Its number was given up by a CSI before ours, so it is not newer.
    let reserved = b"\x0a\x04\x0a\x02\x08\x0b".as_slice();
    let answer =
        Bytes::from([reserved, &says(&[GetCapacity, GetCapacity]), NEW, reserved].concat());
    let names = capability_names(Capabilities::Controller, &answer);
    let [first, second, third] = &names[..] else { panic!("{names:?}") };
    for unknown in [first, third] {
        let expected = "an unknown capability of ControllerGetCapabilities";
        assert!(unknown.starts_with(expected), "{unknown}");
    }
    assert_eq!(second, "GET_CAPACITY");
    assert_eq!(lacking(Capabilities::Controller, Some(&answer), None), names);
}

#[test]
fn what_is_newer_than_we_are_survives_if_all_have_it() {
    let one = says(&[CreateDeleteVolume]);
    let other = says(&[GetCapacity]);
    let agreed = of(&[one, other].map(|answer| Some([NEW, &answer].concat().into())));
    assert_eq!(agreed.answer.as_deref(), Some(NEW));
}

#[test]
fn a_node_without_the_service_leaves_an_answer_that_is_empty() {
    let agreed = of(&[Some(says(&[CloneVolume])), None, Some(says(&[CloneVolume]))]);
    assert_eq!(agreed.answer, Some(Bytes::new()));
    assert_eq!(mismatches(&agreed), ["CLONE_VOLUME everywhere but at n0001"]);
}

#[test]
fn a_node_that_talks_nonsense_takes_nothing_from_the_others() {
    let good = Some(says(&[CloneVolume]));
    let agreed = of(&[good.clone(), Some(Bytes::from_static(b"\xff")), good.clone()]);
    assert_eq!(agreed.answer, good);
    assert_eq!(
        mismatches(&agreed),
        ["an answer to ControllerGetCapabilities that is no protobuf only at n0001"]
    );
    assert_eq!(of(&[None, Some(Bytes::from_static(b"\xff"))]).answer, None);
}

#[test]
fn of_thousands_a_few_are_named_and_the_rest_counted() {
    let plain = Some(says(&[CloneVolume]));
    let more = Some(says(&[CloneVolume, ListVolumes]));
    let said: Vec<_> =
        (0..5000).map(|i| if i % 50 == 0 { more.clone() } else { plain.clone() }).collect();
    let agreed = of(&said);
    assert_eq!(agreed.answer, plain);
    assert_eq!(
        mismatches(&agreed),
        ["LIST_VOLUMES only at n0000, n0050, n0100, n0150, n0200 and 95 more"]
    );
    // Each node has a capability of its own: only some mismatches are reported.
    let own = |i: u32| [0x12, 4].into_iter().chain(i.to_le_bytes()).collect::<Bytes>();
    assert_eq!(of(&(0..5000).map(|i| Some(own(i))).collect::<Vec<_>>()).mismatches.len(), MANY);
}

#[test]
fn each_method_has_its_own_names() {
    for (kind, raw, expected) in [
        (
            Capabilities::Plugin,
            b"\x0a\x04\x0a\x02\x08\x02".as_slice(),
            "VOLUME_ACCESSIBILITY_CONSTRAINTS",
        ),
        (Capabilities::Plugin, b"\x0a\x04\x12\x02\x08\x01", "VOLUME_EXPANSION ONLINE"),
        (Capabilities::Controller, b"\x0a\x04\x0a\x02\x08\x01", "CREATE_DELETE_VOLUME"),
        (
            Capabilities::Group,
            b"\x0a\x04\x0a\x02\x08\x01",
            "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
        ),
        (Capabilities::Node, b"\x0a\x04\x0a\x02\x08\x01", "STAGE_UNSTAGE_VOLUME"),
    ] {
        assert_eq!(name(kind, raw), expected);
        assert!(name(kind, NEW).contains(name_of(kind)), "{}", name(kind, NEW));
    }
}

#[test]
fn a_scope_is_inferred_from_constraints_unless_no_node_is_in_a_topology() {
    let constrained = &Bytes::from_static(b"\x0a\x04\x0a\x02\x08\x02");
    let other = &Bytes::from_static(b"\x0a\x04\x0a\x02\x08\x01");
    let somewhere = Some(&Bytes::from_static(b"\x1a\x08\x0a\x06\x0a\x01a\x12\x01b"));
    let nowhere = Some(&Bytes::from_static(b"\x0a\x02n1"));
    for (said, infos, expected) in [
        (vec![], vec![], Scope::Shared),
        (vec![other, other], vec![somewhere, somewhere], Scope::Shared),
        (vec![constrained], vec![], Scope::Node),
        (vec![constrained], vec![somewhere], Scope::Node),
        (vec![other, constrained], vec![nowhere, somewhere], Scope::Node),
        (vec![constrained], vec![nowhere, nowhere], Scope::Shared),
        (vec![constrained], vec![nowhere, None], Scope::Node),
    ] {
        assert_eq!(inferred_scope(said.clone(), infos.clone()), expected, "{said:?} {infos:?}");
    }
}

proptest! {
    #[test]
    fn it_is_the_intersection(
        nodes in proptest::collection::vec(proptest::collection::btree_set(1..11i32, 0..9), 1..6),
    ) {
        let types = |set: &std::collections::BTreeSet<i32>| {
            set.iter().map(|kind| rpc::Type::try_from(*kind).unwrap()).collect::<Vec<_>>()
        };
        let said: Vec<_> = nodes.iter().map(|set| Some(says(&types(set)))).collect();
        let common = nodes.iter().skip(1).fold(nodes[0].clone(), |common, set| &common & set);
        let agreed = of(&said);
        prop_assert_eq!(agreed.answer, Some(says(&types(&common))));
        let union: std::collections::BTreeSet<_> = nodes.iter().flatten().collect();
        prop_assert_eq!(agreed.mismatches.len(), union.len() - common.len());
    }

    #[test]
    fn any_bytes_are_compared(said in proptest::collection::vec(
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20)), 0..5,
    )) {
        let said: Vec<_> = said.into_iter().map(|answer| answer.map(Bytes::from)).collect();
        of(&said);
        inferred_scope(said.iter().flatten(), said.iter().map(Option::as_ref));
    }
}
