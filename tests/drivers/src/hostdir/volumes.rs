//! The life of a volume at the controller: create, delete, expand, modify.
//!
//! Each RPC checks its request, locks the volume, compares with the record, and then does the work.
//! The record is written last, so that a call that was cut short is repeated as a whole.

use proto::csi::volume_content_source::Type as SourceType;
use proto::csi::*;
use tonic::Status;
use uuid::Uuid;

use super::check;
use super::core::Core;
use super::data;
use super::locks::Held;
use super::loops;
use super::record::{Source, VolumeRecord, now};

/// The source of a new volume's content. It cannot be deleted while this exists.
struct ContentSource {
    from: std::path::PathBuf,
    size: i64,
    block: bool,
    _held: Held,
}

impl Core {
    /// CreateVolume, which is answered with the first place that the caller prefers if the settings
    /// say so.
    pub(super) fn create(
        &self,
        request: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Status> {
        let preferred = match &request.accessibility_requirements {
            Some(requirement) if self.settings.echo_preferred => requirement.preferred.first(),
            _ => None,
        };
        let place = preferred.cloned();
        let mut answer = self.create_volume(request)?;
        if let (Some(place), Some(volume)) = (place, answer.volume.as_mut()) {
            volume.accessible_topology = vec![place];
        }
        Ok(answer)
    }

    /// CreateVolume, which is idempotent by the volume's name.
    ///
    /// CSI: a compatible volume of this name "already exists": "the Plugin MUST reply 0 OK". An
    /// incompatible one is ALREADY_EXISTS.
    pub(super) fn create_volume(
        &self,
        request: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Status> {
        check::name(&request.name)?;
        let capabilities = check::capabilities(request.volume_capabilities)?;
        let block = capabilities.iter().any(|capability| capability.block);
        if block && self.settings.server.is_some() {
            return Err(Status::invalid_argument(
                "volume_capabilities: a file server has no blocks",
            ));
        }
        let mutable = check::mutable(request.mutable_parameters)?;
        let range = check::range(request.capacity_range.unwrap_or_default())?;
        let source = source(request.volume_content_source)?;
        self.check_place(request.accessibility_requirements.as_ref())?;
        let parameters = request.parameters.into_iter().collect();

        // Two creates of one name at the same time would make two volumes.
        let _name = self.locks.take("the volume name", &request.name)?;
        if let Some(there) = self.volumes.by_name(&request.name) {
            let same =
                there.block == block && there.parameters == parameters && there.source == source;
            if !same || !check::fits(there.capacity, range) {
                return Err(incompatible(&there));
            }
            return Ok(CreateVolumeResponse { volume: Some(self.show(&there)) });
        }
        let content = source.as_ref().map(|source| self.open_source(source)).transpose()?;
        if content.as_ref().is_some_and(|content| content.block != block) {
            return Err(Status::invalid_argument(
                "volume_content_source and volume_capabilities are not both block or both mount",
            ));
        }
        let least = content.as_ref().map_or(0, |content| content.size);
        let capacity = check::size(range, block, least)?;
        self.check_room(capacity, capacity)?;
        let id = Uuid::new_v4().to_string();
        let draft = self.volumes.draft(&id)?;
        let path = data::path(&draft.dir, block);
        match &content {
            None => data::make(&path, block, capacity)?,
            Some(content) => data::copy(&content.from, &path)?,
        }
        if block {
            data::resize(&path, capacity)?;
        }
        let volume = VolumeRecord {
            id,
            name: request.name,
            created: now(),
            capacity,
            block,
            parameters,
            mutable,
            source,
            attached: Default::default(),
            staged: None,
            targets: Default::default(),
        };
        let answer = self.show(&volume);
        self.volumes.admit(draft, volume)?;
        Ok(CreateVolumeResponse { volume: Some(answer) })
    }

    /// Locks the source of a new volume and finds its data.
    fn open_source(&self, source: &Source) -> Result<ContentSource, Status> {
        match source {
            Source::Volume(id) => {
                let held = self.locks.share("volume", id)?;
                let volume = self.volume(id)?;
                let from = self.data(&volume);
                loops::flush(&from, volume.block)?;
                Ok(ContentSource { from, size: volume.capacity, block: volume.block, _held: held })
            }
            Source::Snapshot(id) => {
                let held = self.locks.share("snapshot", id)?;
                let snapshot = self.snapshot(id)?;
                let from = self.copy_of(&snapshot);
                Ok(ContentSource { from, size: snapshot.size, block: snapshot.block, _held: held })
            }
        }
    }

    /// DeleteVolume, which is idempotent.
    ///
    /// CSI: "if a volume corresponding to the specified volume_id does not exist", the answer is
    /// OK. A volume that is in use is FAILED_PRECONDITION.
    pub(super) fn delete_volume(
        &self,
        request: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        let _held = self.locks.take("volume", &request.volume_id)?;
        let Some(volume) = self.volumes.get(&request.volume_id) else {
            return Ok(DeleteVolumeResponse {});
        };
        let used = if !volume.attached.is_empty() {
            Some(format!("published to the nodes {}", volume.nodes().join(", ")))
        } else if !volume.targets.is_empty() {
            Some("published on the node".to_owned())
        } else {
            volume.staged.as_ref().map(|staged| format!("staged at {}", staged.path))
        };
        if let Some(used) = used {
            return Err(Status::failed_precondition(format!("volume {} is {used}", volume.id)));
        }
        if volume.block {
            loops::detach(&self.data(&volume), None)?;
        }
        self.volumes.remove(&volume.id)?;
        Ok(DeleteVolumeResponse {})
    }

    /// ControllerExpandVolume. The size of a volume never shrinks.
    ///
    /// CSI: a volume that is "already larger than or equal to the target capacity" is OK.
    pub(super) fn expand_volume(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        let range = request
            .capacity_range
            .ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?;
        let range = check::range(range)?;
        let _held = self.locks.take("volume", &request.volume_id)?;
        let mut volume = self.volume(&request.volume_id)?;
        if request.volume_capability.is_some()
            && check::capability(request.volume_capability)?.block != volume.block
        {
            return Err(Status::invalid_argument(
                "volume_capability is not what the volume is, block or mount",
            ));
        }
        let capacity = check::size(range, volume.block, volume.capacity)?;
        if capacity > volume.capacity {
            self.check_room(capacity, capacity - volume.capacity)?;
            if volume.block {
                data::resize(&self.data(&volume), capacity)?;
            }
            volume.capacity = capacity;
            self.volumes.update(volume.clone())?;
        }
        // A loop device shows the new size only after NodeExpandVolume.
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: capacity,
            node_expansion_required: volume.block,
        })
    }

    /// ControllerModifyVolume: changes the mutable parameters.
    pub(super) fn modify_volume(
        &self,
        request: ControllerModifyVolumeRequest,
    ) -> Result<ControllerModifyVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        let _held = self.locks.take("volume", &request.volume_id)?;
        let mut volume = self.volume(&request.volume_id)?;
        volume.mutable.extend(check::mutable(request.mutable_parameters)?);
        self.volumes.update(volume)?;
        Ok(ControllerModifyVolumeResponse {})
    }
}

fn incompatible(there: &VolumeRecord) -> Status {
    Status::already_exists(format!(
        "volume {} is named {} already, and has another size, kind, source or other parameters",
        there.id, there.name
    ))
}

/// Parses the content source of a new volume.
fn source(source: Option<VolumeContentSource>) -> Result<Option<Source>, Status> {
    let Some(source) = source else { return Ok(None) };
    match source.r#type {
        None => Err(Status::invalid_argument("volume_content_source has no type")),
        Some(SourceType::Snapshot(snapshot)) => {
            check::id("volume_content_source.snapshot.snapshot_id", &snapshot.snapshot_id)?;
            Ok(Some(Source::Snapshot(snapshot.snapshot_id)))
        }
        Some(SourceType::Volume(volume)) => {
            check::id("volume_content_source.volume.volume_id", &volume.volume_id)?;
            Ok(Some(Source::Volume(volume.volume_id)))
        }
    }
}
