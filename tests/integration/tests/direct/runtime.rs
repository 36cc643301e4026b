//! Statistics and growth of direct volumes with the real programs and a real block driver. The
//! guests are shims that answer as a runtime's do. They need root and loop devices: `make direct`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use base64::Engine as _;
use edge_direct::admin::volumes;
use edge_direct::admin::volumes::Standing;
use edge_direct::runtimes::{PATIENCE, Roots, Runtimes};
use guest::contract::Runtime;
use guest::kubelet::Expansion;
use guest::scene::{Scene, mount};
use guest::shim::{Dialect, GuestFileSystem as Usage, Manner, Shim};
use proto::csi::volume_capability::access_mode::Mode;
use proto::host::publish::{Existing, publish};
use serde_json::Value;
use tonic::{Code, Status};

use super::handover::Handover;

const MIB: u64 = 1 << 20;
/// A volume with ext4 that is published to a pod, and the pod's target.
async fn published() -> anyhow::Result<(Handover, PathBuf)> {
    let capability = mount(Mode::SingleNodeSingleWriter, "ext4", "");
    let at = Handover::of("node", capability).await?;
    let target = at.scene.target("pod-1")?;
    at.publish(&target).await?;
    Ok((at, target))
}

/// The entry of a target, and the device in it.
fn entry(scene: &Scene, target: &Path) -> anyhow::Result<(PathBuf, String)> {
    let target = target.canonicalize()?;
    let name =
        base64::engine::general_purpose::URL_SAFE.encode(target.as_os_str().as_encoded_bytes());
    let entry = scene.root().join(name);
    let info: Value = serde_json::from_slice(&std::fs::read(entry.join("mountInfo.json"))?)?;
    Ok((entry, info["device"].as_str().context("no device")?.to_owned()))
}

/// A shim in whose sandbox the volume is.
pub(super) fn shim(scene: &Scene, target: &Path, grows: bool) -> anyhow::Result<Shim> {
    let (entry, device) = entry(scene, target)?;
    std::fs::File::create(entry.join("sandbox-1"))?;
    let shim = Shim::start(&scene.sandboxes(), "sandbox-1", Dialect::Reference)?;
    shim.has(
        device,
        Usage { total: 300 * MIB, used: 10 * MIB, inodes: 100, inodes_used: 11, grows },
    );
    Ok(shim)
}

/// csi-edge's own command, and what it wrote as JSON.
pub(super) async fn command(scene: &Scene, words: &[&str]) -> anyhow::Result<Value> {
    let mut command = scene.stand.program("csi-edge")?;
    command.arg("direct").args(words).arg("--state").arg(scene.stand.at("edge-state"));
    command.arg("--entries").arg(scene.root()).arg("--sandboxes").arg(scene.sandboxes());
    let output = command.args(["-o", "json"]).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn overwrite(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> io::Result<()> {
    publish(path.as_ref(), text.as_ref(), 0o600, Existing::Replace)
}

/// The size of a device's ext4 file system.
fn file_system_bytes(device: &str) -> anyhow::Result<u64> {
    let shown = Command::new("dumpe2fs").args(["-h", device]).output()?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let field = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    let count = field("Block count:").context("no count")?;
    Ok(count * field("Block size:").context("no size")?)
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn the_kubelet_is_told_what_the_guest_sees() -> anyhow::Result<()> {
    let (at, target) = published().await?;
    let Handover { scene, volume } = &at;
    let unknown = scene.stats(volume, &target).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unavailable, "nobody has it: {}", unknown.message());
    let guest = shim(scene, &target, true)?;
    assert_eq!(scene.stats(volume, &target).await?, (300 << 20, 10 << 20));

    let listed = command(scene, &["list"]).await?;
    assert_eq!(
        (&listed[0]["standing"], &listed[0]["sandbox"]),
        (&"published".into(), &"sandbox-1".into())
    );
    let seen = command(scene, &["inspect", &volume.id]).await?;
    assert_eq!(
        seen[0]["guest"]["bytes"],
        serde_json::json!([300 * MIB, 10 * MIB, 290 * MIB]),
        "{seen}"
    );
    let missing = command(scene, &["inspect", "nothing"]).await.unwrap_err().to_string();
    assert!(missing.contains("nothing is neither a direct volume"), "{missing}");

    // On line: the driver grows the device, and the guest its file system.
    scene.grow(volume, 640).await?;
    assert_eq!(scene.grow_at_node(volume, Some(&target), 640).await?, 640);
    assert_eq!(scene.stats(volume, &target).await?.0, 600 << 20);
    guest.behave(Manner::Hangs);
    let late = scene.stats(volume, &target).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{}", late.message());
    drop(guest);
    at.unpublish(&target).await?;
    let gone = scene.stats(volume, &target).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{}", gone.message());
    at.end().await
}

/// The volume grows with the next pod, and this one is not disturbed.
fn assert_refused_to_grow(status: &Status) {
    assert_eq!(Expansion::after(status.code()), Expansion::NextPod, "{status}");
    assert!(status.message().contains("delete the pod"), "{}", status.message());
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_grew_while_nobody_had_it_is_large_for_the_next_guest() -> anyhow::Result<()> {
    let (at, first) = published().await?;
    let Handover { scene, volume } = &at;
    let mut guest = at.guest(Runtime::Go, &first).await?;
    guest.tell("write hello before it grew").await?;
    // A runtime that cannot grow it refuses, and the guest's file system is not touched.
    let shim = shim(scene, &first, false)?;
    scene.grow(volume, 640).await?;
    let cannot = async || scene.grow_at_node(volume, Some(&first), 640).await.unwrap_err();
    assert_refused_to_grow(&cannot().await);
    // A kubelet that was started again asks for all of it anew, and the pod goes on.
    scene.stage(volume).await?;
    at.publish(&first).await?;
    assert_refused_to_grow(&cannot().await);
    assert_eq!(guest.tell("read hello").await?, "before it grew");
    // Its container ends, and the sandbox does not.
    let (_, device) = entry(scene, &first)?;
    shim.has_no_container(&device);
    assert_refused_to_grow(&cannot().await);
    guest.stop().await?;
    drop(shim);
    assert_refused_to_grow(&cannot().await);
    at.unpublish(&first).await?;

    // As the kubelet asks between staging and publishing, and after it.
    assert_eq!(scene.grow_at_node(volume, None, 640).await?, 640);
    let second = scene.target("pod-2")?;
    at.publish(&second).await?;
    assert_eq!(scene.grow_at_node(volume, Some(&second), 640).await?, 640);
    assert_eq!(at.read(Runtime::Rs, &second, "hello").await?, "before it grew");
    let (_, device) = entry(scene, &second)?;
    assert_eq!(file_system_bytes(&device)?, 640 * MIB);
    scene.host_has_mounted_none()?;
    at.end_at(&second).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn an_operator_hands_over_again_what_was_lost() -> anyhow::Result<()> {
    let (mut at, target) = published().await?;
    let (lost, _) = entry(&at.scene, &target)?;
    std::fs::remove_dir_all(&lost)?;
    let foreign =
        at.scene.root().join(base64::engine::general_purpose::URL_SAFE.encode("/somebody/elses"));
    std::fs::create_dir(&foreign)?;
    let busy = command(&at.scene, &["reconcile"]).await.unwrap_err().to_string();
    assert!(busy.contains("works on"), "{busy}");
    at.scene.kill_edge().await?;
    let did = command(&at.scene, &["reconcile"]).await?;
    assert_eq!(did[0]["did"], "handed over again", "{did}");
    assert_eq!(did.as_array().map(Vec::len), Some(1), "{did}");
    assert!(lost.join("mountInfo.json").is_file());
    let roots = Roots { entries: at.scene.root(), ..Roots::default() };
    let state = PathBuf::from(at.scene.stand.at("edge-state"));
    let all = volumes::all(&state, &Runtimes::new(roots, PATIENCE)).await?;
    let standings: Vec<_> = all.iter().map(|volume| volume.standing).collect();
    assert!(standings.contains(&Standing::Foreign) && standings.contains(&Standing::Published));
    let did = command(&at.scene, &["reconcile"]).await?;
    assert_eq!(did[0]["did"], "as it should be", "{did}");
    std::fs::remove_dir(&foreign)?;
    at.scene.start_edge().await?;
    at.end_at(&target).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_damaged_entry_is_seen_repaired_and_in_nobodys_way() -> anyhow::Result<()> {
    let (mut at, target) = published().await?;
    let (there, _) = entry(&at.scene, &target)?;
    let file = there.join("mountInfo.json");
    let whole = std::fs::read(&file)?;
    at.scene.kill_edge().await?;
    let another = String::from_utf8(whole.clone())?.replace("/dev/loop", "/dev/other");
    for text in [&whole[..whole.len() / 2], another.as_bytes()] {
        overwrite(&file, text)?;
        let listed = command(&at.scene, &["list"]).await?;
        assert_eq!(listed[0]["standing"], "damaged", "{listed}");
        let did = command(&at.scene, &["reconcile"]).await?;
        assert_eq!(did[0]["did"], "its entry was damaged, and is written again", "{did}");
        assert_eq!(std::fs::read(&file)?, whole);
    }
    // Foreign files are left alone, and csi-edge does not block on a FIFO.
    std::fs::remove_file(&file)?;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &file,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )?;
    let listed = command(&at.scene, &["list"]).await?;
    assert_eq!(listed[0]["standing"], "foreign", "{listed}");
    let failed = command(&at.scene, &["reconcile"]).await.unwrap_err().to_string();
    assert!(failed.contains("1 of 1 direct volumes are not as they should be"), "{failed}");
    std::fs::remove_file(&file)?;
    overwrite(&file, &whole[..9])?;
    // csi-edge repairs it at its start; a file that is cut later does no harm.
    at.scene.start_edge().await?;
    assert_eq!(std::fs::read(&file)?, whole);
    overwrite(&file, &whole[..9])?;
    at.publish(&target).await?;
    assert_eq!(std::fs::read(&file)?, whole);
    overwrite(&file, &whole[..9])?;
    at.end_at(&target).await
}
