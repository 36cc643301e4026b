//! The driver's memory: volumes, snapshots, group snapshots and what is staged and published where.
//!
//! It has no mounts and no data, because tests of a forwarder need none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::SystemTime;

use proto::csi::{
    CapacityRange, CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, CreateVolumeRequest,
    Snapshot, Topology, Volume, VolumeCapability, VolumeContentSource, VolumeGroupSnapshot,
    volume_capability, volume_content_source,
};
use tonic::Status;

use super::keys::TOPOLOGY_KEY;

/// The size of a volume whose creator asks for none.
const DEFAULT_SIZE: i64 = 1 << 30;

/// One volume.
pub(super) struct Held {
    pub(super) name: String,
    pub(super) volume: Volume,
    pub(super) mutable: HashMap<String, String>,
    pub(super) published: BTreeMap<String, Published>,
}

/// How a volume is published to a node.
#[derive(PartialEq)]
pub(super) struct Published {
    pub(super) readonly: bool,
    pub(super) capability: VolumeCapability,
}

/// The state of the driver. Keyed by number, so that lists are in the order of creation.
#[derive(Default)]
pub(super) struct Store {
    pub(super) last: u64,
    /// The node where new volumes are accessible, if that is not for the caller to choose.
    pub(super) here: Option<String>,
    /// New snapshots become ready with the second request.
    pub(super) slow_snapshots: bool,
    pub(super) volumes: BTreeMap<u64, Held>,
    /// With the name each was created under.
    pub(super) snapshots: BTreeMap<u64, (String, Snapshot)>,
    pub(super) groups: BTreeMap<u64, (String, VolumeGroupSnapshot)>,
    /// Volume id and staging path.
    pub(super) staged: BTreeSet<(String, String)>,
    /// Volume id and target path.
    pub(super) node_published: BTreeSet<(String, String)>,
}

/// The number of an id such as `vol-7`.
pub(super) fn number(prefix: &str, id: &str) -> Option<u64> {
    id.strip_prefix(prefix)?.strip_prefix('-')?.parse().ok()
}

fn missing(what: &str, id: &str) -> Status {
    Status::not_found(format!("{what} {id} does not exist"))
}

/// Whether a size lies in the requested range.
pub(super) fn fits(size: i64, range: Option<&CapacityRange>) -> bool {
    range.is_none_or(|r| size >= r.required_bytes && (r.limit_bytes == 0 || size <= r.limit_bytes))
}

/// Whether the mode allows only one node at a time.
pub(super) fn single_node(capability: &VolumeCapability) -> bool {
    use volume_capability::access_mode::Mode;
    let mode =
        capability.access_mode.as_ref().map_or(Mode::Unknown, volume_capability::AccessMode::mode);
    !matches!(
        mode,
        Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter
    )
}

/// Refuses an empty field that CSI requires.
pub(super) fn require(value: &str, field: &str) -> Result<(), Status> {
    if value.is_empty() {
        Err(Status::invalid_argument(format!("{field} is required")))
    } else {
        Ok(())
    }
}

impl Store {
    fn new_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn volume(&mut self, id: &str) -> Result<&mut Held, Status> {
        require(id, "volume_id")?;
        number("vol", id)
            .and_then(|n| self.volumes.get_mut(&n))
            .ok_or_else(|| missing("volume", id))
    }

    pub(super) fn snapshot(&self, id: &str) -> Result<&Snapshot, Status> {
        require(id, "snapshot_id")?;
        let found = number("snap", id).and_then(|n| self.snapshots.get(&n));
        found.map(|(_, snapshot)| snapshot).ok_or_else(|| missing("snapshot", id))
    }

    pub(super) fn group(&self, id: &str) -> Result<&VolumeGroupSnapshot, Status> {
        require(id, "group_snapshot_id")?;
        let found = number("group", id).and_then(|n| self.groups.get(&n));
        found.map(|(_, group)| group).ok_or_else(|| missing("group snapshot", id))
    }

    /// Adds a volume that needs no checks.
    pub(super) fn add(&mut self, name: String, mut volume: Volume) -> &Volume {
        let n = self.new_number();
        volume.volume_id = format!("vol-{n}");
        let held = Held { name, volume, mutable: HashMap::new(), published: BTreeMap::new() };
        &self.volumes.entry(n).or_insert(held).volume
    }

    pub(super) fn create_volume(&mut self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        let range = request.capacity_range.as_ref();
        if let Some(held) = self.volumes.values().find(|held| held.name == request.name) {
            let same = held.volume.content_source == request.volume_content_source;
            if same && fits(held.volume.capacity_bytes, range) {
                return Ok(held.volume.clone());
            }
            return Err(Status::already_exists(format!(
                "volume {} exists and is different",
                request.name
            )));
        }
        let source_size = self.source_size(request.volume_content_source.as_ref())?;
        let size = match range {
            Some(r) if r.required_bytes > 0 => r.required_bytes.max(source_size),
            Some(r) if r.limit_bytes > 0 => r.limit_bytes.min(DEFAULT_SIZE).max(source_size),
            _ => DEFAULT_SIZE.max(source_size),
        };
        if !fits(size, range) {
            return Err(Status::out_of_range("no size lies in this capacity range"));
        }
        let volume = Volume {
            capacity_bytes: size,
            volume_id: String::new(),
            volume_context: request.parameters,
            content_source: request.volume_content_source,
            accessible_topology: match &self.here {
                Some(node) => vec![at(node)],
                None => chosen(request.accessibility_requirements),
            },
        };
        let volume = self.add(request.name, volume).clone();
        self.volume(&volume.volume_id)?.mutable = request.mutable_parameters;
        Ok(volume)
    }

    fn source_size(&mut self, source: Option<&VolumeContentSource>) -> Result<i64, Status> {
        use volume_content_source::Type;
        match source.and_then(|source| source.r#type.as_ref()) {
            None => Ok(0),
            Some(Type::Snapshot(source)) => Ok(self.snapshot(&source.snapshot_id)?.size_bytes),
            Some(Type::Volume(source)) => Ok(self.volume(&source.volume_id)?.volume.capacity_bytes),
        }
    }

    fn new_snapshot(&mut self, name: String, volume: &Volume, group: &str) -> Snapshot {
        let n = self.new_number();
        let snapshot = Snapshot {
            size_bytes: volume.capacity_bytes,
            snapshot_id: format!("snap-{n}"),
            source_volume_id: volume.volume_id.clone(),
            creation_time: Some(SystemTime::now().into()),
            ready_to_use: !self.slow_snapshots,
            group_snapshot_id: group.to_owned(),
            accessible_topology: volume.accessible_topology.clone(),
        };
        self.snapshots.insert(n, (name, snapshot.clone()));
        snapshot
    }

    pub(super) fn create_snapshot(
        &mut self,
        request: CreateSnapshotRequest,
    ) -> Result<Snapshot, Status> {
        if let Some((_, found)) =
            self.snapshots.values_mut().find(|(name, _)| *name == request.name)
        {
            if found.source_volume_id == request.source_volume_id {
                found.ready_to_use = true;
                return Ok(found.clone());
            }
            return Err(Status::already_exists(format!(
                "snapshot {} is of another volume",
                request.name
            )));
        }
        let volume = self.volume(&request.source_volume_id)?.volume.clone();
        Ok(self.new_snapshot(request.name, &volume, ""))
    }

    pub(super) fn create_group(
        &mut self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot, Status> {
        if let Some((_, group)) = self.groups.values().find(|(name, _)| *name == request.name) {
            let have: BTreeSet<_> = group.snapshots.iter().map(|s| &s.source_volume_id).collect();
            if have == request.source_volume_ids.iter().collect() {
                return Ok(group.clone());
            }
            return Err(Status::already_exists(format!(
                "group snapshot {} is of other volumes",
                request.name
            )));
        }
        let mut volumes = Vec::new();
        for id in &request.source_volume_ids {
            volumes.push(self.volume(id)?.volume.clone());
        }
        let n = self.new_number();
        let id = format!("group-{n}");
        // No caller can name a snapshot of a group, so these have no name to be idempotent by.
        let snapshots =
            volumes.iter().map(|volume| self.new_snapshot(String::new(), volume, &id)).collect();
        let creation_time = Some(SystemTime::now().into());
        let group = VolumeGroupSnapshot {
            group_snapshot_id: id,
            snapshots,
            creation_time,
            ready_to_use: true,
        };
        self.groups.insert(n, (request.name, group.clone()));
        Ok(group)
    }
}

fn at(node: &str) -> Topology {
    Topology { segments: [(TOPOLOGY_KEY.to_owned(), node.to_owned())].into() }
}

/// The topology for a new volume: the one the caller likes best.
fn chosen(wanted: Option<proto::csi::TopologyRequirement>) -> Vec<Topology> {
    let wanted = wanted.unwrap_or_default();
    wanted.preferred.into_iter().chain(wanted.requisite).take(1).collect()
}

/// One page of a list, and the token for the next.
pub(super) fn page<T>(
    all: impl Iterator<Item = (u64, T)>,
    max_entries: i32,
    token: &str,
) -> Result<(Vec<T>, String), Status> {
    // A token is the number of the last entry of a page, so it stays valid when entries are added
    // or deleted.
    let after = match token {
        "" => 0,
        token => token.parse().map_err(|_| Status::aborted("starting_token is not one of ours"))?,
    };
    let most = match usize::try_from(max_entries) {
        Ok(0) => usize::MAX,
        Ok(most) => most,
        Err(_) => return Err(Status::invalid_argument("max_entries is negative")),
    };
    let mut rest = all.filter(|(n, _)| *n > after).peekable();
    let mut entries = Vec::new();
    let mut last = 0;
    while entries.len() < most {
        let Some((n, entry)) = rest.next() else { break };
        last = n;
        entries.push(entry);
    }
    let next = rest.peek().map_or_else(String::new, |_| last.to_string());
    Ok((entries, next))
}
