//! The table of all CSI RPCs: one row says what a call is about and what its answer teaches.
//!
//! A renamed field breaks the build; a missing or doubled row breaks a test over the descriptor set.
//! Everything that treats one RPC otherwise than another asks this table.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::{DecodeError, Message};

use crate::csi;

/// The services of a CSI driver, as they stand in a request's path.
pub const SERVICES: [&str; 5] = [
    "csi.v1.Identity",
    "csi.v1.Controller",
    "csi.v1.GroupController",
    "csi.v1.SnapshotMetadata",
    "csi.v1.Node",
];

/// What a call is about. Each kind is a name space of its own; the first three have a home.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    /// A volume's id.
    Volume(String),
    /// A snapshot's id.
    Snapshot(String),
    /// A volume group snapshot's id.
    Group(String),
    /// The name under which a method makes something, its idempotency key.
    Name(&'static str, String),
}

/// A topology: its segments by key. Kept sorted, so that two that are the same are equal.
pub type Segments = BTreeMap<String, String>;

/// What a call is about, taken from its request: all that routing needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// Answered by the front itself, from what it has learned.
    Local,
    /// A volume is to be made: near its source if it has one, else where the topology says.
    Place {
        /// The volume's name, the idempotency key of CreateVolume.
        name: String,
        /// The snapshot or volume whose content it takes.
        source: Option<Id>,
        /// Segments in the caller's order of preference: `preferred`, then `requisite`.
        topology: Vec<Segments>,
    },
    /// A call on something that exists.
    Home(Id),
    /// A call that ends something. CSI: where that thing is not, the answer is OK, so it must not go to a
    /// node on a guess.
    End(Id),
    /// A snapshot is to be cut of these volumes, which must share one home.
    Cut {
        /// The snapshot's name.
        name: String,
        /// What it is cut of.
        volumes: Vec<Id>,
    },
    /// A list over all nodes.
    All,
    /// The capacity at a topology, or everywhere.
    Capacity(Option<Segments>),
    /// A call that only makes sense on a node, and the volume that it is about.
    Node(Option<Id>),
}

/// What an answer of OK teaches.
#[derive(Clone, Copy)]
pub enum Learn {
    /// Nothing.
    Nothing,
    /// The answer tells of what was made; it lives on the node that answered.
    Made(fn(&Bytes) -> Result<Vec<Made>, DecodeError>),
    /// What the request named is gone.
    Gone,
    /// The volume is attached to the node with the id that the request holds.
    Attached(fn(&[u8]) -> Result<String, DecodeError>),
    /// It no longer is; without an id to no node at all.
    Detached(fn(&[u8]) -> Result<String, DecodeError>),
    /// The volume has the size that the answer holds, in bytes.
    Resized(fn(&[u8]) -> Result<i64, DecodeError>),
}

/// Something that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its id; the driver may have left it empty, which CSI forbids.
    pub id: Id,
    /// Its entry as a list has it: `ListVolumesResponse.Entry`, `ListSnapshotsResponse.Entry`, or for a group
    /// `CreateVolumeGroupSnapshotResponse`.
    pub entry: Bytes,
    /// What it is a snapshot of, or has its content from.
    pub source: Option<Id>,
}

/// One row of the table.
pub struct Rpc {
    /// For example `CreateVolume`; unique over all services.
    pub method: &'static str,
    /// For example `/csi.v1.Controller/CreateVolume`.
    pub path: &'static str,
    /// The answer is a stream of messages; such a call changes nothing and travels as bulk.
    pub streaming: bool,
    /// What an answer of OK teaches.
    pub learn: Learn,
    peek: fn(&[u8]) -> Result<Key, DecodeError>,
    same: fn(&[u8], &[u8]) -> bool,
}

impl Rpc {
    /// Reads what the call is about from its (unframed) request message.
    ///
    /// # Errors
    /// The message is not the protobuf that this RPC takes.
    pub fn key(&self, message: &[u8]) -> Result<Key, DecodeError> {
        (self.peek)(message)
    }

    /// The field without which the call is about nothing. CSI: "This field is REQUIRED."
    pub fn missing(&self, key: &Key) -> Option<&'static str> {
        let empty = |id: &Id| matches!(id, Volume(id) | Snapshot(id) | Group(id) if id.is_empty());
        match key {
            Key::Place { name, .. } | Key::Cut { name, .. } if name.is_empty() => Some("a name"),
            Key::Cut { volumes, .. } if volumes.is_empty() || volumes.iter().any(empty) => {
                Some("the source volume's id")
            }
            Home(id) | End(id) if empty(id) => Some("an id"),
            _ => None,
        }
    }

    /// The field without which an (unframed) request is wrong whatever it is about: where no driver is asked, because
    /// none has the volume, the caller is to hear of this first. CSI: "This field is REQUIRED."
    pub fn incomplete(&self, request: &Bytes) -> Option<&'static str> {
        let request = request.clone();
        match self.method {
            "ControllerPublishVolume" => {
                let request = csi::ControllerPublishVolumeRequest::decode(request).ok()?;
                let capability = request.volume_capability.is_none().then_some("a volume capability");
                if request.node_id.is_empty() { Some("a node's id") } else { capability }
            }
            "ValidateVolumeCapabilities" => {
                let request = csi::ValidateVolumeCapabilitiesRequest::decode(request).ok()?;
                request.volume_capabilities.is_empty().then_some("a volume capability")
            }
            "ControllerExpandVolume" => {
                let request = csi::ControllerExpandVolumeRequest::decode(request).ok()?;
                request.capacity_range.is_none().then_some("a capacity range")
            }
            _ => None,
        }
    }

    /// What nothing else may be done with while the call runs. CSI: the CO should have no more than one call in
    /// flight per volume. None for lists, streams, and what is not yet valid.
    pub fn subjects(&self, key: &Key) -> Vec<Id> {
        let mut subjects = match key {
            Home(_) | End(_) if self.bulk() => Vec::new(),
            Home(id) | End(id) | Node(Some(id)) => vec![id.clone()],
            Key::Place { name, .. } => vec![Name(self.method, name.clone())],
            Key::Cut { name, volumes } => [&[Name(self.method, name.clone())], volumes.as_slice()].concat(),
            Local | Node(None) | All | Key::Capacity(_) => Vec::new(),
        };
        subjects.retain(|id| {
            let (Volume(text) | Snapshot(text) | Group(text) | Name(_, text)) = id;
            !text.is_empty()
        });
        subjects
    }

    /// Whether this takes a volume from a node, which is done by itself when the node is gone for good.
    pub fn detaches(&self) -> bool {
        matches!(self.learn, Detached(_))
    }

    /// Whether two (unframed) requests ask for the same. Callers write the entries of a map in any order, so
    /// bytes that differ can; requests with fields that are not ours to know are the same only byte for byte.
    pub fn same(&self, one: &[u8], other: &[u8]) -> bool {
        one == other || (one.len() == other.len() && (self.same)(one, other))
    }

    /// Answers of this call may be large, so it travels beside the small calls, not among them.
    pub fn bulk(&self) -> bool {
        self.streaming
            || matches!(self.method, "ListVolumes" | "ListSnapshots" | "ControllerListVolumeHealth")
    }
}

/// The row for a request path.
pub fn find(path: &str) -> Option<&'static Rpc> {
    RPCS.iter().find(|rpc| rpc.path == path)
}

/// Whether the path names a method, known or not, of a service that a CSI driver has.
pub fn of_driver(path: &str) -> bool {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return false;
    };
    SERVICES.contains(&service) && !method.is_empty() && method.bytes().all(|b| b.is_ascii_alphanumeric())
}

macro_rules! rpcs {
    ($($service:ident/$method:ident($($request:tt)*) => $key:expr $(=> $learn:expr)? $(, $stream:ident)?;)*) => {
        /// Every RPC of CSI 1.13.0.
        pub static RPCS: &[Rpc] = &[$(Rpc {
            method: stringify!($method),
            path: concat!("/csi.v1.", stringify!($service), "/", stringify!($method)),
            streaming: rpcs!(@stream $($stream)?),
            learn: rpcs!(@learn $($learn)?),
            peek: rpcs!(@peek ($($request)*) $key),
            same: rpcs!(@same ($($request)*)),
        }),*];
    };
    (@stream stream) => { true };
    (@stream) => { false };
    (@learn $learn:expr) => { $learn };
    (@learn) => { Learn::Nothing };
    (@peek (_) $key:expr) => { |_| Ok($key) };
    (@peek ($r:ident: $request:ident) $key:expr) => { |message| {
        let $r = csi::$request::decode(message)?;
        Ok($key)
    } };
    (@same (_)) => { |_, _| false };
    (@same ($r:ident: $request:ident)) => { same::<csi::$request> };
}

fn same<M: Message + Default + PartialEq>(one: &[u8], other: &[u8]) -> bool {
    // What encodes to the length that it had holds nothing that was not understood.
    let read = |bytes: &[u8]| M::decode(bytes).ok().filter(|message| message.encoded_len() == bytes.len());
    read(one).is_some_and(|one| read(other) == Some(one))
}

use Id::{Group, Name, Snapshot, Volume};
use Key::{All, End, Home, Local, Node};
use Learn::{Attached, Detached, Gone, Resized};

rpcs! {
    Identity/GetPluginInfo(_)         => Local;
    Identity/GetPluginCapabilities(_) => Local;
    Identity/Probe(_)                 => Local;

    Controller/CreateVolume(r: CreateVolumeRequest)                 => place(r) => Learn::Made(created_volume);
    Controller/DeleteVolume(r: DeleteVolumeRequest)                 => End(Volume(r.volume_id)) => Gone;
    Controller/ControllerPublishVolume(r: ControllerPublishVolumeRequest)     => Home(Volume(r.volume_id)) => Attached(attached_to);
    Controller/ControllerUnpublishVolume(r: ControllerUnpublishVolumeRequest) => End(Volume(r.volume_id)) => Detached(detached_from);
    Controller/ValidateVolumeCapabilities(r: ValidateVolumeCapabilitiesRequest) => Home(Volume(r.volume_id));
    Controller/ListVolumes(_)                                       => All;
    Controller/ControllerListVolumeHealth(_)                        => All;
    Controller/ControllerGetVolumeHealth(r: ControllerGetVolumeHealthRequest) => Home(Volume(r.volume_id));
    Controller/GetCapacity(r: GetCapacityRequest)                   => Key::Capacity(r.accessible_topology.map(segments));
    Controller/ControllerGetCapabilities(_)                         => Local;
    Controller/CreateSnapshot(r: CreateSnapshotRequest)             => cut(r.name, [r.source_volume_id]) => Learn::Made(created_snapshot);
    Controller/DeleteSnapshot(r: DeleteSnapshotRequest)             => End(Snapshot(r.snapshot_id)) => Gone;
    Controller/ListSnapshots(r: ListSnapshotsRequest)               => listed_snapshots(r);
    Controller/GetSnapshot(r: GetSnapshotRequest)                   => Home(Snapshot(r.snapshot_id));
    Controller/ControllerExpandVolume(r: ControllerExpandVolumeRequest) => Home(Volume(r.volume_id)) => Resized(new_size);
    Controller/ControllerGetVolume(r: ControllerGetVolumeRequest)   => Home(Volume(r.volume_id));
    Controller/ControllerModifyVolume(r: ControllerModifyVolumeRequest) => Home(Volume(r.volume_id));

    GroupController/GroupControllerGetCapabilities(_)               => Local;
    GroupController/CreateVolumeGroupSnapshot(r: CreateVolumeGroupSnapshotRequest) => cut(r.name, r.source_volume_ids) => Learn::Made(created_group);
    GroupController/DeleteVolumeGroupSnapshot(r: DeleteVolumeGroupSnapshotRequest) => End(Group(r.group_snapshot_id)) => Gone;
    GroupController/GetVolumeGroupSnapshot(r: GetVolumeGroupSnapshotRequest)       => Home(Group(r.group_snapshot_id));

    SnapshotMetadata/GetMetadataAllocated(r: GetMetadataAllocatedRequest) => Home(Snapshot(r.snapshot_id)), stream;
    SnapshotMetadata/GetMetadataDelta(r: GetMetadataDeltaRequest)   => Home(Snapshot(r.base_snapshot_id)), stream;

    Node/NodeStageVolume(r: NodeStageVolumeRequest) => Node(Some(Volume(r.volume_id)));
    Node/NodeUnstageVolume(r: NodeUnstageVolumeRequest) => Node(Some(Volume(r.volume_id)));
    Node/NodePublishVolume(r: NodePublishVolumeRequest) => Node(Some(Volume(r.volume_id)));
    Node/NodeUnpublishVolume(r: NodeUnpublishVolumeRequest) => Node(Some(Volume(r.volume_id)));
    Node/NodeGetVolumeStats(r: NodeGetVolumeStatsRequest) => Node(Some(Volume(r.volume_id)));
    Node/NodeGetVolumeHealth(r: NodeGetVolumeHealthRequest) => Node(Some(Volume(r.volume_id)));
    Node/NodeGetStorageHealth(_) => Node(None);
    Node/NodeExpandVolume(r: NodeExpandVolumeRequest) => Node(Some(Volume(r.volume_id)));
    Node/NodeGetCapabilities(_)  => Local;
    Node/NodeGetInfo(_)          => Local;
}

fn place(request: csi::CreateVolumeRequest) -> Key {
    let source = request.volume_content_source.and_then(content_of);
    // CSI: preferred is a list in the caller's order; the volume MUST be accessible from requisite.
    let requirement = request.accessibility_requirements.unwrap_or_default();
    let topology = requirement.preferred.into_iter().chain(requirement.requisite).map(segments).collect();
    Key::Place { name: request.name, source, topology }
}

fn content_of(source: csi::VolumeContentSource) -> Option<Id> {
    use csi::volume_content_source::Type;
    Some(match source.r#type? {
        Type::Snapshot(snapshot) => Snapshot(snapshot.snapshot_id),
        Type::Volume(volume) => Volume(volume.volume_id),
    })
}

fn segments(topology: csi::Topology) -> Segments {
    topology.segments.into_iter().collect()
}

fn cut(name: String, volumes: impl IntoIterator<Item = String>) -> Key {
    Key::Cut { name, volumes: volumes.into_iter().map(Volume).collect() }
}

fn listed_snapshots(request: csi::ListSnapshotsRequest) -> Key {
    if !request.snapshot_id.is_empty() {
        Home(Snapshot(request.snapshot_id))
    } else if !request.source_volume_id.is_empty() {
        Home(Volume(request.source_volume_id))
    } else {
        All
    }
}

fn attached_to(request: &[u8]) -> Result<String, DecodeError> {
    csi::ControllerPublishVolumeRequest::decode(request).map(|request| request.node_id)
}

fn detached_from(request: &[u8]) -> Result<String, DecodeError> {
    csi::ControllerUnpublishVolumeRequest::decode(request).map(|request| request.node_id)
}

fn new_size(answer: &[u8]) -> Result<i64, DecodeError> {
    csi::ControllerExpandVolumeResponse::decode(answer).map(|answer| answer.capacity_bytes)
}

/// The answer's one field has the number and type that it has in the entry of a list, so the bytes are that too.
fn created_volume(answer: &Bytes) -> Result<Vec<Made>, DecodeError> {
    let volume = csi::CreateVolumeResponse::decode(answer.clone())?.volume;
    let made = volume.map(|volume| Made {
        source: volume.content_source.and_then(content_of),
        id: Volume(volume.volume_id),
        entry: answer.clone(),
    });
    Ok(made.into_iter().collect())
}

fn created_snapshot(answer: &Bytes) -> Result<Vec<Made>, DecodeError> {
    let snapshot = csi::CreateSnapshotResponse::decode(answer.clone())?.snapshot;
    Ok(snapshot.map(|snapshot| snapshot_made(snapshot, answer.clone())).into_iter().collect())
}

fn snapshot_made(snapshot: csi::Snapshot, entry: Bytes) -> Made {
    let source = Some(Volume(snapshot.source_volume_id)).filter(|source| *source != Volume(String::new()));
    Made { id: Snapshot(snapshot.snapshot_id), entry, source }
}

fn created_group(answer: &Bytes) -> Result<Vec<Made>, DecodeError> {
    let Some(group) = csi::CreateVolumeGroupSnapshotResponse::decode(answer.clone())?.group_snapshot else {
        return Ok(Vec::new());
    };
    let snapshots = group.snapshots.into_iter().map(|snapshot| {
        let entry = csi::list_snapshots_response::Entry { snapshot: Some(snapshot.clone()) };
        snapshot_made(snapshot, entry.encode_to_vec().into())
    });
    let group = Made { id: Group(group.group_snapshot_id), entry: answer.clone(), source: None };
    // The group first: an answer's first thing is what it was asked to make.
    Ok([group].into_iter().chain(snapshots).collect())
}
