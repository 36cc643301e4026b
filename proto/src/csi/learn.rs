//! The effects of a successful call on volumes, snapshots and groups.

use bytes::Bytes;
use prost::{DecodeError, Message};

use super::key::{Id, content_of};
use super::method::Method;
use super::table::table;
use super::types;

/// The effect of a successful call.
#[derive(Clone, Copy)]
pub enum Learn {
    /// Nothing.
    Nothing,
    /// The answer describes new things, which live on the node that answered.
    Made(fn(&Bytes) -> Result<Vec<Made>, DecodeError>),
    /// The thing that the request names is gone.
    Gone,
    /// The volume is attached to the node with the id in the request.
    Attached(fn(&[u8]) -> Result<String, DecodeError>),
    /// The volume is detached from that node; without an id from all nodes.
    Detached(fn(&[u8]) -> Result<String, DecodeError>),
    /// The volume has the size in the answer, in bytes.
    Resized(fn(&[u8]) -> Result<i64, DecodeError>),
}

/// Something that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its id; the driver may have left it empty, which CSI forbids.
    pub id: Id,
    /// Its entry in a list: `ListVolumesResponse.Entry` or `ListSnapshotsResponse.Entry`; for a
    /// group, `CreateVolumeGroupSnapshotResponse`.
    pub entry: Bytes,
    /// The volume or snapshot that its content comes from.
    pub source: Option<Id>,
}

impl Method {
    /// The effect of a successful call.
    pub fn learn(self) -> Learn {
        LEARN[self as usize]
    }

    /// True if the call detaches a volume. A node that is gone for good holds no attachments.
    pub fn detaches(self) -> bool {
        matches!(self.learn(), Learn::Detached(_))
    }
}

macro_rules! learn {
    ($($service:ident/$method:ident($($request:tt)*) => $key:expr
        $(, learn $learn:expr)? $(, { $($column:tt)* })?;)*) => {
        /// In the order of the enum's variants.
        static LEARN: [Learn; Method::ALL.len()] = [$(learn!(@one $($learn)?)),*];
    };
    (@one $learn:expr) => { $learn };
    (@one) => { Learn::Nothing };
}
table!(learn);

/// The node id of a ControllerPublishVolumeRequest. A ControllerUnpublishVolumeRequest has it
/// under the same number.
#[derive(Clone, PartialEq, Eq, Message)]
struct AtNode {
    #[prost(string, tag = "2")]
    node_id: String,
}

fn node_id(request: &[u8]) -> Result<String, DecodeError> {
    AtNode::decode(request).map(|request| request.node_id)
}

fn new_size(answer: &[u8]) -> Result<i64, DecodeError> {
    types::ControllerExpandVolumeResponse::decode(answer).map(|answer| answer.capacity_bytes)
}

/// The response's field has the same number and type as in a list entry, so its bytes are an entry.
fn created_volume(answer: &Bytes) -> Result<Vec<Made>, DecodeError> {
    let volume = types::CreateVolumeResponse::decode(answer.clone())?.volume;
    let made = volume.map(|volume| Made {
        source: volume.content_source.and_then(content_of),
        id: Id::Volume(volume.volume_id),
        entry: answer.clone(),
    });
    Ok(made.into_iter().collect())
}

fn created_snapshot(answer: &Bytes) -> Result<Vec<Made>, DecodeError> {
    let snapshot = types::CreateSnapshotResponse::decode(answer.clone())?.snapshot;
    Ok(snapshot.map(|snapshot| snapshot_made(snapshot, answer.clone())).into_iter().collect())
}

fn snapshot_made(snapshot: types::Snapshot, entry: Bytes) -> Made {
    let volume = Some(snapshot.source_volume_id).filter(|volume| !volume.is_empty());
    Made { id: Id::Snapshot(snapshot.snapshot_id), entry, source: volume.map(Id::Volume) }
}

/// The group comes first: callers take the first thing of an answer for the one that they asked
/// for.
fn created_group(answer: &Bytes) -> Result<Vec<Made>, DecodeError> {
    let response = types::CreateVolumeGroupSnapshotResponse::decode(answer.clone())?;
    let Some(group) = response.group_snapshot else {
        return Ok(Vec::new());
    };
    let id = Id::Group(group.group_snapshot_id);
    let mut made = vec![Made { id, entry: answer.clone(), source: None }];
    for snapshot in group.snapshots {
        let entry = types::list_snapshots_response::Entry { snapshot: Some(snapshot.clone()) };
        made.push(snapshot_made(snapshot, entry.encode_to_vec().into()));
    }
    Ok(made)
}
