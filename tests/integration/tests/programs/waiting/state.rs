//! A state directory that is damaged, full, read-only or lost. csi-edge says so, serves, and gives
//! no wrong answer about a volume.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use drivers::testdriver::TestDriver;
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::{capability, controller, create, created, delete};
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, World};
use prost::Message as _;
use proto::csi;
use proto::host::publish::{Existing, publish};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tonic::{Code, Status};

/// A node whose csi-edge has a state directory with something in every file.
struct Site {
    world: World,
    volume: String,
    dir: TempDir,
}

impl Site {
    async fn new() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let config = dir.path().join("edge.toml");
        let registry = path(&dir, "registry");
        let text = format!(
            "node_expansion = \"edge\"\ndeny = [\"CreateSnapshot\"]\n\
             [discovery]\ndirectory = \"{registry}\"\nallow = [\"*.example\"]\n"
        );
        publish(&config, text.as_bytes(), 0o600, Existing::Keep)?;
        let [config, state] = ["edge.toml", "state"].map(|name| path(&dir, name));
        let more = ["--config", &config, "--state", &state];
        let world = World::with(TRANSPORTS[0], &[], &more).await?;
        let made = world.front().await?.call(&controller("CreateVolume"), &create("v")).await?;
        let volume = created(&made)?.volume_id;
        let site = Self { world, volume, dir };
        ensure!(site.lead("kept", false).await.is_empty(), "the volume is not staged");
        until("the scope is kept", || async {
            for name in ["scopes.json", "introductions.json", "linked", "format.json"] {
                ensure!(site.state().join(name).exists(), "{name}");
            }
            Ok(())
        })
        .await?;
        Ok(site)
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    async fn kill(&mut self) -> anyhow::Result<()> {
        self.world.edge.signal(Signal::KILL)?;
        self.world.edge.ended(STOP).await?;
        let front = self.world.stand.edge_front(NODE, DRIVER);
        std::fs::remove_file(front).or_else(missing)
    }

    /// Starts csi-edge, after a script in a mount namespace of its own if there is one.
    async fn start(&mut self, script: Option<&str>) -> anyhow::Result<()> {
        let [config, state] = ["edge.toml", "state"].map(|name| path(&self.dir, name));
        let url = self.world.url().to_owned();
        let more = ["--cloud", &url, "--config", &config, "--state", &state];
        let socket = self.world.stand.at("driver.sock");
        let stand = &mut self.world.stand;
        let drivers = [(DRIVER, socket.as_str())];
        let edge: Process = match script {
            Some(script) => stand.edge_in(script, NODE, &drivers, &more).await?,
            None => stand.edge_with(NODE, &drivers, &more).await?,
        };
        self.world.edge = edge;
        until("the node's front", || async { self.world.node_front().await.map(drop) }).await
    }

    /// A volume's life by the node's front; the refusals.
    async fn lead(&self, volume: &str, whole: bool) -> Vec<Status> {
        let mut refused = Vec::new();
        let volume_id = volume.to_owned();
        let stage = csi::NodeStageVolumeRequest {
            volume_id: volume_id.clone(),
            staging_target_path: "/staging".into(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        refused.extend(self.node("NodeStageVolume", stage).await);
        let publish = csi::NodePublishVolumeRequest {
            volume_id: volume_id.clone(),
            staging_target_path: "/staging".into(),
            target_path: "/target".into(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        refused.extend(self.node("NodePublishVolume", publish).await);
        if whole {
            let target_path = "/target".into();
            let request =
                csi::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path };
            refused.extend(self.node("NodeUnpublishVolume", request).await);
            let staging_target_path = "/staging".into();
            let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
            refused.extend(self.node("NodeUnstageVolume", request).await);
        }
        refused
    }

    /// The refusal of a call by the node's front.
    async fn node(&self, method: &str, request: impl prost::Message) -> Option<Status> {
        let calling = async {
            let front = self.world.node_front().await?;
            let path = format!("/csi.v1.Node/{method}");
            front.call(&path, &request.encode_to_vec()).await
        };
        let status = match calling.await {
            Ok(answer) => answer.status(),
            Err(error) => Status::internal(format!("{error:#}")),
        };
        (status.code() != Code::Ok).then_some(status)
    }

    /// How csi-cloud says that the volumes stand.
    async fn shown(&self) -> anyhow::Result<Value> {
        let admin = self.world.stand.at("cloud/_admin.sock");
        let command = ["volumes", "-o", "json", "--admin", &admin];
        Ok(serde_json::from_str(&self.world.stand.run("csi-cloud", &command).await?)?)
    }

    /// Has the volume grow by the cloud's front.
    async fn expand(&self) -> anyhow::Result<Status> {
        let range = csi::CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 };
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: self.volume.clone(),
            capacity_range: Some(range),
            ..Default::default()
        };
        let front: RawClient = self.world.front().await?;
        let path = controller("ControllerExpandVolume");
        Ok(front.call(&path, &request.encode_to_vec()).await?.status())
    }
}

fn path(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

fn missing(error: std::io::Error) -> anyhow::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error.into()) }
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let into = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &into)?;
        } else {
            std::fs::copy(entry.path(), into)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> anyhow::Result<()> {
    std::fs::remove_dir_all(path).or_else(|_| std::fs::remove_file(path)).or_else(missing)
}

/// Every way in which a file can be something else than what was written.
const DAMAGES: [&str; 4] = ["cut", "garbage", "directory", "fifo"];

/// Files that csi-edge has with other clouds and drivers.
const OTHERS: [(&str, &[u8]); 3] = [
    ("found.json", br#"{"node":"n1","drivers":[]}"#),
    ("metadata.redb", &[7; 18_000]),
    ("leader-epoch.json", br#"{"epoch":1}"#),
];

/// All files that a state directory can have, relative to it. Those that this one must have are
/// there.
fn files(good: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let names = ["scopes.json", "denied.json", "introductions.json", "linked", "format.json"];
    let mut files: Vec<_> = names.into_iter().chain(["direct/lock"]).map(PathBuf::from).collect();
    let record = std::fs::read_dir(good.join("node-volumes"))?.next().context("no record")??;
    files.push(Path::new("node-volumes").join(record.file_name()));
    for file in &files {
        ensure!(good.join(file).exists(), "{} is not kept", file.display());
    }
    files.extend(OTHERS.map(|(name, _)| PathBuf::from(name)));
    Ok(files)
}

fn damage(path: &Path, how: &str) -> anyhow::Result<()> {
    let text = match OTHERS.iter().find(|(name, _)| path.ends_with(name)) {
        Some((_, text)) => text.to_vec(),
        None => std::fs::read(path).unwrap_or_default(),
    };
    remove(path)?;
    match how {
        "cut" => publish(path, &text[..text.len() / 2], 0o600, Existing::Keep)?,
        "garbage" => publish(path, &[0xff; 100], 0o600, Existing::Keep)?,
        "directory" => std::fs::create_dir(path)?,
        _ => mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0)?,
    }
    Ok(())
}

#[tokio::test]
async fn a_damaged_file_hinders_no_pod_without_the_cloud() -> anyhow::Result<()> {
    let mut site = Site::new().await?;
    site.kill().await?;
    let good = site.dir.path().join("good");
    copy(&site.state(), &good)?;
    // A power cut of the cloud's site, too.
    site.world.cloud.process.signal(Signal::KILL)?;
    site.world.cloud.process.ended(STOP).await?;
    for file in files(&good)? {
        for how in DAMAGES {
            remove(&site.state())?;
            copy(&good, &site.state())?;
            damage(&site.state().join(&file), how)?;
            let before = site.world.edge.settled_log().await.len();
            site.start(None).await?;
            let what = format!("{how} {}", file.display());
            let log = site.world.edge.settled_log().await;
            let log = log.get(before..).unwrap_or_default();
            let told = log.contains(&file.display().to_string());
            // Of these any content will do; `linked` may be another version's.
            let any = ["denied.json", "direct/lock", "linked"];
            let may_be = any.iter().any(|name| file.ends_with(name));
            ensure!(told || may_be, "{what} is not told: {log}");
            for volume in ["kept", "other"] {
                let refused = site.lead(volume, true).await;
                ensure!(refused.is_empty(), "{what}: {refused:?}");
            }
            site.kill().await?;
        }
    }
    // Nothing tells which volumes are direct ones, so nothing is answered finally.
    remove(&site.state().join("direct"))?;
    publish(&site.state().join("direct"), b"", 0o600, Existing::Keep)?;
    site.start(None).await?;
    let refused = site.lead("kept", true).await;
    ensure!(refused.len() == 4, "{refused:?}");
    ensure!(refused.iter().all(|status| status.code() == Code::Unavailable), "{refused:?}");
    site.kill().await
}

#[tokio::test]
async fn a_machine_that_is_replaced_is_seen_and_answers_for_what_it_has() -> anyhow::Result<()> {
    let mut site = Site::new().await?;
    site.kill().await?;
    remove(&site.state())?;
    let driver = TestDriver::new(DRIVER, NODE);
    // Beside the first one's volumes.
    driver.count_from(1_000);
    let socket = site.world.stand.at("driver.sock");
    let old = std::mem::replace(&mut site.world.serving, driver.serve(socket.as_ref())?);
    drop(old);
    site.world.driver = driver;
    site.start(None).await?;
    site.world.edge.line_starting("linked ", START).await?;
    site.world.edge.logged("nothing is kept in the state directory").await?;
    until("the driver's own answer, which does not have it", || async {
        let status = site.expand().await?;
        ensure!(status.code() == Code::NotFound, "{status}");
        Ok(())
    })
    .await?;
    until("csi-cloud shows it as absent", || async {
        let shown = site.shown().await?;
        ensure!(shown[0]["state"] == "absent", "{shown}");
        Ok(())
    })
    .await?;
    ensure!(site.lead("new", true).await.is_empty(), "the machine is not used");
    let front = site.world.front().await?;
    let answer = front.call(&controller("DeleteVolume"), &delete(&site.volume)).await?;
    ensure!(answer.code() == Code::Ok, "its claim could never go: {}", answer.status());
    site.world.stop().await
}

/// Whether this tier runs: a mount namespace takes root.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn a_disk_that_takes_nothing_is_told_and_expands_nothing() -> anyhow::Result<()> {
    if !is_root() {
        return Ok(());
    }
    let mut site = Site::new().await?;
    let state = site.state().display().to_string();
    let good = site.dir.path().join("good").display().to_string();
    let read_only = format!("mount --bind {state} {state} && mount -o remount,ro,bind {state}");
    let full = format!(
        "mount -t tmpfs -o size=64k tmpfs {state} && cp -a {good}/. {state}/ && \
         (dd if=/dev/zero of={state}/fill bs=512 2>/dev/null || true)"
    );
    copy(&site.state(), good.as_ref())?;
    for (script, begins) in [(read_only, false), (full, true)] {
        site.kill().await?;
        site.start(Some(&script)).await?;
        site.world.edge.line_starting("linked ", START).await?;
        site.world.edge.logged("the state directory cannot be used").await?;
        let status = site.expand().await?;
        ensure!(status.code() == Code::Unavailable, "{script}: {status}");
        ensure!(status.message().contains("--state"), "{script}: {status}");
        // What csi-edge could not replace it has removed, which makes a little room on a full disk.
        let begun = !site.world.driver.calls_of("ControllerExpandVolume").is_empty();
        ensure!(begins || !begun, "{script}: it was begun");
        for volume in ["kept", "other"] {
            let refused = site.lead(volume, true).await;
            ensure!(refused.is_empty(), "{script}: {refused:?}");
        }
    }
    site.kill().await?;
    site.start(None).await?;
    site.world.edge.line_starting("linked ", START).await?;
    until("the expansion, on a disk that is mended", || async {
        let status = site.expand().await?;
        ensure!(status.code() == Code::Ok, "{status}");
        Ok(())
    })
    .await?;
    site.world.stop().await
}

#[tokio::test]
async fn nobody_else_reads_what_is_kept() -> anyhow::Result<()> {
    let site = Site::new().await?;
    for entry in std::fs::read_dir(site.state().join("node-volumes"))? {
        let mode = Permissions::mode(&entry?.metadata()?.permissions()) & 0o777;
        ensure!(mode == 0o600, "{mode:o}");
    }
    site.world.stop().await
}
