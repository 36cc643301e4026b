//! Records are read and written as by csi-cloud 0.2.0, and take no more memory.

use prost::encoding::{DecodeContext, WireType, decode_key, encode_key, encode_varint, skip_field};

use super::old_codec;
use super::*;
use crate::state::record::Cordon;
use proto::control::hello::Run;

/// The id of a machine.
const MACHINE: &str = "000102030405060708090a0b0c0d0e0f";

/// A stored record, or the removal of one, by today's codec and by the old one.
fn decoded(table: Table, key: &[u8], value: Option<&[u8]>) -> [Result<Option<Change>, String>; 2] {
    let mut new = codec::Decoder::default();
    let mut old = old_codec::Decoder::default();
    let both = match value {
        Some(value) => {
            [new.decode(table, key, value).map(Some), old.decode(table, key, value).map(Some)]
        }
        None => [new.removal(table, key), old.removal(table, key)],
    };
    both.map(|decoded| decoded.map_err(|error| error.to_string()))
}

/// The fields of a message, as bytes.
fn fields(mut message: &[u8]) -> Vec<Vec<u8>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let begin = message;
        let (tag, wire_type) = decode_key(&mut message).unwrap();
        skip_field(wire_type, tag, &mut message, DecodeContext::default()).unwrap();
        fields.push(begin[..begin.len() - message.len()].to_vec());
    }
    fields
}

/// True if a message, which may be damaged, has a field that came after the old codec.
fn has_later(table: Table, mut message: &[u8]) -> bool {
    let later: &[u32] = match table {
        Table::Homes => &[11],
        Table::Intents => &[8, 9],
        Table::NodeDrivers => &[6],
        Table::Nodes => &[3, 4, 5],
        Table::Secrets => &[3],
        _ => &[],
    };
    while let Ok((tag, wire_type)) = decode_key(&mut message) {
        if later.contains(&tag) {
            return true;
        }
        if skip_field(wire_type, tag, &mut message, DecodeContext::default()).is_err() {
            return false;
        }
    }
    false
}

/// A field that no record has.
fn unknown() -> impl Strategy<Value = Vec<u8>> {
    (100..200_u32, any::<u64>(), vec(any::<u8>(), 0..9), any::<bool>()).prop_map(
        |(tag, number, bytes, is_number)| {
            let mut field = Vec::new();
            if is_number {
                encode_key(tag, WireType::Varint, &mut field);
                encode_varint(number, &mut field);
            } else {
                encode_key(tag, WireType::LengthDelimited, &mut field);
                encode_varint(bytes.len() as u64, &mut field);
                field.extend(bytes);
            }
            field
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn records_have_the_bytes_of_the_old_codec(change in change()) {
        let new = codec::encode(&change);
        let old = old_codec::encode(&change);
        prop_assert_eq!((new.table, &new.key, &new.value), (old.table, &old.key, &old.value));
        let [new, old] = decoded(old.table, &old.key, old.value.as_deref());
        prop_assert_eq!(&new, &old);
        prop_assert_eq!(new, Ok(Some(change)));
    }

    #[test]
    fn absent_and_unknown_fields_mean_the_same_to_the_old_codec(
        change in change(),
        keeps in vec(any::<bool>(), 20),
        unknown in option::of(unknown()),
    ) {
        let old_codec::Row { table, key, value } = old_codec::encode(&change);
        if let Some(value) = value {
            let kept = fields(&value).into_iter().zip(keeps.iter().cycle());
            let kept = kept.filter_map(|(field, keeps)| keeps.then_some(field)).chain(unknown);
            let [new, old] = decoded(table, &key, Some(&kept.collect::<Vec<_>>().concat()));
            prop_assert_eq!(new.is_ok(), old.is_ok(), "{:?} {:?}", new, old);
            prop_assert_eq!(new.ok(), old.ok());
        }
    }

    #[test]
    fn the_old_codec_refuses_the_same_bytes(
        change in change(),
        bytes in vec(any::<u8>(), 0..40),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let old_codec::Row { table, key, value } = old_codec::encode(&change);
        let mut damaged = value.unwrap_or_default();
        if !damaged.is_empty() {
            let at = at.index(damaged.len());
            damaged[at] = byte;
        }
        for (key, value) in [(&key, &damaged), (&key, &bytes), (&bytes, &damaged)] {
            // What the old codec does not know, it takes for no error.
            for value in [Some(value).filter(|value| !has_later(table, value)), None] {
                let [new, old] = decoded(table, key, value.map(Vec::as_slice));
                prop_assert_eq!(new.is_ok(), old.is_ok(), "{:?} {:?}", new, old);
                prop_assert_eq!(new.ok(), old.ok());
            }
        }
    }
}

/// An intent of an older csi-cloud has no count: the driver may have got the create.
#[test]
fn an_absent_count_of_attempts_is_not_zero() {
    let name = Id::Volume("v".into());
    let intent = |attempts| {
        let node = "n1".parse().unwrap();
        let since = 1;
        let intent = Intent {
            node,
            since,
            until: 2,
            made: None,
            claim: None,
            attempts,
            direct: None,
            narrowed: None,
            machine: None,
        };
        Change::Intent("d".parse().unwrap(), name.clone(), Some(intent))
    };
    let uncounted = codec::encode(&intent(None));
    assert_eq!(uncounted.value.as_deref(), Some(b"\x0a\x02n1\x10\x01\x18\x02".as_slice()));
    assert_ne!(uncounted.value, codec::encode(&intent(Some(0))).value);
    let [new, _] = decoded(uncounted.table, &uncounted.key, uncounted.value.as_deref());
    assert_eq!(new, Ok(Some(intent(None))));
}

#[test]
fn what_intents_got_later_is_read_as_it_was_written() {
    let narrowed = |segments: &[(&str, &str)]| {
        let segments = segments.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        let intent = Intent {
            node: "n1".parse().unwrap(),
            since: 1,
            until: 2,
            made: None,
            claim: None,
            attempts: Some(1),
            direct: None,
            narrowed: Some(Box::new(segments.collect())),
            machine: Some(Box::new(MACHINE.parse().unwrap())),
        };
        Change::Intent("d".parse().unwrap(), Id::Volume("v".into()), Some(intent))
    };
    let one = codec::encode(&narrowed(&[("k", "v")]));
    let bytes = b"\x0a\x02n1\x10\x01\x18\x02\x30\x01\x42\x08\x0a\x06\x0a\x01k\x12\x01v";
    assert_eq!(one.value, Some([bytes, b"\x4a\x20".as_slice(), MACHINE.as_bytes()].concat()));
    for segments in [&[][..], &[("k", "v")], &[("a", "b"), ("k", "")]] {
        let change = narrowed(segments);
        let row = codec::encode(&change);
        let [new, _] = decoded(row.table, &row.key, row.value.as_deref());
        assert_eq!(new, Ok(Some(change)));
    }
}

#[test]
fn the_former_ids_of_a_node_are_read_as_they_were_written() {
    for ids in [&[][..], &["id-1"], &["a", "b"]] {
        let former_ids = ids.iter().map(|id| Box::from(*id)).collect();
        let at = NodeDriver { former_ids, ..NodeDriver::default() };
        let change = Change::NodeDriver("d".parse().unwrap(), "n1".parse().unwrap(), Some(at));
        let row = codec::encode(&change);
        let [new, _] = decoded(row.table, &row.key, row.value.as_deref());
        assert_eq!(new, Ok(Some(change)));
    }
}

#[test]
fn a_nodes_machine_is_read_as_it_was_written() {
    let of = |machine| {
        Change::Node("n1".parse().unwrap(), Some(Node { since: 1, machine, ..Node::default() }))
    };
    let row = codec::encode(&of(Some(MACHINE.parse().unwrap())));
    let bytes = [b"\x08\x01\x1a\x20", MACHINE.as_bytes()].concat();
    assert_eq!(row.value, Some(bytes));
    let [new, _] = decoded(row.table, &row.key, row.value.as_deref());
    assert_eq!(new, Ok(Some(of(Some(MACHINE.parse().unwrap())))));
    let [none, _] = decoded(row.table, &row.key, Some(b"\x08\x01"));
    assert_eq!(none, Ok(Some(of(None))), "an older csi-cloud wrote it");
    let [wrong, _] = decoded(row.table, &row.key, Some(b"\x08\x01\x1a\x01x"));
    assert!(wrong.is_err());
}

#[test]
fn a_nodes_issue_number_is_read_as_it_was_written() {
    let of = |issue| {
        Change::Node("n1".parse().unwrap(), Some(Node { since: 1, issue, ..Node::default() }))
    };
    let row = codec::encode(&of(Some(300)));
    assert_eq!(row.value.as_deref(), Some(&b"\x08\x01\x20\xac\x02"[..]));
    let [new, _] = decoded(row.table, &row.key, row.value.as_deref());
    assert_eq!(new, Ok(Some(of(Some(300)))));
    let [none, _] = decoded(row.table, &row.key, Some(b"\x08\x01"));
    assert_eq!(none, Ok(Some(of(None))), "an older csi-cloud wrote it");
}

#[test]
fn a_nodes_cordon_is_read_as_it_was_written() {
    let [first, second, third] = [(); 3].map(|()| Run::begin());
    let cordon = Cordon { alive: vec![first, second], refused: vec![third] };
    let cordoned = Node { since: 1, cordon: Some(Box::new(cordon)), ..Node::default() };
    let change = Change::Node("n1".parse().unwrap(), Some(cordoned));
    let row = codec::encode(&change);
    let [new, _] = decoded(row.table, &row.key, row.value.as_deref());
    assert_eq!(new, Ok(Some(change)));
    let [wrong, _] = decoded(row.table, &row.key, Some(b"\x08\x01\x2a\x03\x0a\x01x"));
    assert!(wrong.is_err());
}

/// A store has a million homes, each of which is in memory. The numbers are those of 0.2.0.
#[cfg(target_pointer_width = "64")]
#[test]
fn records_take_no_more_memory_than_in_0_2_0() {
    for (record, size, before) in [
        ("Home", size_of::<Home>(), 128),
        // Without what came later.
        ("Intent", size_of::<Intent>() - 2 * size_of::<Option<Box<u8>>>(), 72),
        ("Claim", size_of::<Claim>(), 48),
        ("NodeDriver", size_of::<NodeDriver>() - size_of::<Box<[Box<str>]>>(), 80),
        ("LeaseRecord", size_of::<LeaseRecord>(), 144),
        // The same, and what rounds it up.
        ("Node", size_of::<Node>() - 24 - size_of::<[u64; 3]>(), 24),
        ("Token", size_of::<Token>(), 120),
        ("Change", size_of::<Change>(), 192),
    ] {
        assert!(size <= before, "{record} takes {size} bytes in place of {before}");
    }
}
