//! The subject of a call, read once from its request. Routing needs nothing else.
//!
//! Bytes from outside become a key or an error, never a panic.

use std::collections::BTreeMap;

use prost::{DecodeError, Message};

use super::column::Resource;
use super::method::Method;
use super::table::table;
use super::types;

/// An id. Each variant is a name space of its own; the first three have a home node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    /// A volume's id.
    Volume(String),
    /// A snapshot's id.
    Snapshot(String),
    /// A volume group snapshot's id.
    Group(String),
    /// The name under which a method makes something, its idempotency key.
    Name(Method, String),
}

impl Id {
    /// The id or name itself.
    pub fn text(&self) -> &str {
        match self {
            Self::Volume(text) | Self::Snapshot(text) | Self::Group(text) | Self::Name(_, text) => {
                text
            }
        }
    }

    /// The kind in a word, as operators read and write it; for a name, its method.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Volume(_) => "volume",
            Self::Snapshot(_) => "snapshot",
            Self::Group(_) => "group",
            Self::Name(method, _) => method.name(),
        }
    }

    /// The kind of the resource; for a name, the kind that its method creates.
    pub fn kind(&self) -> Option<Resource> {
        match self {
            Self::Volume(_) => Some(Resource::Volume),
            Self::Snapshot(_) => Some(Resource::Snapshot),
            Self::Group(_) => Some(Resource::Group),
            Self::Name(method, _) => method.creates(),
        }
    }
}

impl Resource {
    /// The id with this text.
    pub fn id(self, text: String) -> Id {
        match self {
            Self::Volume => Id::Volume(text),
            Self::Snapshot => Id::Snapshot(text),
            Self::Group => Id::Group(text),
        }
    }
}

/// A topology: its segments by key. Sorted, so that equal topologies compare as equal.
pub type Segments = BTreeMap<String, String>;

/// The subject of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// Answered by the front itself, from the store.
    Local,
    /// Makes a volume: near its source if it has one, else where the topology says.
    Create {
        /// The volume's name, the idempotency key of CreateVolume.
        name: String,
        /// The snapshot or volume whose content it takes.
        source: Option<Id>,
        /// Segments in the caller's order of preference: `preferred`, then `requisite`.
        topology: Vec<Segments>,
        /// True if it must be at one of them. CSI: only `requisite` ones bind.
        required: bool,
    },
    /// A call on something that exists.
    Home(Id),
    /// Deletes or detaches something. CSI: a driver without the thing answers OK, so the node must
    /// not be guessed.
    Delete(Id),
    /// Makes a snapshot of these volumes, which must share one home.
    Snapshot {
        /// The snapshot's name.
        name: String,
        /// The volumes that it is taken of.
        volumes: Vec<Id>,
    },
    /// A list over all nodes.
    All,
    /// The capacity at a topology, or everywhere.
    Capacity(Option<Segments>),
    /// A node call, and its volume.
    Node(Option<Id>),
}

impl Key {
    /// Whether csi-cloud routes the call to a node. It answers some itself, and some belong to a
    /// node's own front.
    pub fn is_routed(&self) -> bool {
        match self {
            Self::Local | Self::Node(_) => false,
            Self::Create { .. }
            | Self::Home(_)
            | Self::Delete(_)
            | Self::Snapshot { .. }
            | Self::All
            | Self::Capacity(_) => true,
        }
    }

    /// The field without which the call is about nothing. CSI: "This field is REQUIRED."
    pub fn missing(&self) -> Option<&'static str> {
        match self {
            Self::Create { name, .. } | Self::Snapshot { name, .. } if name.is_empty() => {
                Some("a name")
            }
            Self::Snapshot { volumes, .. } => {
                let lacks = volumes.is_empty() || volumes.iter().any(|id| id.text().is_empty());
                lacks.then_some("the source volume's id")
            }
            Self::Home(id) | Self::Delete(id) => id.text().is_empty().then_some("an id"),
            Self::Create { .. } | Self::Local | Self::All | Self::Capacity(_) | Self::Node(_) => {
                None
            }
        }
    }
}

impl Method {
    /// Reads the subject of the call from its (unframed) request message.
    ///
    /// # Errors
    /// The message is not the protobuf that this RPC takes.
    pub fn key(self, message: &[u8]) -> Result<Key, DecodeError> {
        (READERS[self as usize].key)(message)
    }

    /// True if two (unframed) requests ask for the same.
    ///
    /// Callers write the entries of a map in any order, so bytes that differ can ask for the same.
    /// Requests with unknown fields are the same only byte for byte.
    pub fn same(self, one: &[u8], other: &[u8]) -> bool {
        let same = READERS[self as usize].same;
        one == other || (one.len() == other.len() && same(one, other))
    }

    /// The ids that a call is about.
    ///
    /// Empty for lists, streams, and keys that are not valid yet. What keeps calls apart is
    /// [`Method::locks`].
    pub fn about(self, key: &Key) -> Vec<Id> {
        let mut about = match key {
            Key::Home(_) | Key::Delete(_) if self.bulk() => Vec::new(),
            Key::Home(id) | Key::Delete(id) | Key::Node(Some(id)) => vec![id.clone()],
            Key::Create { name, .. } => vec![Id::Name(self, name.clone())],
            Key::Snapshot { name, volumes } => {
                [&[Id::Name(self, name.clone())], volumes.as_slice()].concat()
            }
            Key::Local | Key::Node(None) | Key::All | Key::Capacity(_) => Vec::new(),
        };
        about.retain(|id| !id.text().is_empty());
        about
    }
}

/// Reads the requests of one RPC.
struct Reader {
    key: fn(&[u8]) -> Result<Key, DecodeError>,
    same: fn(&[u8], &[u8]) -> bool,
}

macro_rules! readers {
    ($($service:ident/$method:ident($($request:tt)*) => $key:expr
        $(, learn $learn:expr)? $(, { $($column:tt)* })?;)*) => {
        /// In the order of the enum's variants.
        static READERS: [Reader; Method::ALL.len()] = [$(Reader {
            key: readers!(@key ($($request)*) $key),
            same: readers!(@same ($($request)*)),
        }),*];
    };
    (@key (_) $key:expr) => { |_| Ok($key) };
    (@key ($r:ident: $request:ident) $key:expr) => { |message| {
        let $r = types::$request::decode(message)?;
        Ok($key)
    } };
    (@key ($r:ident: $request:ident as $part:ident) $key:expr) => { |message| {
        let $r = $part::decode(message)?;
        Ok($key)
    } };
    (@same (_)) => { |_, _| false };
    (@same ($r:ident: $request:ident $(as $part:ident)?)) => { same::<types::$request> };
}
table!(readers);

fn same<M: Message + Default + PartialEq>(one: &[u8], other: &[u8]) -> bool {
    // A message that encodes to the length that it came with holds no unknown fields.
    let read =
        |bytes: &[u8]| M::decode(bytes).ok().filter(|message| message.encoded_len() == bytes.len());
    read(one).is_some_and(|one| read(other) == Some(one))
}

/// The part of a CreateVolumeRequest that decides its key.
///
/// To read its maps and secrets too costs several times as much.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct Created {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "6")]
    volume_content_source: Option<types::VolumeContentSource>,
    #[prost(message, optional, tag = "7")]
    accessibility_requirements: Option<Requirement>,
}

/// A `TopologyRequirement`.
#[derive(Clone, PartialEq, Message)]
struct Requirement {
    #[prost(message, repeated, tag = "1")]
    requisite: Vec<Place>,
    #[prost(message, repeated, tag = "2")]
    preferred: Vec<Place>,
}

/// A `Topology`, sorted.
#[derive(Clone, PartialEq, Message)]
struct Place {
    #[prost(btree_map = "string, string", tag = "1")]
    segments: Segments,
}

/// The part of a request about a volume that says which: in most of them it has this number.
#[derive(Clone, PartialEq, Eq, Message)]
struct OfVolume {
    #[prost(string, tag = "1")]
    volume_id: String,
}

fn create(request: Created) -> Key {
    let source = request.volume_content_source.and_then(content_of);
    // CSI: preferred is a list in the caller's order; the volume MUST be accessible from requisite.
    let requirement = request.accessibility_requirements.unwrap_or_default();
    let required = !requirement.requisite.is_empty();
    let topologies = requirement.preferred.into_iter().chain(requirement.requisite);
    let topology = topologies.map(|place| place.segments).collect();
    Key::Create { name: request.name, source, topology, required }
}

/// The snapshot or volume whose content a volume takes.
pub(super) fn content_of(source: types::VolumeContentSource) -> Option<Id> {
    use types::volume_content_source::Type;
    Some(match source.r#type? {
        Type::Snapshot(snapshot) => Id::Snapshot(snapshot.snapshot_id),
        Type::Volume(volume) => Id::Volume(volume.volume_id),
    })
}

fn segments(topology: types::Topology) -> Segments {
    topology.segments.into_iter().collect()
}

fn snapshot(name: String, volumes: impl IntoIterator<Item = String>) -> Key {
    Key::Snapshot { name, volumes: volumes.into_iter().map(Id::Volume).collect() }
}

fn listed_snapshots(request: types::ListSnapshotsRequest) -> Key {
    if !request.snapshot_id.is_empty() {
        Key::Home(Id::Snapshot(request.snapshot_id))
    } else if !request.source_volume_id.is_empty() {
        Key::Home(Id::Volume(request.source_volume_id))
    } else {
        Key::All
    }
}

fn on_node(volume: String) -> Key {
    Key::Node(Some(Id::Volume(volume)))
}
