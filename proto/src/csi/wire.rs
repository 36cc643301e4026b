//! Edits protobuf messages as bytes: adds or removes a field, and keeps all others, in their order.
//!
//! So unknown fields survive. A message inside a message is edited by an [`edit`] inside an
//! [`edit`]. Nothing here recurses on bytes from outside, and malformed bytes are an error.

use prost::DecodeError;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};

/// The reason why a message cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// It is not protobuf.
    #[error("a message cannot be edited, because it is no protobuf")]
    Bytes(#[from] DecodeError),
    /// A field is longer than its message.
    #[error("a message cannot be edited, because a field in it is longer than it")]
    TooLong,
    /// A group, which proto3 does not have.
    #[error(
        "a message cannot be edited, because field {0} of it is a group, which proto3 does not have"
    )]
    Group(u32),
    /// A string that is not UTF-8, which proto3 requires.
    #[error("a message cannot be read, because a text in it is not UTF-8")]
    Text(#[from] std::str::Utf8Error),
}

/// A field of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its number.
    pub number: u32,
    /// All of it: number, wire type, length, content.
    pub raw: &'a [u8],
    /// The content of a message, string, bytes or map entry; none for numbers.
    pub content: Option<&'a [u8]>,
}

/// An edit of a field.
pub enum Edit {
    /// It stays, byte for byte.
    Keep,
    /// It is removed.
    Drop,
    /// Its content is replaced.
    Replace(Vec<u8>),
}

impl From<Option<Vec<u8>>> for Edit {
    /// The result of editing a message inside; none means unchanged.
    fn from(edited: Option<Vec<u8>>) -> Self {
        edited.map_or(Self::Keep, Self::Replace)
    }
}

/// The fields of a message, in their order.
///
/// # Errors
/// An item may be one; it is the last then.
pub fn fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, Malformed>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        let read = (!rest.is_empty()).then(|| field(&mut rest))?;
        if read.is_err() {
            rest = &[];
        }
        Some(read)
    })
}

/// Takes the first field off the front.
fn field<'a>(rest: &mut &'a [u8]) -> Result<Field<'a>, Malformed> {
    let whole = *rest;
    let (number, wire_type) = decode_key(rest)?;
    let mut content = None;
    match wire_type {
        WireType::StartGroup | WireType::EndGroup => return Err(Malformed::Group(number)),
        WireType::LengthDelimited => {
            // A length beyond the address space is longer than the message.
            let length = usize::try_from(decode_varint(rest)?).map_err(|_| Malformed::TooLong)?;
            let (inside, after) = rest.split_at_checked(length).ok_or(Malformed::TooLong)?;
            content = Some(inside);
            *rest = after;
        }
        WireType::Varint | WireType::ThirtyTwoBit | WireType::SixtyFourBit => {
            skip_field(wire_type, number, rest, DecodeContext::default())?;
        }
    }
    // `rest` is a suffix of `whole`, so this prefix exists.
    let raw = whole.get(..whole.len() - rest.len()).ok_or(Malformed::TooLong)?;
    Ok(Field { number, raw, content })
}

/// Calls `each` with the content of every field that has one of these numbers, and returns the
/// edited message; none if nothing changed.
///
/// A singular message may be there more than once: protobuf merges them.
///
/// # Errors
/// The message is malformed, or `each` fails.
pub fn edit(
    message: &[u8],
    numbers: &[u32],
    mut each: impl FnMut(&[u8]) -> Result<Edit, Malformed>,
) -> Result<Option<Vec<u8>>, Malformed> {
    let mut edited = Vec::with_capacity(message.len());
    let mut changed = false;
    for field in fields(message) {
        let Field { number, raw, content } = field?;
        let content = content.filter(|_| numbers.contains(&number));
        let edit = content.map_or(Ok(Edit::Keep), &mut each)?;
        changed |= !matches!(edit, Edit::Keep);
        match edit {
            Edit::Keep => edited.extend_from_slice(raw),
            Edit::Drop => {}
            Edit::Replace(content) => append(&mut edited, &[number], &content),
        }
    }
    Ok(changed.then_some(edited))
}

/// Appends a field with this content.
///
/// `path` has the numbers (from 1 to 2^29 - 1) of the messages around the field, the outermost
/// first, and then its own. Protobuf merges: a repeated field gets one more element, a map one more
/// entry, a message the fields inside.
pub fn append(message: &mut Vec<u8>, path: &[u32], content: &[u8]) {
    let Some((number, below)) = path.split_first() else {
        return message.extend_from_slice(content);
    };
    let mut inside = Vec::new();
    append(&mut inside, below, content);
    encode_key(*number, WireType::LengthDelimited, message);
    encode_varint(inside.len() as u64, message);
    message.append(&mut inside);
}

/// An entry of a `map<string, string>`.
pub fn entry(key: &str, value: &str) -> Vec<u8> {
    let mut entry = Vec::with_capacity(key.len() + value.len() + 8);
    append(&mut entry, &[1], key.as_bytes());
    append(&mut entry, &[2], value.as_bytes());
    entry
}

/// Key and value of an entry of a `map<string, string>`.
///
/// # Errors
/// It is malformed, or not text.
pub fn read_entry(entry: &[u8]) -> Result<(&str, &str), Malformed> {
    let mut key: &[u8] = &[];
    let mut value: &[u8] = &[];
    for field in fields(entry) {
        // Protobuf: the last of several singular fields counts.
        match field? {
            Field { number: 1, content: Some(text), .. } => key = text,
            Field { number: 2, content: Some(text), .. } => value = text,
            _ => {}
        }
    }
    Ok((std::str::from_utf8(key)?, std::str::from_utf8(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::types as csi;
    use proptest::prelude::*;
    use prost::Message;
    use prost::encoding::encode_varint;

    /// Unknown fields of every wire type.
    fn unknown() -> impl Strategy<Value = Vec<u8>> {
        let field =
            (100..20_000u32, any::<u64>(), proptest::collection::vec(any::<u8>(), 0..200), 0..4u8);
        let encode = |(number, value, bytes, kind): (u32, u64, Vec<u8>, u8)| {
            let mut field = Vec::new();
            match kind {
                0 => append(&mut field, &[number], &bytes),
                1 => {
                    encode_key(number, WireType::Varint, &mut field);
                    encode_varint(value, &mut field);
                }
                2 => {
                    encode_key(number, WireType::SixtyFourBit, &mut field);
                    field.extend(value.to_le_bytes());
                }
                _ => {
                    encode_key(number, WireType::ThirtyTwoBit, &mut field);
                    field.extend([7; 4]);
                }
            }
            field
        };
        proptest::collection::vec(field.prop_map(encode), 0..4).prop_map(|fields| fields.concat())
    }

    fn requests() -> impl Strategy<Value = Vec<u8>> {
        let map = || proptest::collection::hash_map(".{0,20}", ".{0,300}", 0..4);
        let topologies = proptest::collection::vec(map(), 0..3);
        (".{0,9}", map(), map(), topologies, any::<Option<i64>>(), unknown()).prop_map(
            |(name, parameters, secrets, topologies, limit, unknown)| {
                let preferred =
                    topologies.into_iter().map(|segments| csi::Topology { segments }).collect();
                let requirement = csi::TopologyRequirement { preferred, ..Default::default() };
                let request = csi::CreateVolumeRequest {
                    name,
                    parameters,
                    secrets,
                    capacity_range: limit.map(|limit_bytes| csi::CapacityRange {
                        limit_bytes,
                        ..Default::default()
                    }),
                    accessibility_requirements: Some(requirement),
                    ..Default::default()
                };
                [unknown.clone(), request.encode_to_vec(), unknown].concat()
            },
        )
    }

    const REQUIREMENT: u32 = 7;

    /// The same message with all strings, maps and messages replaced by themselves, the requirement
    /// from the inside.
    fn rewritten(message: &[u8]) -> Vec<u8> {
        fn same(content: &[u8]) -> Result<Edit, Malformed> {
            Ok(Edit::Replace(content.to_vec()))
        }
        let topology = |content: &[u8]| edit(content, &[1], same).map(Edit::from);
        let requirement = |content: &[u8]| edit(content, &[2], topology).map(Edit::from);
        let message = edit(message, &[1, 2, 3, 4, 5, 6, 8], same)
            .unwrap()
            .unwrap_or_else(|| message.to_vec());
        edit(&message, &[REQUIREMENT], requirement).unwrap().unwrap_or(message)
    }

    proptest! {
        #[test]
        fn a_field_that_is_kept_or_replaced_by_itself_is_the_same(message in requests()) {
            prop_assert_eq!(edit(&message, &[4, REQUIREMENT], |_| Ok(Edit::Keep)).unwrap(), None);
            prop_assert_eq!(&rewritten(&message), &message);
        }

        #[test]
        fn dropping_removes_that_field_only(message in requests()) {
            let without = edit(&message, &[5], |_| Ok(Edit::Drop)).unwrap();
            let without = without.unwrap_or_else(|| message.clone());
            let kept: Vec<u8> = fields(&message)
                .map(Result::unwrap)
                .filter(|field| field.number != 5)
                .flat_map(|field| field.raw.to_vec())
                .collect();
            prop_assert_eq!(&without, &kept);
            let mut expected = csi::CreateVolumeRequest::decode(&*message).unwrap();
            expected.secrets.clear();
            prop_assert!(csi::CreateVolumeRequest::decode(&*without).unwrap() == expected);
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let read: Result<Vec<_>, _> = fields(&bytes).collect();
            let _ = read_entry(&bytes);
            // prost decides: the empty message skips every field.
            let good = <() as Message>::decode(&*bytes).is_ok();
            match read {
                Ok(read) => {
                    prop_assert!(good);
                    let raw: Vec<_> = read.iter().flat_map(|field| field.raw.to_vec()).collect();
                    prop_assert_eq!(raw, bytes);
                }
                Err(Malformed::Group(_)) => {}
                Err(_) => prop_assert!(!good),
            }
        }

        #[test]
        fn a_map_entry_is_read_as_it_was_written(key in ".*", value in ".*") {
            let entry = entry(&key, &value);
            prop_assert_eq!(read_entry(&entry).unwrap(), (&*key, &*value));
        }
    }

    #[test]
    fn an_appended_field_is_merged() {
        let volume = csi::Volume { volume_id: "v".into(), ..Default::default() };
        let mut message = csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec();
        append(&mut message, &[1, 5, 1], &entry("zone", "a"));
        let volume = csi::CreateVolumeResponse::decode(&*message).unwrap().volume.unwrap();
        assert_eq!(volume.volume_id, "v");
        assert_eq!(volume.accessible_topology.len(), 1);
        assert_eq!(volume.accessible_topology[0].segments["zone"], "a");
    }

    #[test]
    fn groups_and_truncated_or_too_long_fields_are_errors() {
        let first = |bytes: &[u8]| fields(bytes).next().unwrap().err();
        assert!(matches!(first(&[0x0b, 0x0c]), Some(Malformed::Group(1))));
        assert!(matches!(first(&[0x0a, 2, 0]), Some(Malformed::TooLong)));
        let longest = [[0x0a].as_slice(), &[0xff; 9], &[1]].concat();
        assert!(matches!(first(&longest), Some(Malformed::TooLong)));
        assert!(matches!(first(&[0x0a, 0xff]), Some(Malformed::Bytes(_))));
        assert!(matches!(
            first(&[[0x08].as_slice(), &[0xff; 11]].concat()),
            Some(Malformed::Bytes(_))
        ));
        assert!(matches!(first(&[0x0d, 1, 2, 3]), Some(Malformed::Bytes(_))));
        assert!(matches!(read_entry(&[0x0a, 1, 0xff]), Err(Malformed::Text(_))));
        assert_eq!(fields(&[0x0b, 0x0b]).count(), 1);
    }
}
