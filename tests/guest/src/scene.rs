//! csi-cloud, csi-edge and hostdir as processes, and a kubelet's calls for volumes that are handed
//! over directly.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::identity_client::IdentityClient;
use drivers::grpc::node_client::NodeClient;
use proto::csi;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use tonic::Status;
use tonic::transport::Channel;

use harness::process::Process;
use harness::stand::{Cloud, Stand, channel};
use harness::wait::{START, STOP, until};

/// The driver.
pub const DRIVER: &str = "hostdir.edge-csi.io";
const NODE: &str = "n1";
const MIB: i64 = 1024 * 1024;

/// All programs, up and linked. After a failure they are dropped in this order, so that nobody
/// writes into the directory, which is last.
pub struct Scene {
    cloud: Cloud,
    driver: Option<Process>,
    edge: Option<Process>,
    _clean: Clean,
    /// The directory of everything.
    pub stand: Stand,
}

/// Removes the mounts and loop devices that a failed test has left.
pub(crate) struct Clean(PathBuf);

impl Clean {
    /// The directory that the scene works below.
    pub(crate) fn of(below: &Path) -> anyhow::Result<Self> {
        Ok(Self(below.canonicalize()?))
    }
}

impl Drop for Clean {
    fn drop(&mut self) {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().rev().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| Path::new(point).starts_with(&self.0)) {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
        for (device, _) in loops(&self.0).unwrap_or_default() {
            let _ = Command::new("losetup").args(["-d", &device]).output();
        }
    }
}

/// Removes a pod's directory, as a kubelet does when nothing is mounted below it any more.
///
/// # Errors
/// The system's.
pub fn remove_pod(pod: &Path) -> anyhow::Result<()> {
    drop(Clean::of(pod)?);
    Ok(std::fs::remove_dir_all(pod)?)
}

/// Loop devices of files below a directory, and those files.
///
/// # Errors
/// losetup does not say.
pub(crate) fn loops(below: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let listed = Command::new("losetup").args(["-n", "-O", "NAME,BACK-FILE"]).output();
    let listed = listed.context("losetup")?;
    let error = String::from_utf8_lossy(&listed.stderr);
    ensure!(listed.status.success(), "losetup: {error}");
    let listed = String::from_utf8_lossy(&listed.stdout);
    let pair = |line: &str| {
        let (device, file) = line.split_once(' ')?;
        Some((device.to_owned(), PathBuf::from(file.trim().trim_end_matches(" (deleted)"))))
    };
    Ok(listed.lines().filter_map(pair).filter(|(_, file)| file.starts_with(below)).collect())
}

/// A volume, as Kubernetes knows it.
#[derive(Clone)]
pub struct PodVolume {
    /// Its id.
    pub id: String,
    /// Its PersistentVolume's attributes.
    pub context: HashMap<String, String>,
    /// The access that the pod requests.
    pub capability: csi::VolumeCapability,
}

/// Where a volume is staged, at whichever node; it is made.
pub(crate) fn staging(stand: &Stand, volume: &PodVolume) -> anyhow::Result<String> {
    let staging = stand.dir().join("staging").join(&volume.id);
    std::fs::create_dir_all(&staging)?;
    Ok(staging.display().to_string())
}

/// A request for a volume of a class, with its size in MiB.
pub(crate) fn create_request(
    name: &str,
    class: &[(&str, &str)],
    capability: &csi::VolumeCapability,
    mib: i64,
) -> csi::CreateVolumeRequest {
    let parameters = class.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    csi::CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(csi::CapacityRange { required_bytes: mib * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability.clone()],
        parameters: parameters.collect(),
        ..Default::default()
    }
}

/// A request to stage a volume where [`staging`] says.
pub(crate) fn stage_request(
    stand: &Stand,
    volume: &PodVolume,
) -> anyhow::Result<csi::NodeStageVolumeRequest> {
    Ok(csi::NodeStageVolumeRequest {
        volume_id: volume.id.clone(),
        staging_target_path: staging(stand, volume)?,
        volume_capability: Some(volume.capability.clone()),
        volume_context: volume.context.clone(),
        ..Default::default()
    })
}

/// A request to publish a staged volume at a path.
pub(crate) fn publish_request(
    stand: &Stand,
    volume: &PodVolume,
    target_path: String,
) -> anyhow::Result<csi::NodePublishVolumeRequest> {
    Ok(csi::NodePublishVolumeRequest {
        volume_id: volume.id.clone(),
        staging_target_path: staging(stand, volume)?,
        target_path,
        volume_capability: Some(volume.capability.clone()),
        volume_context: volume.context.clone(),
        ..Default::default()
    })
}

/// A capability of a Filesystem claim.
pub fn mount(mode: Mode, fs_type: &str, group: &str) -> csi::VolumeCapability {
    let mount = MountVolume {
        fs_type: fs_type.into(),
        mount_flags: vec!["noatime".into()],
        volume_mount_group: group.into(),
    };
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: mode as i32 }),
    }
}

impl Scene {
    /// A scene whose driver has this scope, `node` or `shared`.
    ///
    /// # Errors
    /// A program does not start; the error holds its log.
    pub async fn new(scope: &str) -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let config = stand.at("cloud.toml");
        let text = harness::world::section(DRIVER, scope);
        proto::host::publish::publish(
            config.as_ref(),
            text.as_bytes(),
            0o600,
            proto::host::publish::Existing::Keep,
        )?;
        let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &["--config", &config]).await?;
        // The kubelet's directory is often a symlink, and the runtime sees another path than the
        // kubelet names.
        std::fs::create_dir_all(stand.dir().join("disk/pods"))?;
        std::os::unix::fs::symlink(stand.dir().join("disk/pods"), stand.dir().join("pods"))?;
        let clean = Clean::of(stand.dir())?;
        let mut scene = Self { cloud, driver: None, edge: None, _clean: clean, stand };
        scene.start_driver().await?;
        scene.start_edge().await?;
        let identity = IdentityClient::new(channel(&scene.stand.cloud_front(DRIVER)).await?);
        until("the cloud learns of the driver", || async {
            let answer = identity.clone().probe(csi::ProbeRequest::default()).await?.into_inner();
            ensure!(answer.ready == Some(true), "not ready");
            Ok(())
        })
        .await?;
        Ok(scene)
    }

    async fn start_driver(&mut self) -> anyhow::Result<()> {
        let mut command = self.stand.program("hostdir")?;
        let endpoint = format!("unix://{}", self.stand.at("driver.sock"));
        command.args([
            "--endpoint",
            &endpoint,
            "--node-id",
            NODE,
            "--state",
            &self.stand.at("hostdir"),
        ]);
        let mut driver = Process::start("hostdir", command, self.stand.dir())?;
        driver.line_starting("ready", START).await?;
        self.driver = Some(driver);
        Ok(())
    }

    /// Starts csi-edge, after it was killed.
    ///
    /// # Errors
    /// It does not link; the error holds its log.
    pub async fn start_edge(&mut self) -> anyhow::Result<()> {
        let socket = self.stand.at("driver.sock");
        let state = self.stand.at("edge-state");
        let root = self.root().display().to_string();
        let url = self.cloud.urls.first().context("no listener")?.clone();
        let sandboxes = self.sandboxes().display().to_string();
        let pods = self.stand.at("pods");
        let mut more = vec![
            "--cloud",
            &url,
            "--state",
            &state,
            "--direct-volumes",
            &root,
            "--sandboxes",
            &sandboxes,
            "--targets",
            &pods,
        ];
        // A test may write one.
        let config = self.stand.at("edge.toml");
        if Path::new(&config).exists() {
            more.extend(["--config", &config]);
        }
        let mut edge = self.stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
        edge.line_starting("linked ", START).await?;
        self.edge = Some(edge);
        Ok(())
    }

    /// Kills csi-edge.
    ///
    /// # Errors
    /// The system's.
    pub async fn kill_edge(&mut self) -> anyhow::Result<()> {
        self.edge.take().context("csi-edge does not run")?.kill().await
    }

    /// Where volumes are published.
    pub fn root(&self) -> PathBuf {
        self.stand.dir().join("run/shared/direct-volumes")
    }

    /// Where runtimes of our own contract have their sandboxes.
    pub fn sandboxes(&self) -> PathBuf {
        self.stand.dir().join("run/sandboxes")
    }

    /// The record that csi-edge must keep.
    pub fn state(&self) -> PathBuf {
        self.stand.dir().join("edge-state/direct")
    }

    /// The target of a pod; its parent is made, as the kubelet does.
    ///
    /// # Errors
    /// The system's.
    pub fn target(&self, pod: &str) -> anyhow::Result<PathBuf> {
        let parent = self.stand.dir().join("pods").join(pod);
        std::fs::create_dir_all(&parent)?;
        Ok(parent.join("mount"))
    }

    /// The target of a pod of a kubelet, in its directory as it is there.
    ///
    /// # Errors
    /// The system's.
    pub fn kubelets_target(&self, pod: &str) -> anyhow::Result<PathBuf> {
        let parent = self.stand.dir().join("pods").join(pod).join("volumes/kubernetes.io~csi/pv");
        std::fs::create_dir_all(&parent)?;
        Ok(parent.join("mount"))
    }

    /// The cloud's front.
    ///
    /// # Errors
    /// Nobody serves it.
    pub async fn controller(&self) -> anyhow::Result<ControllerClient<Channel>> {
        Ok(ControllerClient::new(channel(&self.stand.cloud_front(DRIVER)).await?))
    }

    /// The node's front.
    ///
    /// # Errors
    /// Nobody serves it.
    pub async fn node(&self) -> anyhow::Result<NodeClient<Channel>> {
        Ok(NodeClient::new(channel(&self.stand.edge_front(NODE, DRIVER)).await?))
    }

    /// Asks for a volume of a class; the driver is just being learned of.
    ///
    /// # Errors
    /// It is refused.
    pub async fn create(
        &self,
        name: &str,
        class: &[(&str, &str)],
        capability: csi::VolumeCapability,
    ) -> Result<PodVolume, Status> {
        let request = create_request(name, class, &capability, 320);
        let mut controller =
            self.controller().await.map_err(|error| Status::internal(error.to_string()))?;
        let volume =
            controller.create_volume(request).await?.into_inner().volume.unwrap_or_default();
        Ok(PodVolume { id: volume.volume_id, context: volume.volume_context, capability })
    }

    /// Attaches a volume and stages it.
    ///
    /// # Errors
    /// It is refused.
    pub async fn stage(&self, volume: &PodVolume) -> anyhow::Result<()> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: NODE.into(),
            volume_capability: Some(volume.capability.clone()),
            volume_context: volume.context.clone(),
            ..Default::default()
        };
        self.controller().await?.controller_publish_volume(request).await?;
        let request = stage_request(&self.stand, volume)?;
        self.node().await?.node_stage_volume(request).await?;
        Ok(())
    }

    /// Publishes a volume to a pod.
    ///
    /// # Errors
    /// The call's.
    pub async fn publish(&self, volume: &PodVolume, target: &Path) -> anyhow::Result<()> {
        let target = target.display().to_string();
        let request = publish_request(&self.stand, volume, target)?;
        self.node().await?.node_publish_volume(request).await?;
        Ok(())
    }

    /// Takes a volume from a pod.
    ///
    /// # Errors
    /// The call's.
    pub async fn unpublish(&self, volume: &PodVolume, target: &Path) -> anyhow::Result<()> {
        let volume_id = volume.id.clone();
        let target_path = target.display().to_string();
        let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
        self.node().await?.node_unpublish_volume(request).await?;
        Ok(())
    }

    /// What csi-cloud says of the node.
    ///
    /// # Errors
    /// It cannot be asked.
    pub async fn node_view(&self) -> anyhow::Result<serde_json::Value> {
        let admin = self.stand.at("cloud/_admin.sock");
        let said = self.stand.run("csi-cloud", &["nodes", "-o", "json", "--admin", &admin]).await?;
        let nodes: serde_json::Value = serde_json::from_str(&said)?;
        nodes.get(0).cloned().with_context(|| format!("no node in {said}"))
    }

    /// Grows a volume in the cloud.
    ///
    /// # Errors
    /// The call's.
    pub async fn grow(&self, volume: &PodVolume, mib: i64) -> anyhow::Result<()> {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume.id.clone(),
            capacity_range: Some(csi::CapacityRange { required_bytes: mib * MIB, limit_bytes: 0 }),
            volume_capability: Some(volume.capability.clone()),
            ..Default::default()
        };
        let answer = self.controller().await?.controller_expand_volume(request).await?.into_inner();
        ensure!(answer.node_expansion_required, "the node has nothing to do");
        Ok(())
    }

    /// Grows a volume at its node, by the kubelet's path, and returns its size in MiB.
    ///
    /// # Errors
    /// The call's.
    pub async fn grow_at_node(
        &self,
        volume: &PodVolume,
        path: Option<&Path>,
        mib: i64,
    ) -> Result<i64, Status> {
        let local = |error: anyhow::Error| Status::internal(error.to_string());
        let staging = staging(&self.stand, volume).map_err(local)?;
        let request = csi::NodeExpandVolumeRequest {
            volume_id: volume.id.clone(),
            volume_path: path.map_or_else(|| staging.clone(), |path| path.display().to_string()),
            capacity_range: Some(csi::CapacityRange { required_bytes: mib * MIB, limit_bytes: 0 }),
            staging_target_path: staging,
            volume_capability: Some(volume.capability.clone()),
            ..Default::default()
        };
        let mut node = self.node().await.map_err(local)?;
        Ok(node.node_expand_volume(request).await?.into_inner().capacity_bytes / MIB)
    }

    /// The volume's bytes by NodeGetVolumeStats: total and used.
    ///
    /// # Errors
    /// The call's.
    pub async fn stats(&self, volume: &PodVolume, target: &Path) -> Result<(i64, i64), Status> {
        let local = |error: anyhow::Error| Status::internal(error.to_string());
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: volume.id.clone(),
            volume_path: target.display().to_string(),
            ..Default::default()
        };
        let mut node = self.node().await.map_err(local)?;
        let usage = node.node_get_volume_stats(request).await?.into_inner().usage;
        let bytes = usage.iter().find(|usage| usage.unit == csi::volume_usage::Unit::Bytes as i32);
        bytes.map(|usage| (usage.total, usage.used)).ok_or_else(|| Status::internal("no bytes"))
    }

    /// Unstages, detaches and deletes a volume.
    ///
    /// # Errors
    /// The first call's that fails.
    pub async fn delete(&self, volume: &PodVolume) -> anyhow::Result<()> {
        let volume_id = volume.id.clone();
        let staging_target_path = staging(&self.stand, volume)?;
        let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
        self.node().await?.node_unstage_volume(request).await?;
        let volume_id = volume.id.clone();
        let node_id = NODE.to_owned();
        let request =
            csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        self.controller().await?.controller_unpublish_volume(request).await?;
        let volume_id = volume.id.clone();
        let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
        self.controller().await?.delete_volume(request).await?;
        Ok(())
    }

    /// The loop devices of the driver's images.
    ///
    /// # Errors
    /// losetup does not say.
    pub fn devices(&self) -> anyhow::Result<Vec<(String, PathBuf)>> {
        loops(&self.stand.dir().canonicalize()?)
    }

    /// Fails if the host has mounted the file system of one of the driver's devices.
    ///
    /// # Errors
    /// It has, or the driver has no device.
    pub fn host_has_mounted_none(&self) -> anyhow::Result<()> {
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        let devices = self.devices()?;
        ensure!(!devices.is_empty(), "the driver has no device");
        for (device, _) in devices {
            let source =
                |line: &&str| line.split(" - ").nth(1).is_some_and(|end| end.contains(&device));
            ensure!(!table.lines().any(|line| source(&line)), "{device} is mounted on the host");
        }
        Ok(())
    }

    /// Ends everything in order.
    ///
    /// # Errors
    /// A program does not end well.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let left = self.devices()?;
        ensure!(left.is_empty(), "loop devices were left behind: {left:?}");
        for process in [self.edge.take(), self.driver.take()].into_iter().flatten() {
            process.stop(STOP).await?;
        }
        self.cloud.process.stop(STOP).await
    }
}
