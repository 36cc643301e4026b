//! One volume, and a kubelet's steps with it. Every step is repeated until it is answered OK, as a
//! kubelet does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::node_client::NodeClient;
use proto::csi;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::steps::Step;

/// The first delay before a call is repeated; it doubles up to the last.
const FIRST: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(1);
/// The deadline of one call.
const CALL: Duration = Duration::from_secs(5);

/// A volume and its paths.
#[derive(Clone)]
pub struct Volume {
    /// Its id, which is also its data.
    pub id: String,
    /// Whether it is a block volume.
    pub block: bool,
    /// The size that was asked for last.
    pub size: i64,
    /// Whether an expansion to that size has no answer yet.
    pub open: bool,
    /// The step that it is in.
    pub step: Step,
    staging: PathBuf,
    target: PathBuf,
}

impl Volume {
    /// A new volume of the driver.
    ///
    /// # Errors
    /// It is not made in time.
    pub async fn create(
        controller: &ControllerClient<Channel>,
        kubelet: &Path,
        number: usize,
        block: bool,
    ) -> anyhow::Result<Self> {
        let size = 1 << 20;
        let request = csi::CreateVolumeRequest {
            name: format!("pvc-{number}"),
            capacity_range: Some(csi::CapacityRange { required_bytes: size, limit_bytes: 0 }),
            volume_capabilities: vec![used_as(block)],
            ..Default::default()
        };
        let end = Instant::now() + harness::wait::START;
        let made = insist(end, || {
            let request = request.clone();
            let mut controller = controller.clone();
            async move { controller.create_volume(request).await }
        });
        let id = made.await?.volume.context("no volume")?.volume_id;
        let staging = kubelet.join(format!("staging-{number}"));
        let target = kubelet.join(format!("pod-{number}/mount"));
        std::fs::create_dir_all(kubelet.join(format!("pod-{number}")))?;
        std::fs::create_dir_all(&staging)?;
        Ok(Self { id, block, size, open: false, step: Step::Idle, staging, target })
    }

    /// Stages it before `end`.
    ///
    /// # Errors
    /// It was not answered OK in time.
    pub async fn stage(&self, node: &NodeClient<Channel>, end: Instant) -> anyhow::Result<()> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: text(&self.staging),
            volume_capability: Some(used_as(self.block)),
            ..Default::default()
        };
        let staged = insist(end, || {
            let request = request.clone();
            let mut node = node.clone();
            async move { node.node_stage_volume(request).await }
        });
        staged.await.map(drop).with_context(|| format!("stage {}", self.id))
    }

    /// Publishes it before `end`.
    ///
    /// # Errors
    /// It was not answered OK in time.
    pub async fn publish(&self, node: &NodeClient<Channel>, end: Instant) -> anyhow::Result<()> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: text(&self.staging),
            target_path: text(&self.target),
            volume_capability: Some(used_as(self.block)),
            ..Default::default()
        };
        let published = insist(end, || {
            let request = request.clone();
            let mut node = node.clone();
            async move { node.node_publish_volume(request).await }
        });
        published.await.map(drop).with_context(|| format!("publish {}", self.id))
    }

    /// Unpublishes it before `end`.
    ///
    /// # Errors
    /// It was not answered OK in time.
    pub async fn unpublish(&self, node: &NodeClient<Channel>, end: Instant) -> anyhow::Result<()> {
        let volume_id = self.id.clone();
        let request =
            csi::NodeUnpublishVolumeRequest { volume_id, target_path: text(&self.target) };
        let unpublished = insist(end, || {
            let request = request.clone();
            let mut node = node.clone();
            async move { node.node_unpublish_volume(request).await }
        });
        unpublished.await.map(drop).with_context(|| format!("unpublish {}", self.id))
    }

    /// Unstages it before `end`.
    ///
    /// # Errors
    /// It was not answered OK in time.
    pub async fn unstage(&self, node: &NodeClient<Channel>, end: Instant) -> anyhow::Result<()> {
        let volume_id = self.id.clone();
        let staging_target_path = text(&self.staging);
        let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
        let unstaged = insist(end, || {
            let request = request.clone();
            let mut node = node.clone();
            async move { node.node_unstage_volume(request).await }
        });
        unstaged.await.map(drop).with_context(|| format!("unstage {}", self.id))
    }

    /// Has it grow to its size before `end`.
    ///
    /// # Errors
    /// It was not answered OK in time, or something was left to a kubelet.
    pub async fn grow(
        &self,
        controller: &ControllerClient<Channel>,
        end: Instant,
    ) -> anyhow::Result<()> {
        let range = csi::CapacityRange { required_bytes: self.size, limit_bytes: 0 };
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: self.id.clone(),
            capacity_range: Some(range),
            volume_capability: Some(used_as(self.block)),
            ..Default::default()
        };
        let grown = insist(end, || {
            let request = request.clone();
            let mut controller = controller.clone();
            async move { controller.controller_expand_volume(request).await }
        });
        let grown = grown.await.with_context(|| format!("expand {}", self.id))?;
        ensure!(!grown.node_expansion_required, "{}: a kubelet has to expand it", self.id);
        Ok(())
    }

    /// Deletes it before `end`.
    ///
    /// # Errors
    /// It was not answered OK in time.
    pub async fn delete(
        &self,
        controller: &ControllerClient<Channel>,
        end: Instant,
    ) -> anyhow::Result<()> {
        let volume_id = self.id.clone();
        let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
        let deleted = insist(end, || {
            let request = request.clone();
            let mut controller = controller.clone();
            async move { controller.delete_volume(request).await }
        });
        deleted.await.map(drop).with_context(|| format!("delete {}", self.id))
    }

    /// Writes its id into it.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, root: &Path) -> anyhow::Result<()> {
        use std::io::Write as _;
        let path = self.data(root)?;
        let mut file = std::fs::File::options().write(true).create(!self.block).open(&path)?;
        file.write_all(self.id.as_bytes())?;
        // What was not flushed is not there after a power cut.
        Ok(file.sync_all()?)
    }

    /// Checks that it is there, once, and has its own data and size.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, root: &Path, mounts: &[String]) -> anyhow::Result<()> {
        use std::io::{Read as _, Seek as _};
        let target = text(&self.target);
        let times = mounts.iter().filter(|mount| **mount == target).count();
        ensure!(times == 1, "{} is mounted {times} times at {target}", self.id);
        let mut file = std::fs::File::open(self.data(root)?)?;
        let mut found = vec![0; self.id.len()];
        file.read_exact(&mut found)?;
        ensure!(found == self.id.as_bytes(), "{} has the data of {found:?}", self.id);
        if self.block && !self.open {
            let size = i64::try_from(file.seek(std::io::SeekFrom::End(0))?)?;
            ensure!(size >= self.size, "{} has {size} of {} bytes", self.id, self.size);
        }
        Ok(())
    }

    /// Whether this is a path of the volume.
    pub fn is_at(&self, path: &str) -> bool {
        path == text(&self.staging) || path == text(&self.target)
    }

    /// Its data as the driver sees it.
    fn data(&self, root: &Path) -> anyhow::Result<PathBuf> {
        let target = root.join(self.target.strip_prefix("/")?);
        Ok(if self.block { target } else { target.join("id") })
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn used_as(block: bool) -> csi::VolumeCapability {
    let access_type = match block {
        true => AccessType::Block(BlockVolume {}),
        false => AccessType::Mount(MountVolume::default()),
    };
    let mode = Mode::SingleNodeWriter.into();
    csi::VolumeCapability { access_mode: Some(AccessMode { mode }), access_type: Some(access_type) }
}

/// Calls until the answer is OK. A code that a kubelet takes for final fails.
async fn insist<A, F>(end: Instant, call: impl Fn() -> F) -> anyhow::Result<A>
where
    F: Future<Output = Result<tonic::Response<A>, Status>>,
{
    let mut wait = FIRST;
    loop {
        let status = match tokio::time::timeout(CALL, call()).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded("the caller's own"),
        };
        let is_open =
            matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Aborted);
        // tonic's own word for a program that was killed.
        let is_lost = std::error::Error::source(&status).is_some();
        if !is_open && !is_lost && status.code() != Code::Cancelled {
            bail!("answered with a final code: {status}");
        }
        if Instant::now() >= end {
            bail!("not in time: {status}");
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST);
    }
}
