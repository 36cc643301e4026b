//! Making, deleting, growing and changing volumes.

use proto::csi::volume_content_source::Type as SourceType;
use proto::csi::*;
use tonic::Status;
use uuid::Uuid;

use super::check;
use super::core::Core;
use super::data;
use super::locks::Held;
use super::loops;
use super::record::{Source, Volume, now};

/// What a new volume is filled from, kept from being deleted.
struct Filling {
    from: std::path::PathBuf,
    size: i64,
    block: bool,
    _held: Held,
}

impl Core {
    pub(super) fn create_volume(
        &self,
        q: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Status> {
        check::name(&q.name)?;
        let capabilities = check::capabilities(q.volume_capabilities)?;
        let block = capabilities.iter().any(|capability| capability.block);
        let mutable = check::mutable(q.mutable_parameters)?;
        let range = check::range(q.capacity_range.unwrap_or_default())?;
        let source = source(q.volume_content_source)?;
        check::topology(q.accessibility_requirements.as_ref(), self.node())?;
        let parameters = q.parameters.into_iter().collect();

        let _name = self.locks.take("the volume name", &q.name)?;
        if let Some(there) = self.volumes.by_name(&q.name) {
            let same =
                there.block == block && there.parameters == parameters && there.source == source;
            if !same || !check::fits(there.capacity, range) {
                return Err(Status::already_exists(format!(
                    "volume {} is named {} already, and has another size, kind, source or other parameters",
                    there.id, q.name
                )));
            }
            return Ok(CreateVolumeResponse { volume: Some(there.csi(self.node())) });
        }
        let filling = source.as_ref().map(|source| self.filling(source)).transpose()?;
        if filling.as_ref().is_some_and(|filling| filling.block != block) {
            return Err(Status::invalid_argument(
                "volume_content_source and volume_capabilities are not both block or both mount",
            ));
        }
        let least = filling.as_ref().map_or(0, |filling| filling.size);
        let capacity = check::size(range, block, least)?;
        self.check_room(capacity, capacity)?;
        let id = Uuid::new_v4().to_string();
        let draft = self.volumes.draft(&id)?;
        let path = data::path(&draft.dir, block);
        match &filling {
            None => data::make(&path, block, capacity)?,
            Some(filling) => data::copy(&filling.from, &path)?,
        }
        if block {
            data::resize(&path, capacity)?;
        }
        let volume = Volume {
            id,
            name: q.name,
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
        let answer = volume.csi(self.node());
        self.volumes.admit(draft, volume)?;
        Ok(CreateVolumeResponse { volume: Some(answer) })
    }

    fn filling(&self, source: &Source) -> Result<Filling, Status> {
        match source {
            Source::Volume(id) => {
                let held = self.locks.share("volume", id)?;
                let volume = self.volume(id)?;
                let from = self.data(&volume);
                loops::flush(&from, volume.block)?;
                Ok(Filling { from, size: volume.capacity, block: volume.block, _held: held })
            }
            Source::Snapshot(id) => {
                let held = self.locks.share("snapshot", id)?;
                let snapshot = self.snapshot(id)?;
                let from = self.copy_of(&snapshot);
                Ok(Filling { from, size: snapshot.size, block: snapshot.block, _held: held })
            }
        }
    }

    pub(super) fn delete_volume(
        &self,
        q: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Status> {
        check::id("volume_id", &q.volume_id)?;
        let _held = self.locks.take("volume", &q.volume_id)?;
        let Some(volume) = self.volumes.get(&q.volume_id) else {
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

    pub(super) fn expand_volume(
        &self,
        q: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        check::id("volume_id", &q.volume_id)?;
        let range = q
            .capacity_range
            .ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?;
        let range = check::range(range)?;
        let _held = self.locks.take("volume", &q.volume_id)?;
        let mut volume = self.volume(&q.volume_id)?;
        if q.volume_capability.is_some()
            && check::capability(q.volume_capability)?.block != volume.block
        {
            return Err(Status::invalid_argument(
                "volume_capability is not what the volume is, block or mount",
            ));
        }
        // Never less than it has: what has grown cannot shrink.
        let capacity = check::size(range, volume.block, volume.capacity)?;
        if capacity > volume.capacity {
            self.check_room(capacity, capacity - volume.capacity)?;
            if volume.block {
                data::resize(&self.data(&volume), capacity)?;
            }
            volume.capacity = capacity;
            self.volumes.update(volume.clone())?;
        }
        // A loop device shows the new size only when its node is told to.
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: capacity,
            node_expansion_required: volume.block,
        })
    }

    pub(super) fn modify_volume(
        &self,
        q: ControllerModifyVolumeRequest,
    ) -> Result<ControllerModifyVolumeResponse, Status> {
        check::id("volume_id", &q.volume_id)?;
        let _held = self.locks.take("volume", &q.volume_id)?;
        let mut volume = self.volume(&q.volume_id)?;
        volume.mutable.extend(check::mutable(q.mutable_parameters)?);
        self.volumes.update(volume)?;
        Ok(ControllerModifyVolumeResponse {})
    }
}

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
