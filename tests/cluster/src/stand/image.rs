//! The one container image of the stand, made on the spot: Debian's static busybox with its
//! applets, as an archive that `ctr image import` reads. There is no registry here.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use proto::host::publish::{Existing, publish};
use ring::digest::{SHA256, digest};
use serde_json::json;
use tokio::process::Command;

/// The image's name, for pods as well as for their sandboxes.
pub const IMAGE: &str = "stand.edge-csi.io/box:1";
/// Where Debian has the static busybox.
const BUSYBOX: &str = "/bin/busybox";
/// The image's name in pods.
const APPLETS: [&str; 23] = [
    "awk",
    "cat",
    "cmp",
    "cp",
    "date",
    "dd",
    "df",
    "echo",
    "grep",
    "head",
    "hostname",
    "id",
    "ls",
    "mkdir",
    "rm",
    "sh",
    "sha256sum",
    "sleep",
    "stat",
    "sync",
    "test",
    "touch",
    "true",
];

/// Makes the archive in a directory.
///
/// # Errors
/// busybox-static or tar is not installed.
pub(super) async fn make(dir: &Path) -> anyhow::Result<PathBuf> {
    let root = dir.join("image-root");
    for name in ["bin", "proc", "sys", "dev", "tmp", "etc", "data"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    std::fs::copy(BUSYBOX, root.join("bin/busybox"))
        .with_context(|| format!("no {BUSYBOX}; install busybox-static"))?;
    for applet in APPLETS {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    let parts = dir.join("image");
    std::fs::create_dir_all(&parts)?;
    tar(&root, &parts.join("layer.tar")).await?;
    let layer = std::fs::read(parts.join("layer.tar"))?;
    let sum: String =
        digest(&SHA256, &layer).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "2147483647"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    for (name, value) in [("config.json", config), ("manifest.json", manifest)] {
        publish(&parts.join(name), value.to_string().as_bytes(), 0o644, Existing::Replace)?;
    }
    let archive = dir.join("image.tar");
    tar(&parts, &archive).await?;
    std::fs::remove_dir_all(&root)?;
    std::fs::remove_dir_all(&parts)?;
    Ok(archive)
}

/// All that is in a directory, by its plain names.
async fn tar(dir: &Path, archive: &Path) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        names.push(entry?.file_name());
    }
    names.sort();
    let mut command = Command::new("tar");
    command.args(["--owner=0", "--group=0", "-cf"]).arg(archive).arg("-C").arg(dir).args(names);
    let status = command.status().await.context("tar cannot be started")?;
    ensure!(status.success(), "tar could not write {}", archive.display());
    Ok(())
}
