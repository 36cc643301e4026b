//! The disk of csi-cloud's store is full. Nothing is answered that is not durable, the links stay,
//! and csi-cloud ends as soon as there is room, so that it is started again.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use harness::http::get;
use harness::requests::{controller, create, created};
use harness::stand::Stand;
use harness::wait::{STOP, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, World, ready};
use tonic::Code;

/// Room for a store of a few records.
const SIZE: &str = "size=6m";

/// A small disk of its own.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&at)?;
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", SIZE, "store"]).arg(&at).status()?;
        ensure!(mounted.success(), "a tmpfs cannot be mounted: {mounted}");
        Ok(Self(at))
    }

    /// Takes all that is left.
    fn fill(&self) -> anyhow::Result<()> {
        let full = File::create(self.filler())?.write_all(&vec![1; 16 << 20]);
        ensure!(full.is_err(), "the disk is larger than that");
        Ok(())
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It goes with the machine otherwise.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_ends_no_link_and_csi_cloud_ends_when_it_has_room() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let mut stand = Stand::new().await?;
    stand.log("info,cloud=debug");
    let disk = Disk::mount(stand.at("disk").into())?;
    let store = format!("--store=file:{}", stand.at("disk/cloud.redb"));
    let more = ["--http", "127.0.0.1:0", &store];
    let mut world = World::on(stand, TRANSPORTS[0], &more).await?;
    let http = world.cloud.http.clone().context("no address")?;
    let front = world.front().await?;
    let kept = front.call(&controller("CreateVolume"), &create("kept")).await?;
    ensure!(kept.code() == Code::Ok, "{}", kept.status());

    disk.fill()?;
    let mut number = 0;
    until("a commit fails", || {
        number += 1;
        let request = create(&format!("many-{number}"));
        let front = &front;
        async move {
            let answer = front.call(&controller("CreateVolume"), &request).await?;
            ensure!(answer.code() == Code::Unavailable, "{}", answer.status());
            Ok(())
        }
    })
    .await?;
    let said = get(&http, "/readyz").await?;
    ensure!(said.contains(" 503 ") && said.contains("takes no more changes"), "{said}");
    ensure!(get(&http, "/livez").await?.contains(" 200 "), "a restart does not help");
    until("two trials of a disk that is still full", || async {
        let log = String::from_utf8_lossy(&world.cloud.process.log()).into_owned();
        let trials = log.matches("the disk of the store takes nothing yet").count();
        ensure!(trials >= 2, "{trials}");
        Ok(())
    })
    .await?;
    ensure!(!world.cloud.process.has_ended()?, "{}", world.cloud.process.log_tail());
    let admin = world.stand.at("cloud/_admin.sock");
    let nodes = world.stand.run("csi-cloud", &["nodes", "--admin", &admin, "-o", "json"]).await?;
    ensure!(nodes.contains("\"linked\""), "{nodes}");

    std::fs::remove_file(disk.filler())?;
    let ended = world.cloud.process.ended(STOP).await?;
    ensure!(ended.code() == Some(75), "{ended}: {}", world.cloud.process.log_tail());
    let url = world.url().to_owned();
    world.cloud = world.stand.cloud(&[&url], &[DRIVER], &more).await?;
    world.edge.line_starting(&format!("linked {url} as {NODE}"), STOP).await?;
    let front = world.front().await?;
    until("csi-cloud learns of the driver", || ready(&front)).await?;
    let more = front.call(&controller("CreateVolume"), &create("more")).await?;
    ensure!(more.code() == Code::Ok, "{}", more.status());
    // A create that the driver got has its answer by its name, and is not made once more.
    let again = front.call(&controller("CreateVolume"), &create("kept")).await?;
    ensure!(created(&again)?.volume_id == created(&kept)?.volume_id);
    ensure!(!disk.0.join("cloud.redb.rewrite").exists());
    world.stop().await
}
