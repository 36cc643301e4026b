//! Staging and publishing on the node.
//!
//! The record has the request, and the kernel has the mounts. A retry completes a call that was cut
//! short between the two.

use std::path::Path;

use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::*;
use tonic::Status;

use super::check;
use super::controller::check_kind;
use super::core::Core;
use super::data;
use super::fail::Doing as _;
use super::keys::PUBLISH_WAITS;
use super::loops;
use super::mounts;
use super::record::{Staged, Target, VolumeRecord};

impl Core {
    /// NodeStageVolume: mounts a directory, or attaches an image to a loop device.
    ///
    /// CSI: a volume that is "already staged to the staging_target_path" with the same capability
    /// is OK, with another one ALREADY_EXISTS.
    pub(super) fn stage(
        &self,
        request: NodeStageVolumeRequest,
    ) -> Result<NodeStageVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        check::path("staging_target_path", &request.staging_target_path)?;
        let capability = check::capability(request.volume_capability)?;
        let _held = self.locks.take("volume", &request.volume_id)?;
        let mut volume = self.volume(&request.volume_id)?;
        check_kind(&volume, capability.block)?;
        let wanted = Staged { path: request.staging_target_path, capability };
        match &volume.staged {
            Some(there) if there.path != wanted.path => {
                return Err(Status::failed_precondition(format!(
                    "volume {} is staged at {}",
                    volume.id, there.path
                )));
            }
            Some(there) if *there != wanted => {
                return Err(Status::already_exists(format!(
                    "volume {} is staged at {} with another volume_capability",
                    volume.id, there.path
                )));
            }
            _ => {}
        }
        let from = self.data(&volume);
        if !from.exists() {
            return Err(Status::failed_precondition(format!(
                "volume {} has lost its data",
                volume.id
            )));
        }
        if volume.block {
            loops::attach(&from)?;
        } else {
            stage_directory(&from, &wanted, volume.staged.is_some())?;
        }
        if volume.staged.is_none() {
            volume.staged = Some(wanted);
            self.volumes.update(volume)?;
        }
        Ok(NodeStageVolumeResponse {})
    }

    /// NodeUnstageVolume.
    ///
    /// CSI: a volume that is not staged at the path is OK. A volume that is still published is
    /// FAILED_PRECONDITION.
    pub(super) fn unstage(
        &self,
        request: NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        check::path("staging_target_path", &request.staging_target_path)?;
        let _held = self.locks.take("volume", &request.volume_id)?;
        let mut volume = self.volume(&request.volume_id)?;
        let path = request.staging_target_path;
        if volume.staged.as_ref().is_some_and(|staged| staged.path != path) {
            return Ok(NodeUnstageVolumeResponse {});
        }
        if let Some(target) = volume.targets.keys().next() {
            return Err(Status::failed_precondition(format!(
                "volume {} is published at {target}",
                volume.id
            )));
        }
        let from = self.data(&volume);
        if volume.block {
            loops::detach(&from, None)?;
        } else if mounts::is_mount(&path) && (volume.staged.is_some() || mounts::same(&from, &path))
        {
            mounts::release(&path)?;
        }
        if volume.staged.take().is_some() {
            self.volumes.update(volume)?;
        }
        Ok(NodeUnstageVolumeResponse {})
    }

    /// NodePublishVolume: mounts the staged volume at a pod's path.
    ///
    /// CSI: a volume that is "already published at the target_path" in a compatible way is OK, in
    /// another way ALREADY_EXISTS. The plugin makes the target path, whose parent exists.
    pub(super) fn publish(
        &self,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        check::path("target_path", &request.target_path)?;
        let capability = check::capability(request.volume_capability)?;
        let _held = self.locks.take("volume", &request.volume_id)?;
        self.wait_for(&format!("{PUBLISH_WAITS}{}", request.volume_id));
        let mut volume = self.volume(&request.volume_id)?;
        check_kind(&volume, capability.block)?;
        let staged = staged(&volume, &request.staging_target_path)?;
        let mut wanted = Target { capability, readonly: request.readonly, device: None };
        if let Some(there) = volume.targets.get(&request.target_path) {
            if there.capability != wanted.capability || there.readonly != wanted.readonly {
                return Err(Status::already_exists(format!(
                    "volume {} is published at {} with another volume_capability or readonly flag",
                    volume.id, request.target_path
                )));
            }
            if mounts::is_mount(&request.target_path) {
                return Ok(NodePublishVolumeResponse {});
            }
            // Unmounted behind our back: it is mounted again, on the device it had.
            wanted.device.clone_from(&there.device);
        }
        check_exclusive(&volume, &request.target_path, &wanted)?;
        let image = self.data(&volume);
        if mounts::is_mount(&request.target_path) && !is_at(&volume, &image, &request.target_path)?
        {
            return Err(Status::failed_precondition(format!(
                "something else is mounted at {}",
                request.target_path
            )));
        }
        // Left by a call that was cut short.
        mounts::release(&request.target_path)?;
        mounts::prepare(&request.target_path, volume.block)?;
        let readonly = wanted.readonly || reads_only(wanted.capability.mode);
        if volume.block {
            wanted.device = publish_device(&image, &request.target_path, readonly, wanted.device)?;
        } else {
            publish_directory(&staged, &request.target_path, &wanted, readonly)?;
        }
        volume.targets.insert(request.target_path, wanted);
        self.volumes.update(volume)?;
        Ok(NodePublishVolumeResponse {})
    }

    /// NodeUnpublishVolume: unmounts the volume and removes the target path.
    ///
    /// CSI: "the Plugin MUST delete the file or directory it created at this path".
    pub(super) fn unpublish(
        &self,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        check::path("target_path", &request.target_path)?;
        let _held = self.locks.take("volume", &request.volume_id)?;
        let mut volume = self.volume(&request.volume_id)?;
        let target = volume.targets.remove(&request.target_path);
        let image = self.data(&volume);
        if target.is_some() || is_at(&volume, &image, &request.target_path)? {
            mounts::release(&request.target_path)?;
        }
        mounts::clear(&request.target_path)?;
        if let Some(target) = target {
            if let Some(device) = target.device {
                loops::detach(&image, Some(&device))?;
            }
            self.volumes.update(volume)?;
        }
        Ok(NodeUnpublishVolumeResponse {})
    }
}

/// Whether what is at a path is this volume.
fn is_at(volume: &VolumeRecord, data: &Path, path: &str) -> Result<bool, Status> {
    if volume.block { loops::is_at(data, path) } else { Ok(mounts::same(data, path)) }
}

fn stage_directory(from: &Path, wanted: &Staged, again: bool) -> Result<(), Status> {
    let path = &wanted.path;
    mounts::prepare(path, false)?;
    if !mounts::is_mount(path) {
        mounts::bind(from, path, &wanted.capability.flags, false)?;
    } else if !mounts::same(from, path) {
        return Err(Status::failed_precondition(format!("something else is mounted at {path}")));
    } else if again {
        return Ok(());
    }
    set_group(from, wanted.capability.group)
}

fn set_group(data: &Path, group: Option<u32>) -> Result<(), Status> {
    let Some(group) = group else { return Ok(()) };
    data::set_group(data, group)
        .doing(|| format!("give {} to volume_mount_group {group}", data.display()))
}

/// The path where a volume is staged, which must be the path of the request.
fn staged(volume: &VolumeRecord, path: &str) -> Result<String, Status> {
    match &volume.staged {
        Some(staged) if staged.path == path && (volume.block || mounts::is_mount(path)) => {
            Ok(path.to_owned())
        }
        Some(staged) if staged.path == path => Err(Status::failed_precondition(format!(
            "volume {} is not mounted at {path} any more",
            volume.id
        ))),
        Some(staged) => Err(Status::failed_precondition(format!(
            "volume {} is staged at {}",
            volume.id, staged.path
        ))),
        None => Err(Status::failed_precondition(format!("volume {} is not staged", volume.id))),
    }
}

fn reads_only(mode: i32) -> bool {
    mode == Mode::SingleNodeReaderOnly as i32 || mode == Mode::MultiNodeReaderOnly as i32
}

/// Refuses a second target if one of them is for a single writer.
///
/// CSI: SINGLE_NODE_SINGLE_WRITER allows one published target; another one is FAILED_PRECONDITION.
fn check_exclusive(volume: &VolumeRecord, path: &str, wanted: &Target) -> Result<(), Status> {
    let single = |target: &Target| target.capability.mode == Mode::SingleNodeSingleWriter as i32;
    match volume.targets.iter().find(|(there, _)| *there != path) {
        Some((there, target)) if single(target) || single(wanted) => {
            Err(Status::failed_precondition(format!(
                "volume {} is published at {there}, and access mode \
                 SINGLE_NODE_SINGLE_WRITER allows one target",
                volume.id
            )))
        }
        _ => Ok(()),
    }
}

fn publish_directory(
    staged: &str,
    path: &str,
    wanted: &Target,
    readonly: bool,
) -> Result<(), Status> {
    set_group(Path::new(staged), wanted.capability.group)?;
    mounts::bind(Path::new(staged), path, &wanted.capability.flags, readonly)
}

/// Mounts an image's device over a file, and returns the device of a read-only target. A read-only
/// mount of a device node can still be written through. A read-only target therefore gets a
/// read-only device of its own.
fn publish_device(
    image: &Path,
    path: &str,
    readonly: bool,
    own: Option<String>,
) -> Result<Option<String>, Status> {
    if let Some(own) = own {
        loops::detach(image, Some(&own))?;
    }
    let device = if readonly { loops::attach_readonly(image)? } else { loops::attach(image)? };
    let bound = mounts::bind(Path::new(&device), path, &[], false);
    if bound.is_err() && readonly {
        // The error is what the caller has to know.
        let _ = loops::detach(image, Some(&device));
    }
    bound.map(|()| readonly.then_some(device))
}
