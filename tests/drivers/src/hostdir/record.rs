//! The record of each object: one JSON file each, without secrets.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::csi;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::keys::TOPOLOGY_KEY;

/// An object that has a directory of its own.
pub(super) trait Record: Serialize + DeserializeOwned + Clone + Send + 'static {
    /// The directory of this kind of object, below the state.
    const KIND: &'static str;
    /// Names its directory.
    fn id(&self) -> &str;
    /// By which the CO finds it again; empty for a member of a group snapshot.
    fn name(&self) -> &str;
    /// Nanoseconds since 1970: lists are in the order of creation.
    fn created(&self) -> u64;
}

/// A capability as the CO gave it, checked.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Capability {
    pub(super) block: bool,
    pub(super) mode: i32,
    pub(super) fs_type: String,
    pub(super) flags: Vec<String>,
    pub(super) group: Option<u32>,
}

/// The source of a volume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Source {
    Volume(String),
    Snapshot(String),
}

/// How a volume is published to a node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attached {
    pub(super) capability: Capability,
    pub(super) readonly: bool,
}

/// Where a volume is staged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Staged {
    pub(super) path: String,
    pub(super) capability: Capability,
}

/// How a volume is published at one target path.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Target {
    pub(super) capability: Capability,
    pub(super) readonly: bool,
    /// A read-only loop device that serves this target only.
    pub(super) device: Option<String>,
}

/// A volume.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct VolumeRecord {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) created: u64,
    pub(super) capacity: i64,
    pub(super) block: bool,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) mutable: BTreeMap<String, String>,
    pub(super) source: Option<Source>,
    pub(super) attached: BTreeMap<String, Attached>,
    pub(super) staged: Option<Staged>,
    pub(super) targets: BTreeMap<String, Target>,
}

/// A snapshot.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) created: u64,
    pub(super) size: i64,
    pub(super) block: bool,
    pub(super) volume: String,
    pub(super) group: Option<String>,
}

/// A group snapshot. It is made after its members, so that a member without it is half-made.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Group {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) created: u64,
    pub(super) snapshots: Vec<String>,
    pub(super) volumes: Vec<String>,
}

/// Implements [`Record`] for a type that has the fields `id`, `name` and `created`.
macro_rules! record {
    ($type:ty, $kind:literal) => {
        impl Record for $type {
            const KIND: &'static str = $kind;
            fn id(&self) -> &str {
                &self.id
            }
            fn name(&self) -> &str {
                &self.name
            }
            fn created(&self) -> u64 {
                self.created
            }
        }
    };
}
record!(VolumeRecord, "volumes");
record!(Snapshot, "snapshots");
record!(Group, "groups");

/// The time for a new record.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A record's time for CSI.
pub(super) fn timestamp(created: u64) -> prost_types::Timestamp {
    (UNIX_EPOCH + Duration::from_nanos(created)).into()
}

/// Where all objects of a node are.
pub(super) fn topology(node: &str) -> csi::Topology {
    csi::Topology { segments: [(TOPOLOGY_KEY.to_owned(), node.to_owned())].into() }
}

impl VolumeRecord {
    /// Its CSI message.
    pub(super) fn csi(&self, topology: Vec<csi::Topology>) -> csi::Volume {
        use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
        let source = self.source.as_ref().map(|source| match source {
            Source::Volume(id) => Type::Volume(VolumeSource { volume_id: id.clone() }),
            Source::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.clone() }),
        });
        csi::Volume {
            capacity_bytes: self.capacity,
            volume_id: self.id.clone(),
            content_source: source.map(|kind| csi::VolumeContentSource { r#type: Some(kind) }),
            accessible_topology: topology,
            ..Default::default()
        }
    }

    /// The nodes it is published to.
    pub(super) fn nodes(&self) -> Vec<String> {
        self.attached.keys().cloned().collect()
    }
}

impl Snapshot {
    /// Its CSI message.
    pub(super) fn csi(&self, topology: Vec<csi::Topology>) -> csi::Snapshot {
        csi::Snapshot {
            size_bytes: self.size,
            snapshot_id: self.id.clone(),
            source_volume_id: self.volume.clone(),
            creation_time: Some(timestamp(self.created)),
            ready_to_use: true,
            group_snapshot_id: self.group.clone().unwrap_or_default(),
            accessible_topology: topology,
        }
    }
}
