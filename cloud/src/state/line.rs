//! Records as lines of JSON, for an export that people can read and other programs can make. The field names are
//! those of the records; bytes are base64.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proto::csi::{Id, Method};
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::state::record::{At, Change, Home, Intent, Node, Ownership};

/// How lines are written. It grows when a csi-cloud of today could misread them.
pub(super) const FORMAT: u64 = 1;

/// A line of an export: the first, the last, or a record.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Line {
    /// The first line: what this is, and its format.
    #[serde(rename = "csi-cloud store")]
    Begin { format: u64 },
    /// The last line, without which an export is not whole: how many records there are.
    End { records: u64 },
    /// A node.
    Node { name: NodeName, node: Node },
    /// A driver at a node.
    At { driver: DriverName, node: NodeName, at: At },
    /// The node that carries out the calls of a shared driver.
    Elected { driver: DriverName, node: NodeName },
    /// Where something lives.
    Home {
        driver: DriverName,
        #[serde(with = "id")]
        id: Id,
        home: Home,
    },
    /// To which node a create was sent.
    Intent {
        driver: DriverName,
        #[serde(with = "id")]
        id: Id,
        intent: Intent,
    },
    /// Whose a volume is that one guest owns.
    Owner {
        driver: DriverName,
        #[serde(with = "id")]
        id: Id,
        own: Ownership,
    },
    /// The epoch that was given last.
    Epoch { last: u64 },
}

/// A line that is no record.
pub(super) struct NoRecord;

impl TryFrom<Change> for Line {
    type Error = NoRecord;

    fn try_from(change: Change) -> Result<Self, NoRecord> {
        Ok(match change {
            Change::Home(driver, id, Some(home)) => Self::Home { driver, id, home },
            Change::Intent(driver, id, Some(intent)) => Self::Intent { driver, id, intent },
            Change::At(driver, node, Some(at)) => Self::At { driver, node, at },
            Change::Node(name, Some(node)) => Self::Node { name, node },
            Change::Elected(driver, Some(node)) => Self::Elected { driver, node },
            Change::Owner(driver, id, Some(own)) => Self::Owner { driver, id, own },
            Change::Epoch(last) => Self::Epoch { last },
            _ => return Err(NoRecord),
        })
    }
}

impl TryFrom<Line> for Change {
    type Error = NoRecord;

    fn try_from(line: Line) -> Result<Self, NoRecord> {
        Ok(match line {
            Line::Home { driver, id, home } => Self::Home(driver, id, Some(home)),
            Line::Intent { driver, id, intent } => Self::Intent(driver, id, Some(intent)),
            Line::At { driver, node, at } => Self::At(driver, node, Some(at)),
            Line::Node { name, node } => Self::Node(name, Some(node)),
            Line::Elected { driver, node } => Self::Elected(driver, Some(node)),
            Line::Owner { driver, id, own } => Self::Owner(driver, id, Some(own)),
            Line::Epoch { last } => Self::Epoch(last),
            Line::Begin { .. } | Line::End { .. } => return Err(NoRecord),
        })
    }
}

/// An id as JSON, for example `{"volume":"vol-1"}` or `{"name":["CreateVolume","pvc-1"]}`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Written {
    Volume(String),
    Snapshot(String),
    Group(String),
    Name(String, String),
}

impl From<&Id> for Written {
    fn from(id: &Id) -> Self {
        match id {
            Id::Volume(text) => Self::Volume(text.clone()),
            Id::Snapshot(text) => Self::Snapshot(text.clone()),
            Id::Group(text) => Self::Group(text.clone()),
            Id::Name(method, text) => Self::Name(method.name().into(), text.clone()),
        }
    }
}

impl TryFrom<Written> for Id {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        Ok(match written {
            Written::Volume(text) => Self::Volume(text),
            Written::Snapshot(text) => Self::Snapshot(text),
            Written::Group(text) => Self::Group(text),
            Written::Name(method, text) => {
                let known = Method::of_name(&method);
                Self::Name(known.ok_or_else(|| format!("there is no RPC {method:?}"))?, text)
            }
        })
    }
}

mod id {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(super) fn serialize<S: Serializer>(id: &Id, to: S) -> Result<S::Ok, S::Error> {
        Written::from(id).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Id, D::Error> {
        Written::deserialize(from)?.try_into().map_err(D::Error::custom)
    }
}

/// An id that may be missing.
pub(super) mod source {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    #[expect(clippy::ref_option, reason = "serde gives the field")]
    pub(crate) fn serialize<S: Serializer>(id: &Option<Box<Id>>, to: S) -> Result<S::Ok, S::Error> {
        id.as_deref().map(Written::from).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<Id>>, D::Error> {
        let written = Option::<Written>::deserialize(from)?;
        let id = written.map(Id::try_from).transpose().map_err(D::Error::custom)?;
        Ok(id.map(Box::new))
    }
}

/// Bytes.
pub(super) mod base64 {
    use ::base64::Engine;
    use ::base64::prelude::BASE64_STANDARD;
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = std::borrow::Cow::<'_, str>::deserialize(from)?;
        BASE64_STANDARD.decode(&*text).map(Into::into).map_err(D::Error::custom)
    }
}

#[derive(Serialize, Deserialize)]
struct Base64(#[serde(with = "base64")] Bytes);

/// Bytes that may be missing.
pub(super) mod answer {
    use serde::{Deserializer, Serializer};

    use super::*;

    #[expect(clippy::ref_option, reason = "serde gives the field")]
    pub(crate) fn serialize<S: Serializer>(bytes: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Base64).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<Base64>::deserialize(from)?.map(|bytes| bytes.0))
    }
}

/// Bytes by name.
pub(super) mod answers {
    use serde::{Deserializer, Serializer};

    use super::*;

    type Answers = Arc<BTreeMap<String, Bytes>>;

    pub(crate) fn serialize<S: Serializer>(answers: &Answers, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(answers.iter().map(|(name, bytes)| (name, Base64(bytes.clone()))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Answers, D::Error> {
        let answers = BTreeMap::<String, Base64>::deserialize(from)?;
        Ok(Arc::new(answers.into_iter().map(|(name, bytes)| (name, bytes.0)).collect()))
    }
}
