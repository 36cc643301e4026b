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
/// The name that pods in documents have for it.
const BUSYBOX_IMAGE: &str = "docker.io/library/busybox:1.37";
/// Where Debian has the static busybox.
const BUSYBOX: &str = "/bin/busybox";
/// Where an image has its programs.
const PATH: &str = "PATH=/bin:/usr/sbin";
/// The applets of the stand's own image.
const APPLETS: [&str; 26] = [
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
    "mv",
    "rm",
    "sh",
    "sha256sum",
    "sleep",
    "stat",
    "sync",
    "tar",
    "tee",
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
    /// What it runs if a pod names nothing.
    pub entry: Option<Entry<'a>>,
}

/// A program that an image runs.
pub struct Entry<'a> {
    /// Where it is on this machine.
    pub program: &'a Path,
    /// Where it is in the image.
    pub at: String,
    /// Its arguments, if a pod names none.
    pub args: &'a [&'a str],
    /// Its user and group; root if it is empty.
    pub user: &'a str,
}

/// Makes the archive of the stand's image in a directory.
///
/// # Errors
/// As for [`make`].
pub(super) async fn own(dir: &Path) -> anyhow::Result<PathBuf> {
    let image = Image {
        file: "image",
        names: &[IMAGE, BUSYBOX_IMAGE].map(str::to_owned),
        applets: &APPLETS.map(str::to_owned),
        files: &[],
        entry: None,
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
    let mut run = json!({"Env": [PATH], "Cmd": ["/bin/sleep", "2147483647"]});
    if let Some(entry) = &image.entry {
        run = json!({
            "Env": [PATH], "Entrypoint": [entry.at], "Cmd": entry.args, "User": entry.user,
        });
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

/// The shared libraries of programs, and the loader. A static program has none.
///
/// # Errors
/// `ldd` of libc-bin cannot be started.
pub(super) async fn libraries(programs: &[&Path]) -> anyhow::Result<Vec<String>> {
    let listed = Command::new("ldd").args(programs).output().await.context("cannot start ldd")?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    // Each line has at most one path that is followed by where it was loaded to.
    let path = |line: &str| {
        let words = line.split_whitespace().find(|word| word.starts_with('/'));
        words.filter(|word| !word.ends_with(':')).map(str::to_owned)
    };
    let mut paths: Vec<_> = text.lines().filter_map(path).collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Makes the image's file system.
fn fill(root: &Path, image: &Image<'_>) -> anyhow::Result<()> {
    for name in ["bin", "proc", "sys", "dev", "tmp", "etc", "data", "usr"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    if !image.applets.is_empty() {
        std::fs::copy(BUSYBOX, root.join("bin/busybox"))
            .with_context(|| format!("no {BUSYBOX}; install busybox-static"))?;
    }
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
    if let Some(entry) = &image.entry {
        std::fs::copy(entry.program, root.join(entry.at.trim_start_matches('/')))
            .with_context(|| format!("cannot read {}", entry.program.display()))?;
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
