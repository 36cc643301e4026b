//! Ids and bytes as JSON, for the lines of an export: `#[serde(with = "json")]`.
//!
//! The format never changes, because other programs read and write it. Bytes are base64.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use proto::csi::{Id, Method};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A type with a JSON of its own in an export.
pub(super) trait Json: Sized {
    /// The JSON.
    type Written: Serialize + DeserializeOwned;

    /// Returns the JSON.
    fn write(&self) -> Self::Written;

    /// Reads the JSON.
    ///
    /// # Errors
    /// It is not such a value.
    fn read(written: Self::Written) -> Result<Self, String>;
}

pub(super) fn serialize<T: Json, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.write().serialize(to)
}

pub(super) fn deserialize<'de, T: Json, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::read(T::Written::deserialize(from)?).map_err(D::Error::custom)
}

/// An id as JSON, for example `{"volume":"vol-1"}` or `{"name":["CreateVolume","pvc-1"]}`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum WrittenId {
    Volume(String),
    Snapshot(String),
    Group(String),
    Name(String, String),
}

impl Json for Id {
    type Written = WrittenId;

    fn write(&self) -> WrittenId {
        match self {
            Self::Volume(text) => WrittenId::Volume(text.clone()),
            Self::Snapshot(text) => WrittenId::Snapshot(text.clone()),
            Self::Group(text) => WrittenId::Group(text.clone()),
            Self::Name(method, text) => WrittenId::Name(method.name().into(), text.clone()),
        }
    }

    fn read(written: WrittenId) -> Result<Self, String> {
        Ok(match written {
            WrittenId::Volume(text) => Self::Volume(text),
            WrittenId::Snapshot(text) => Self::Snapshot(text),
            WrittenId::Group(text) => Self::Group(text),
            WrittenId::Name(method, text) => {
                let known = Method::of_name(&method);
                Self::Name(known.ok_or_else(|| format!("there is no RPC {method:?}"))?, text)
            }
        })
    }
}

impl Json for Bytes {
    type Written = String;

    fn write(&self) -> String {
        BASE64_STANDARD.encode(self)
    }

    fn read(written: String) -> Result<Self, String> {
        BASE64_STANDARD.decode(written).map(Into::into).map_err(|error| error.to_string())
    }
}

/// A key or hash.
impl Json for [u8; 32] {
    type Written = String;

    fn write(&self) -> String {
        BASE64_STANDARD.encode(self)
    }

    fn read(written: String) -> Result<Self, String> {
        // The text may be a secret, so an error does not show it.
        let bytes = BASE64_STANDARD.decode(written).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| "a key or hash is 32 bytes in base64".into())
    }
}

impl<T: Json> Json for Option<T> {
    type Written = Option<T::Written>;

    fn write(&self) -> Self::Written {
        self.as_ref().map(T::write)
    }

    fn read(written: Self::Written) -> Result<Self, String> {
        written.map(T::read).transpose()
    }
}

impl<T: Json> Json for Box<T> {
    type Written = T::Written;

    fn write(&self) -> Self::Written {
        T::write(self)
    }

    fn read(written: Self::Written) -> Result<Self, String> {
        T::read(written).map(Self::new)
    }
}

/// Answers by RPC method.
impl Json for Arc<BTreeMap<String, Bytes>> {
    type Written = BTreeMap<String, String>;

    fn write(&self) -> Self::Written {
        self.iter().map(|(method, answer)| (method.clone(), answer.write())).collect()
    }

    fn read(written: Self::Written) -> Result<Self, String> {
        let answers =
            written.into_iter().map(|(method, answer)| Ok((method, Bytes::read(answer)?)));
        Ok(Self::new(answers.collect::<Result<_, String>>()?))
    }
}
