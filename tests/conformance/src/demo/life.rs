//! The demo's steps: a volume's whole life at each of three nodes, each step timed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::node_client::NodeClient;
use proto::csi;
use tokio::time::Instant;
use tonic::transport::Channel;

use harness::requests::capability;
use harness::wait::until;

/// The data written through the published path.
const TEXT: &str = "written at the edge";

/// One line of the demo's table.
pub struct Step {
    what: String,
    node: String,
    took: Duration,
    outcome: String,
}

/// The table, printed as it grows, since a step may take long.
#[derive(Default)]
pub struct Table(Vec<Step>);

impl Table {
    /// Runs a step and prints its line.
    ///
    /// # Errors
    /// The step's, with its name.
    pub async fn step<T>(
        &mut self,
        what: &str,
        node: &str,
        work: impl Future<Output = anyhow::Result<(T, String)>>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        let (value, outcome) = work.await.with_context(|| format!("{what} {node}"))?;
        let step = Step { what: what.into(), node: node.into(), took: begun.elapsed(), outcome };
        if self.0.is_empty() {
            println!("{:26}  {:6}  {:>9}  outcome", "step", "node", "ms");
        }
        let ms = step.took.as_secs_f64() * 1000.0;
        println!("{:26}  {:6}  {ms:9.1}  {}", step.what, step.node, step.outcome);
        self.0.push(step);
        Ok(value)
    }

    /// How many steps there were, and how long they took together.
    pub fn total(&self) -> (usize, Duration) {
        (self.0.len(), self.0.iter().map(|step| step.took).sum())
    }
}

/// One volume at one node.
pub struct Life {
    /// The cloud's front.
    pub cloud: ControllerClient<Channel>,
    /// The node's front.
    pub node: NodeClient<Channel>,
    /// The node's name.
    pub name: String,
    /// Where staging and target paths are.
    pub mounts: PathBuf,
    /// The root directory as the driver sees it, in whose mount namespace the volume is.
    pub root: PathBuf,
    volume_id: String,
    context: std::collections::HashMap<String, String>,
    published: std::collections::HashMap<String, String>,
}

impl Life {
    /// A life before its first call.
    pub fn new(cloud: Channel, node: Channel, name: &str, mounts: PathBuf, root: PathBuf) -> Self {
        let cloud = ControllerClient::new(cloud);
        let node = NodeClient::new(node);
        let name = name.to_owned();
        Self {
            cloud,
            node,
            name,
            mounts,
            root,
            volume_id: String::new(),
            context: Default::default(),
            published: Default::default(),
        }
    }

    fn staging(&self) -> String {
        self.mounts.join("staging").display().to_string()
    }

    fn target(&self) -> String {
        self.mounts.join("target").display().to_string()
    }

    /// From nothing to a published path.
    ///
    /// # Errors
    /// The first step that fails.
    pub async fn begin(&mut self, table: &mut Table) -> anyhow::Result<()> {
        let name = self.name.clone();
        table.step("CreateVolume", &name, self.create()).await?;
        table.step("ControllerPublishVolume", &name, self.attach()).await?;
        table.step("NodeStageVolume", &name, self.stage()).await?;
        table.step("NodePublishVolume", &name, self.publish()).await?;
        table.step("write and read a file", &name, self.write_and_read()).await
    }

    /// From a published path to nothing.
    ///
    /// # Errors
    /// The first step that fails.
    pub async fn end(&mut self, table: &mut Table) -> anyhow::Result<()> {
        let name = self.name.clone();
        table.step("NodeUnpublishVolume", &name, self.unpublish()).await?;
        table.step("NodeUnstageVolume", &name, self.unstage()).await?;
        table.step("ControllerUnpublishVolume", &name, self.detach()).await?;
        table.step("DeleteVolume", &name, self.delete()).await
    }

    async fn create(&mut self) -> anyhow::Result<((), String)> {
        // As external-provisioner does for a class with WaitForFirstConsumer.
        let info = self.node.node_get_info(csi::NodeGetInfoRequest::default()).await?.into_inner();
        let here: Vec<_> = info.accessible_topology.into_iter().collect();
        let request = csi::CreateVolumeRequest {
            name: format!("pvc-{}", self.name),
            capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
            volume_capabilities: vec![capability()],
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: here.clone(),
                preferred: here,
            }),
            ..Default::default()
        };
        // Sent again while it is UNAVAILABLE, also as external-provisioner does: the edge may just
        // be telling the cloud of its driver.
        let creating =
            || async { Ok(self.cloud.clone().create_volume(request.clone()).await?.into_inner()) };
        let answer = until("the volume is created", creating).await?;
        let volume = answer.volume.context("the answer has no volume")?;
        (self.volume_id, self.context) = (volume.volume_id.clone(), volume.volume_context);
        Ok(((), format!("volume {}", volume.volume_id)))
    }

    async fn attach(&mut self) -> anyhow::Result<((), String)> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: self.volume_id.clone(),
            node_id: self.name.clone(),
            volume_capability: Some(capability()),
            volume_context: self.context.clone(),
            ..Default::default()
        };
        self.published =
            self.cloud.controller_publish_volume(request).await?.into_inner().publish_context;
        Ok(((), "attached".into()))
    }

    async fn stage(&mut self) -> anyhow::Result<((), String)> {
        // The kubelet makes the directory.
        std::fs::create_dir_all(self.staging())?;
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.volume_id.clone(),
            publish_context: self.published.clone(),
            staging_target_path: self.staging(),
            volume_capability: Some(capability()),
            volume_context: self.context.clone(),
            ..Default::default()
        };
        self.node.node_stage_volume(request).await?;
        Ok(((), "staged".into()))
    }

    async fn publish(&mut self) -> anyhow::Result<((), String)> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: self.volume_id.clone(),
            publish_context: self.published.clone(),
            staging_target_path: self.staging(),
            target_path: self.target(),
            volume_capability: Some(capability()),
            volume_context: self.context.clone(),
            ..Default::default()
        };
        self.node.node_publish_volume(request).await?;
        Ok(((), "mounted".into()))
    }

    /// Through the driver's root, because the mount is in its namespace.
    async fn write_and_read(&mut self) -> anyhow::Result<((), String)> {
        let target = self.target();
        let below = Path::new(&target).strip_prefix("/")?;
        let file = self.root.join(below).join("hello.txt");
        tokio::fs::write(&file, TEXT)
            .await
            .with_context(|| format!("cannot write {}", file.display()))?;
        let read = tokio::fs::read_to_string(&file).await?;
        ensure!(read == TEXT, "read {read:?}");
        // Outside of the driver's namespace the directory is empty: what was written to is the
        // mount.
        ensure!(
            !Path::new(&target).join("hello.txt").exists(),
            "{target} is no mount, but a directory"
        );
        Ok(((), format!("read back {TEXT:?}")))
    }

    async fn unpublish(&mut self) -> anyhow::Result<((), String)> {
        let volume_id = self.volume_id.clone();
        let target_path = self.target();
        self.node
            .node_unpublish_volume(csi::NodeUnpublishVolumeRequest { volume_id, target_path })
            .await?;
        Ok(((), "unmounted".into()))
    }

    async fn unstage(&mut self) -> anyhow::Result<((), String)> {
        let volume_id = self.volume_id.clone();
        let staging_target_path = self.staging();
        self.node
            .node_unstage_volume(csi::NodeUnstageVolumeRequest { volume_id, staging_target_path })
            .await?;
        Ok(((), "unstaged".into()))
    }

    async fn detach(&mut self) -> anyhow::Result<((), String)> {
        let volume_id = self.volume_id.clone();
        let node_id = self.name.clone();
        let request =
            csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        self.cloud.controller_unpublish_volume(request).await?;
        Ok(((), "detached".into()))
    }

    async fn delete(&mut self) -> anyhow::Result<((), String)> {
        let volume_id = self.volume_id.clone();
        self.cloud
            .delete_volume(csi::DeleteVolumeRequest { volume_id, ..Default::default() })
            .await?;
        Ok(((), "gone".into()))
    }

    /// A call for this node's volume while its edge is away: what the caller sees, and how soon.
    ///
    /// # Errors
    /// The call succeeds, or is refused with another code.
    pub async fn refused(&mut self) -> anyhow::Result<((), String)> {
        let volume_id = self.volume_id.clone();
        let request = csi::ControllerGetVolumeRequest { volume_id };
        let Err(status) = self.cloud.controller_get_volume(request).await else {
            anyhow::bail!("it was carried out");
        };
        ensure!(status.code() == tonic::Code::Unavailable, "{status}");
        Ok(((), format!("UNAVAILABLE: {}", status.message())))
    }
}
