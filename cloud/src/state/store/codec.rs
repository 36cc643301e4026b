//! Changes as bytes: a table, a key and a value. All backends keep these, so that they keep the same.
//!
//! A key is the driver's name, NUL, and an id's kind and text, so that keys sort as ids do. A value is a protobuf
//! message: fields may be added, a number is never used again. What cannot be read is an error, never skipped.

use std::collections::HashMap;
use std::hash::Hash;
use std::str::{FromStr, Utf8Error};
use std::sync::Arc;

use prost::Message;
use proto::csi::{Id, Method};
use proto::names::{DriverName, IdentityError, NodeName};

use self::value::{
    AtValue, AttachedValue, BrokenValue, ElectedValue, EpochValue, HomeValue, IntentValue, NodeValue,
    OwnerValue, OwnershipValue,
};
use crate::state::record::{Attached, Broken, Change, Home, Intent, Node, Owner, Ownership};
use crate::state::store::backend::StoreError;

mod value;

/// A kind of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Table {
    Nodes,
    Elected,
    Homes,
    Intents,
    At,
    Owners,
    Epochs,
}

impl Table {
    /// In the order in which a store is loaded: a node is sorted in by its load once, after its volumes were counted.
    pub(super) const ALL: [Self; 7] =
        [Self::Nodes, Self::Elected, Self::Homes, Self::Intents, Self::At, Self::Owners, Self::Epochs];

    /// Whether stores of the format of now may be without it: those that a csi-cloud made which did not know it.
    pub(super) fn may_be_missing(self) -> bool {
        matches!(self, Self::Owners | Self::Epochs)
    }

    /// Its name in every backend and every export; it never changes.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Homes => "homes",
            Self::Intents => "intents",
            Self::At => "at",
            Self::Nodes => "nodes",
            Self::Elected => "elected",
            Self::Owners => "owners",
            Self::Epochs => "epochs",
        }
    }
}

/// A change as bytes; without a value the record is to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

/// Why bytes are no record.
#[derive(Debug, thiserror::Error)]
pub(super) enum CodecError {
    #[error("its key is none that a record there can have")]
    Key,
    #[error("its key holds text that is not UTF-8")]
    Text(#[from] Utf8Error),
    #[error("it is about a kind of thing, {0}, that this csi-cloud does not know")]
    Kind(u32),
    #[error("it is about an RPC, {0:?}, that this csi-cloud does not know")]
    Method(String),
    #[error("it holds a name that is none")]
    Name(#[from] IdentityError),
    #[error("its value is not the protobuf message that it should be")]
    Value(#[from] prost::DecodeError),
}

/// The kind of record that a change is of.
pub(super) fn table(change: &Change) -> Table {
    match change {
        Change::Home(..) => Table::Homes,
        Change::Intent(..) => Table::Intents,
        Change::At(..) => Table::At,
        Change::Node(..) => Table::Nodes,
        Change::Elected(..) => Table::Elected,
        Change::Owner(..) => Table::Owners,
        Change::Epoch(_) => Table::Epochs,
    }
}

/// Makes a change into bytes.
pub(super) fn encode(change: &Change) -> Row {
    let (key, value) = match change {
        Change::Home(driver, id, home) => {
            (id_key(driver, id), home.as_ref().map(|home| HomeValue::from(home).encode_to_vec()))
        }
        Change::Intent(driver, id, intent) => {
            (id_key(driver, id), intent.as_ref().map(|intent| IntentValue::from(intent).encode_to_vec()))
        }
        Change::At(driver, node, at) => {
            (key(driver, node.as_str()), at.as_ref().map(|at| AtValue::from(at).encode_to_vec()))
        }
        Change::Node(name, node) => {
            let value = node.as_ref().map(|node| NodeValue { since: node.since, removed: node.removed });
            (name.as_str().into(), value.map(|value| value.encode_to_vec()))
        }
        Change::Elected(driver, node) => {
            let value = node.as_ref().map(|node| ElectedValue { node: node.to_string() }.encode_to_vec());
            (driver.as_str().into(), value)
        }
        Change::Owner(driver, id, own) => {
            (id_key(driver, id), own.as_ref().map(|own| OwnershipValue::from(own).encode_to_vec()))
        }
        Change::Epoch(last) => (LAST.into(), Some(EpochValue { last: *last }.encode_to_vec())),
    };
    Row { table: table(change), key, value }
}

/// The one record of its table.
const LAST: &[u8] = b"last";

fn key(driver: &DriverName, rest: &str) -> Vec<u8> {
    [driver.as_str().as_bytes(), &[0], rest.as_bytes()].concat()
}

fn id_key(driver: &DriverName, id: &Id) -> Vec<u8> {
    let (kind, method, text) = parts(id);
    let mut key = key(driver, "");
    key.push(kind);
    if let Some(method) = method {
        key.extend([method.as_bytes(), &[0]].concat());
    }
    key.extend_from_slice(text.as_bytes());
    key
}

const VOLUME: u8 = 1;
const SNAPSHOT: u8 = 2;
const GROUP: u8 = 3;
const NAME: u8 = 4;

/// The kinds are numbered as [`Id`] sorts them.
fn parts(id: &Id) -> (u8, Option<&'static str>, &str) {
    match id {
        Id::Volume(text) => (VOLUME, None, text),
        Id::Snapshot(text) => (SNAPSHOT, None, text),
        Id::Group(text) => (GROUP, None, text),
        Id::Name(method, text) => (NAME, Some(method.name()), text),
    }
}

fn id(kind: u32, method: &str, text: String) -> Result<Id, CodecError> {
    match u8::try_from(kind) {
        Ok(VOLUME) => Ok(Id::Volume(text)),
        Ok(SNAPSHOT) => Ok(Id::Snapshot(text)),
        Ok(GROUP) => Ok(Id::Group(text)),
        Ok(NAME) => {
            let method = Method::of_name(method).ok_or_else(|| CodecError::Method(method.into()))?;
            Ok(Id::Name(method, text))
        }
        _ => Err(CodecError::Kind(kind)),
    }
}

/// Makes bytes into changes. Names that come again share their text: a million homes are at thousands of nodes.
#[derive(Default)]
pub(super) struct Decoder {
    drivers: HashMap<Box<str>, DriverName>,
    nodes: HashMap<Box<str>, NodeName>,
}

impl Decoder {
    /// The change that puts this record there.
    pub(super) fn decode(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<Change, StoreError> {
        self.change(table, key, value).map_err(|source| StoreError::Record {
            table: table.name(),
            key: key.escape_ascii().to_string(),
            source: Arc::new(source),
        })
    }

    fn change(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<Change, CodecError> {
        Ok(match table {
            Table::Homes => {
                let (driver, rest) = self.split(key)?;
                Change::Home(driver, id_of(rest)?, Some(self.home(HomeValue::decode(value)?)?))
            }
            Table::Intents => {
                let (driver, rest) = self.split(key)?;
                Change::Intent(driver, id_of(rest)?, Some(self.intent(IntentValue::decode(value)?)?))
            }
            Table::At => {
                let (driver, rest) = self.split(key)?;
                let node = self.node(std::str::from_utf8(rest)?)?;
                Change::At(driver, node, Some(AtValue::decode(value)?.into()))
            }
            Table::Nodes => {
                let NodeValue { since, removed } = NodeValue::decode(value)?;
                Change::Node(self.node(std::str::from_utf8(key)?)?, Some(Node { since, removed }))
            }
            Table::Elected => {
                let driver = named(&mut self.drivers, std::str::from_utf8(key)?)?;
                Change::Elected(driver, Some(self.node(&ElectedValue::decode(value)?.node)?))
            }
            Table::Owners => {
                let (driver, rest) = self.split(key)?;
                Change::Owner(driver, id_of(rest)?, Some(self.ownership(OwnershipValue::decode(value)?)?))
            }
            Table::Epochs if key == LAST => Change::Epoch(EpochValue::decode(value)?.last),
            Table::Epochs => return Err(CodecError::Key),
        })
    }

    fn split<'a>(&mut self, key: &'a [u8]) -> Result<(DriverName, &'a [u8]), CodecError> {
        let mut parts = key.splitn(2, |byte| *byte == 0);
        let (Some(driver), Some(rest)) = (parts.next(), parts.next()) else { return Err(CodecError::Key) };
        Ok((named(&mut self.drivers, std::str::from_utf8(driver)?)?, rest))
    }

    fn node(&mut self, name: &str) -> Result<NodeName, CodecError> {
        Ok(named(&mut self.nodes, name)?)
    }

    fn home(&mut self, value: HomeValue) -> Result<Home, CodecError> {
        let source = value.source.map(|source| id(source.kind, &source.method, source.text)).transpose()?;
        Ok(Home {
            node: self.node(&value.node)?,
            name: value.name.map(Into::into),
            entry: value.entry,
            claim: value.claim.map(|claim| Box::new(claim.into())),
            parameters: value.parameters.map(|parameters| Box::new(parameters.ours)),
            source: source.map(Box::new),
            since: value.since,
            absent: value.absent,
            lost: value.lost,
            rivals: value.rivals.iter().map(|node| self.node(node)).collect::<Result<_, _>>()?,
        })
    }

    fn ownership(&mut self, value: OwnershipValue) -> Result<Ownership, CodecError> {
        let mut own = Ownership::default();
        if let Some(OwnerValue { node, epoch, pod, since }) = value.owner {
            own.owner = Some(Owner { node: self.node(&node)?, epoch, pod: pod.into(), since });
        }
        if let Some(AttachedValue { node, id, since }) = value.attached {
            own.attached = Some(Attached { node: self.node(&node)?, id: id.into(), since });
        }
        for BrokenValue { node, epoch } in value.broken {
            own.broken.push(Broken { node: self.node(&node)?, epoch });
        }
        Ok(own)
    }

    fn intent(&mut self, value: IntentValue) -> Result<Intent, CodecError> {
        Ok(Intent {
            node: self.node(&value.node)?,
            since: value.since,
            until: value.until,
            made: value.made.map(Into::into),
            claim: value.claim.map(|claim| Box::new(claim.into())),
        })
    }
}

fn named<N>(known: &mut HashMap<Box<str>, N>, name: &str) -> Result<N, IdentityError>
where
    N: Clone + Hash + Eq + FromStr<Err = IdentityError>,
{
    if let Some(known) = known.get(name) {
        return Ok(known.clone());
    }
    let new: N = name.parse()?;
    known.insert(name.into(), new.clone());
    Ok(new)
}

/// The id at the end of a key.
fn id_of(rest: &[u8]) -> Result<Id, CodecError> {
    let (kind, rest) = rest.split_first().ok_or(CodecError::Key)?;
    let text = std::str::from_utf8(rest)?;
    let (method, text) =
        if *kind == NAME { text.split_once('\0').ok_or(CodecError::Key)? } else { ("", text) };
    id((*kind).into(), method, text.to_owned())
}
