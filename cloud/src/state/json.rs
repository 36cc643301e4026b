//! Ids and bytes as JSON, for the lines of an export.
//!
//! The format never changes, because other programs read and write it. Bytes are base64.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proto::csi::{Id, Method};
use serde::{Deserialize, Serialize};

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

/// An id.
pub(super) mod id {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(id: &Id, to: S) -> Result<S::Ok, S::Error> {
        Written::from(id).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Id, D::Error> {
        Written::deserialize(from)?.try_into().map_err(D::Error::custom)
    }
}

/// An optional id.
pub(super) mod source {
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    #[expect(clippy::ref_option, reason = "serde gives the field")]
    pub(crate) fn serialize<S: Serializer>(id: &Option<Box<Id>>, to: S) -> Result<S::Ok, S::Error> {
        id.as_deref().map(Written::from).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Box<Id>>, D::Error> {
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

/// A key or hash of 32 bytes.
pub(super) mod digest {
    use ::base64::Engine;
    use ::base64::prelude::BASE64_STANDARD;
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8; 32], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
        let text = std::borrow::Cow::<'_, str>::deserialize(from)?;
        // The text may be a secret, so an error does not show it.
        let decoded = BASE64_STANDARD.decode(&*text).ok();
        let bytes = decoded.and_then(|decoded| decoded.try_into().ok());
        bytes.ok_or_else(|| D::Error::custom("a key or hash is 32 bytes in base64"))
    }
}

#[derive(Serialize, Deserialize)]
struct Base64(#[serde(with = "base64")] Bytes);

/// Optional bytes.
pub(super) mod answer {
    use serde::{Deserializer, Serializer};

    use super::*;

    #[expect(clippy::ref_option, reason = "serde gives the field")]
    pub(crate) fn serialize<S: Serializer>(
        bytes: &Option<Bytes>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Base64).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Bytes>, D::Error> {
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
