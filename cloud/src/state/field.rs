//! How a record is written: its struct names each field once, with its protobuf tag and kind.
//!
//! [`record!`] makes the struct with serde for exports, the stored protobuf message, and the
//! conversions both ways. A field's type says by [`Field`] how it is stored. Fields may be added; a
//! tag is never used again.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use proto::control::hello::{NotARun, Run};
use proto::control::machine::{MachineId, NotAMachineId};
use proto::csi::Id;
use proto::names::certificate::Serial;
use proto::names::{DriverName, IdentityError, NodeName};

use crate::state::key;
use crate::state::key::KeyError;

/// A struct of which each field has a tag and a kind of prost: `pub since: u64 = 7 (uint64),`.
///
/// The kind decides the bytes, so it never changes. `optional` keeps absent apart from zero.
macro_rules! record {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $(
                $(#[$field_attribute:meta])*
                pub $field:ident: $type:ty = $tag:tt ($($kind:tt)*),
            )*
        }
    ) => {
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        $(#[$attribute])*
        pub struct $name {
            $($(#[$field_attribute])* pub $field: $type,)*
        }

        const _: () = {
            use $crate::state::field::{Field, Names, RecordError};

            // A trait's associated type is as public as the trait, wherever it stands.
            #[allow(unreachable_pub, reason = "it stands in a block, so nobody can name it")]
            #[derive(prost::Message)]
            pub struct Stored {
                $(#[prost($($kind)*, tag = $tag)] $field: <$type as Field>::Stored,)*
            }

            impl Field for $name {
                type Stored = Stored;

                fn store(&self) -> Stored {
                    Stored { $($field: self.$field.store(),)* }
                }

                fn load(stored: Stored, names: &mut Names) -> Result<Self, RecordError> {
                    Ok(Self { $($field: Field::load(stored.$field, names)?,)* })
                }
            }
        };
    };
}
pub(super) use record;

/// A type that a record can have as a field.
pub(super) trait Field: Sized {
    /// The field of the protobuf message.
    type Stored;

    /// Returns the field as it is stored.
    fn store(&self) -> Self::Stored;

    /// Reads a stored field.
    ///
    /// # Errors
    /// The stored value is not one that the field can have.
    fn load(stored: Self::Stored, names: &mut Names) -> Result<Self, RecordError>;
}

/// The reason why bytes are not a record.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("it holds an invalid name")]
    Name(#[from] IdentityError),
    #[error("its value is not the protobuf message that it should be")]
    Value(#[from] prost::DecodeError),
    #[error("it holds an invalid id of a machine")]
    Machine(#[from] NotAMachineId),
    #[error("it holds an invalid run of csi-edge")]
    Run(#[from] NotARun),
    #[error("it holds an invalid serial number: {0:?}")]
    Serial(String),
    #[error("its {what} has {length} bytes and should have {expected}")]
    Length { what: &'static str, length: usize, expected: usize },
    #[error("a record of this kind cannot be removed")]
    Removed,
}

/// The names that were read so far. Equal names share one copy: a million homes are at thousands of
/// nodes.
#[derive(Default)]
pub(super) struct Names {
    drivers: HashMap<Box<str>, DriverName>,
    nodes: HashMap<Box<str>, NodeName>,
}

impl Names {
    pub(super) fn driver(&mut self, name: &str) -> Result<DriverName, IdentityError> {
        shared(&mut self.drivers, name)
    }

    pub(super) fn node(&mut self, name: &str) -> Result<NodeName, IdentityError> {
        shared(&mut self.nodes, name)
    }
}

fn shared<N>(known: &mut HashMap<Box<str>, N>, name: &str) -> Result<N, IdentityError>
where
    N: Clone + FromStr<Err = IdentityError>,
{
    if let Some(known) = known.get(name) {
        return Ok(known.clone());
    }
    let new: N = name.parse()?;
    known.insert(name.into(), new.clone());
    Ok(new)
}

/// Types that are stored as they are.
macro_rules! stored_as_they_are {
    ($($type:ty),*) => {$(
        impl Field for $type {
            type Stored = Self;

            fn store(&self) -> Self {
                Self::clone(self)
            }

            fn load(stored: Self, _: &mut Names) -> Result<Self, RecordError> {
                Ok(stored)
            }
        }
    )*};
}
stored_as_they_are!(u64, u32, bool, Bytes);

impl<T: Field> Field for Option<T> {
    type Stored = Option<T::Stored>;

    fn store(&self) -> Self::Stored {
        self.as_ref().map(T::store)
    }

    fn load(stored: Self::Stored, names: &mut Names) -> Result<Self, RecordError> {
        stored.map(|stored| T::load(stored, names)).transpose()
    }
}

impl<T: Field> Field for Box<T> {
    type Stored = T::Stored;

    fn store(&self) -> Self::Stored {
        T::store(self)
    }

    fn load(stored: Self::Stored, names: &mut Names) -> Result<Self, RecordError> {
        T::load(stored, names).map(Self::new)
    }
}

impl<T: Field> Field for Vec<T> {
    type Stored = Vec<T::Stored>;

    fn store(&self) -> Self::Stored {
        self.iter().map(T::store).collect()
    }

    fn load(stored: Self::Stored, names: &mut Names) -> Result<Self, RecordError> {
        // Not collected: the vector would keep the memory of `stored`, or more than it needs.
        let mut loaded = Self::with_capacity(stored.len());
        for one in stored {
            loaded.push(T::load(one, names)?);
        }
        Ok(loaded)
    }
}

impl<T: Field> Field for Box<[T]> {
    type Stored = Vec<T::Stored>;

    fn store(&self) -> Self::Stored {
        self.iter().map(T::store).collect()
    }

    fn load(stored: Self::Stored, names: &mut Names) -> Result<Self, RecordError> {
        Vec::<T>::load(stored, names).map(Vec::into_boxed_slice)
    }
}

impl Field for Box<str> {
    type Stored = String;

    fn store(&self) -> String {
        self.to_string()
    }

    fn load(stored: String, _: &mut Names) -> Result<Self, RecordError> {
        Ok(stored.into())
    }
}

impl Field for NodeName {
    type Stored = String;

    fn store(&self) -> String {
        self.to_string()
    }

    fn load(stored: String, names: &mut Names) -> Result<Self, RecordError> {
        Ok(names.node(&stored)?)
    }
}

/// Answers by RPC method.
impl Field for Arc<BTreeMap<String, Bytes>> {
    type Stored = BTreeMap<String, Bytes>;

    fn store(&self) -> Self::Stored {
        (**self).clone()
    }

    fn load(stored: Self::Stored, _: &mut Names) -> Result<Self, RecordError> {
        Ok(Self::new(stored))
    }
}

/// Parameters, in a message of their own, so that none is not the same as an empty map.
impl Field for BTreeMap<String, String> {
    type Stored = StoredParameters;

    fn store(&self) -> StoredParameters {
        StoredParameters { ours: self.clone() }
    }

    fn load(stored: StoredParameters, _: &mut Names) -> Result<Self, RecordError> {
        Ok(stored.ours)
    }
}

#[derive(Message)]
pub(super) struct StoredParameters {
    #[prost(btree_map = "string, string", tag = "1")]
    ours: BTreeMap<String, String>,
}

/// A topology segment.
impl Field for Arc<(String, String)> {
    type Stored = StoredSegment;

    fn store(&self) -> StoredSegment {
        StoredSegment { key: self.0.clone(), value: self.1.clone() }
    }

    fn load(stored: StoredSegment, _: &mut Names) -> Result<Self, RecordError> {
        Ok(Self::new((stored.key, stored.value)))
    }
}

#[derive(Message)]
pub(super) struct StoredSegment {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

impl Field for Id {
    type Stored = StoredId;

    fn store(&self) -> StoredId {
        let (kind, method, text) = key::parts(self);
        let method = method.unwrap_or_default().into();
        StoredId { kind: kind.into(), method, text: text.into() }
    }

    fn load(stored: StoredId, _: &mut Names) -> Result<Self, RecordError> {
        Ok(key::id_of(stored.kind, &stored.method, stored.text)?)
    }
}

#[derive(Message)]
pub(super) struct StoredId {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(string, tag = "3")]
    text: String,
}

/// A run of csi-edge.
impl Field for Run {
    type Stored = String;

    fn store(&self) -> String {
        self.to_string()
    }

    fn load(stored: String, _: &mut Names) -> Result<Self, RecordError> {
        Ok(stored.parse()?)
    }
}

/// The id of a machine, in hexadecimal.
impl Field for MachineId {
    type Stored = String;

    fn store(&self) -> String {
        self.to_string()
    }

    fn load(stored: String, _: &mut Names) -> Result<Self, RecordError> {
        Ok(stored.parse()?)
    }
}

/// A serial number, in hexadecimal.
impl Field for Serial {
    type Stored = String;

    fn store(&self) -> String {
        self.to_string()
    }

    fn load(stored: String, _: &mut Names) -> Result<Self, RecordError> {
        let bytes: Option<Vec<u8>> = stored.as_bytes().chunks(2).map(hexadecimal).collect();
        Ok(Self::of(&bytes.ok_or(RecordError::Serial(stored))?))
    }
}

fn hexadecimal(pair: &[u8]) -> Option<u8> {
    let [high, low] = pair else { return None };
    let value = char::from(*high).to_digit(16)? << 4 | char::from(*low).to_digit(16)?;
    u8::try_from(value).ok()
}

/// Bytes of a fixed length, such as a key or a hash.
pub(super) fn sized<const N: usize>(
    what: &'static str,
    bytes: &[u8],
) -> Result<[u8; N], RecordError> {
    let length = bytes.len();
    bytes.try_into().map_err(|_| RecordError::Length { what, length, expected: N })
}
