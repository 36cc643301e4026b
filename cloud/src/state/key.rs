//! The keys of records: the driver's name, NUL, and a node or an id.
//!
//! An id is its kind and its text, so that keys sort like ids. The number of a kind never changes.

use std::str::Utf8Error;

use proto::csi::{Id, Method};
use proto::names::{DriverName, NodeName};

const VOLUME: u8 = 1;
const SNAPSHOT: u8 = 2;
const GROUP: u8 = 3;
const NAME: u8 = 4;

/// The reason why bytes are no key.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    #[error("its key is none that a record there can have")]
    Key,
    #[error("its key holds text that is not UTF-8")]
    Text(#[from] Utf8Error),
    #[error("it is about a kind of thing, {0}, that this csi-cloud does not know")]
    Kind(u32),
    #[error("it is about an RPC, {0:?}, that this csi-cloud does not know")]
    Method(String),
}

/// The key of a driver at a node.
pub(super) fn of_node(driver: &DriverName, node: &NodeName) -> Vec<u8> {
    [driver.as_str().as_bytes(), &[0], node.as_str().as_bytes()].concat()
}

/// The key of a driver's id or name.
pub(super) fn of_id(driver: &DriverName, id: &Id) -> Vec<u8> {
    let (kind, method, text) = parts(id);
    let mut key = [driver.as_str().as_bytes(), &[0]].concat();
    key.push(kind);
    if let Some(method) = method {
        key.extend([method.as_bytes(), &[0]].concat());
    }
    key.extend_from_slice(text.as_bytes());
    key
}

/// The number of a kind follows the order of [`Id`].
pub(super) fn parts(id: &Id) -> (u8, Option<&'static str>, &str) {
    match id {
        Id::Volume(text) => (VOLUME, None, text),
        Id::Snapshot(text) => (SNAPSHOT, None, text),
        Id::Group(text) => (GROUP, None, text),
        Id::Name(method, text) => (NAME, Some(method.name()), text),
    }
}

/// The id of a kind; only a name has a method.
///
/// # Errors
/// The kind is not known, or the method of a name is not.
pub(super) fn id_of(kind: u32, method: &str, text: String) -> Result<Id, KeyError> {
    match u8::try_from(kind) {
        Ok(VOLUME) => Ok(Id::Volume(text)),
        Ok(SNAPSHOT) => Ok(Id::Snapshot(text)),
        Ok(GROUP) => Ok(Id::Group(text)),
        Ok(NAME) => {
            let method = Method::of_name(method).ok_or_else(|| KeyError::Method(method.into()))?;
            Ok(Id::Name(method, text))
        }
        _ => Err(KeyError::Kind(kind)),
    }
}

/// The driver's name at the start of a key, and the rest.
///
/// # Errors
/// There is no NUL, or what is before it is not UTF-8.
pub(super) fn split(key: &[u8]) -> Result<(&str, &[u8]), KeyError> {
    let mut parts = key.splitn(2, |byte| *byte == 0);
    let (Some(driver), Some(rest)) = (parts.next(), parts.next()) else {
        return Err(KeyError::Key);
    };
    Ok((text(driver)?, rest))
}

/// A key, or a part of one, as text.
///
/// # Errors
/// It is not UTF-8.
pub(super) fn text(key: &[u8]) -> Result<&str, KeyError> {
    Ok(std::str::from_utf8(key)?)
}

/// The id at the end of a key.
///
/// # Errors
/// It is empty or not UTF-8, a name has no method, or the kind or the method is not known.
pub(super) fn id(rest: &[u8]) -> Result<Id, KeyError> {
    let (kind, rest) = rest.split_first().ok_or(KeyError::Key)?;
    let text = text(rest)?;
    let (method, text) =
        if *kind == NAME { text.split_once('\0').ok_or(KeyError::Key)? } else { ("", text) };
    id_of((*kind).into(), method, text.to_owned())
}
