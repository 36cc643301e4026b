//! The container images of the stand, made on the spot: Debian's static busybox with its applets,
//! as archives that `ctr image import` reads. There is no registry here.

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
/// The applets of the stand's own image.
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

/// An image to make.
pub struct Image<'a> {
    /// The name of its archive, without an ending.
    pub file: &'a str,
    /// The names that pods know it by.
    pub names: &'a [String],
    /// busybox's applets in its `/bin`.
    pub applets: &'a [String],
    /// Files of this machine that it has at the same paths. They replace applets.
    pub files: &'a [&'a str],
    /// A program that it has at `/`, and runs with `pause` if a pod names none.
    pub program: Option<&'a Path>,
}

/// Makes the archive of the stand's image in a directory.
///
/// # Errors
/// As for [`make`].
pub(super) async fn own(dir: &Path) -> anyhow::Result<PathBuf> {
    let image = Image {
        file: "image",
        names: &[IMAGE.to_owned()],
        applets: &APPLETS.map(str::to_owned),
        files: &[],
        program: None,
    };
    make(dir, &image).await
}

/// All applets of Debian's busybox.
///
/// # Errors
/// It is not installed.
pub async fn applets() -> anyhow::Result<Vec<String>> {
    let listed = Command::new(BUSYBOX).arg("--list").output().await;
    let listed = listed.with_context(|| format!("no {BUSYBOX}; install busybox-static"))?;
    let names = String::from_utf8(listed.stdout).context("busybox lists what is no text")?;
    Ok(names.lines().filter(|name| *name != "busybox").map(str::to_owned).collect())
}

/// Makes an archive in a directory.
///
/// # Errors
/// busybox-static or tar is not installed, or the image's program is not there.
pub async fn make(dir: &Path, image: &Image<'_>) -> anyhow::Result<PathBuf> {
    let root = dir.join(format!("{}-root", image.file));
    fill(&root, image)?;
    let parts = dir.join(image.file);
    std::fs::create_dir_all(&parts)?;
    tar(&root, &parts.join("layer.tar")).await?;
    let layer = std::fs::read(parts.join("layer.tar"))?;
    let sum: String =
        digest(&SHA256, &layer).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut run = json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "2147483647"]});
    if let Some(name) = image.program.and_then(Path::file_name) {
        let name = Path::new("/").join(name);
        run = json!({"Env": ["PATH=/bin"], "Entrypoint": [name], "Cmd": ["pause"]});
    }
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": run,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]},
    });
    let manifest =
        json!([{"Config": "config.json", "RepoTags": image.names, "Layers": ["layer.tar"]}]);
    for (name, value) in [("config.json", config), ("manifest.json", manifest)] {
        publish(&parts.join(name), value.to_string().as_bytes(), 0o644, Existing::Replace)?;
    }
    let archive = dir.join(format!("{}.tar", image.file));
    tar(&parts, &archive).await?;
    std::fs::remove_dir_all(&root)?;
    std::fs::remove_dir_all(&parts)?;
    Ok(archive)
}

/// Makes the image's file system.
fn fill(root: &Path, image: &Image<'_>) -> anyhow::Result<()> {
    for name in ["bin", "proc", "sys", "dev", "tmp", "etc", "data", "usr"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    std::fs::copy(BUSYBOX, root.join("bin/busybox"))
        .with_context(|| format!("no {BUSYBOX}; install busybox-static"))?;
    let replaced =
        |applet: &str| image.files.iter().any(|file| file.ends_with(&format!("/{applet}")));
    for applet in image.applets.iter().filter(|applet| !replaced(applet)) {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    std::os::unix::fs::symlink("../bin", root.join("usr/bin"))?;
    for file in image.files {
        let to = root.join(file.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().context("a file without a directory")?)?;
        std::fs::copy(file, to).with_context(|| format!("cannot read {file}"))?;
    }
    if let Some(program) = image.program {
        let name = program.file_name().context("a program without a name")?;
        std::fs::copy(program, root.join(name))
            .with_context(|| format!("cannot read {}", program.display()))?;
    }
    Ok(())
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
