//! The images that `deploy/` names, made from the programs of this machine. `IMAGES` may name a
//! directory with archives of csi-cloud and csi-edge as users get them; those are taken instead.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::ground::Ground;
use super::image::{Entry, Image, libraries, make};

/// The directory of archives that `deploy/image.sh` made.
const IMAGES: &str = "IMAGES";
/// What hostdir calls.
const HOSTDIR: [&str; 2] = ["/usr/sbin/losetup", "/bin/cp"];
/// The users of the cloud's pods and of the edges', as `deploy/Dockerfile` has them.
const NOBODY: &str = "65532:65532";
const ROOT: &str = "0:0";

/// An image of `deploy/`.
struct Shipped {
    /// The name of its program in the image.
    program: &'static str,
    /// What pods call it. The documents push our images to a registry of their own, and hostdir
    /// stands in for Kubernetes' example driver, which cannot be had as a module.
    names: &'static [&'static str],
    user: &'static str,
    /// It is the sidecars' and csi-cloud's node that has it.
    is_central: bool,
}

const fn central(program: &'static str, names: &'static [&'static str]) -> Shipped {
    Shipped { program, names, user: NOBODY, is_central: true }
}

const fn edge(program: &'static str, names: &'static [&'static str]) -> Shipped {
    Shipped { program, names, user: ROOT, is_central: false }
}

/// All that the objects of the tests' driver name. A test compares them.
const ALL: [Shipped; 9] = [
    central(
        "csi-cloud",
        &["docker.io/library/csi-cloud:0.2.0", "registry.example/csi-cloud:0.2.0"],
    ),
    central("csi-provisioner", &["registry.k8s.io/sig-storage/csi-provisioner:v6.3.0"]),
    central("csi-attacher", &["registry.k8s.io/sig-storage/csi-attacher:v4.12.0"]),
    central("csi-resizer", &["registry.k8s.io/sig-storage/csi-resizer:v2.2.0"]),
    central("csi-snapshotter", &["registry.k8s.io/sig-storage/csi-snapshotter:v8.6.0"]),
    edge("csi-edge", &["docker.io/library/csi-edge:0.2.0", "registry.example/csi-edge:0.2.0"]),
    edge(
        "hostdir",
        &["stand.edge-csi.io/hostdir:1", "registry.k8s.io/sig-storage/hostpathplugin:v1.18.0"],
    ),
    edge("registrar", &["registry.k8s.io/sig-storage/csi-node-driver-registrar:v2.17.0"]),
    edge("livenessprobe", &["registry.k8s.io/sig-storage/livenessprobe:v2.19.0"]),
];

/// The archives for one half's nodes.
///
/// # Errors
/// A program is not built, or a tool of Debian's is not installed.
pub(super) async fn images(ground: &Ground, is_central: bool) -> anyhow::Result<Vec<PathBuf>> {
    let mut archives = Vec::new();
    for shipped in ALL.iter().filter(|shipped| shipped.is_central == is_central) {
        let archive = archive(ground, shipped).await;
        archives.push(archive.with_context(|| format!("no image of {}", shipped.program))?);
    }
    Ok(archives)
}

/// The archive of the product for one half's nodes, as this checkout builds it.
///
/// # Errors
/// As for [`images`].
pub(super) async fn newest(ground: &Ground, is_central: bool) -> anyhow::Result<PathBuf> {
    let mut all = ALL.iter();
    let shipped = all.find(|shipped| shipped.is_product() && shipped.is_central == is_central);
    let shipped = shipped.context("no product")?;
    packed(ground, shipped, &ground.newest(shipped.program)).await
}

impl Shipped {
    fn is_product(&self) -> bool {
        matches!(self.program, "csi-cloud" | "csi-edge")
    }
}

async fn archive(ground: &Ground, shipped: &Shipped) -> anyhow::Result<PathBuf> {
    let is_product = shipped.is_product();
    if let Some(dir) = std::env::var_os(IMAGES).filter(|_| is_product) {
        let dir = PathBuf::from(dir);
        let given = given(&dir, shipped.program)?;
        let none = || format!("{} has none; unset {IMAGES}, or make it", dir.display());
        return given.with_context(none);
    }
    let is_ours = is_product || shipped.program == "hostdir";
    let built = match is_ours {
        true => ground.program(shipped.program),
        false => ground.tool(shipped.program),
    };
    packed(ground, shipped, &built).await
}

async fn packed(ground: &Ground, shipped: &Shipped, built: &Path) -> anyhow::Result<PathBuf> {
    let program = stripped(ground, built, shipped.program).await?;
    let beside: &[&str] = if shipped.program == "hostdir" { &HOSTDIR } else { &[] };
    let all: Vec<_> = beside.iter().map(Path::new).chain([program.as_path()]).collect();
    let libraries = libraries(&all).await?;
    let files: Vec<_> =
        beside.iter().copied().chain(libraries.iter().map(String::as_str)).collect();
    let entry = Entry {
        program: &program,
        at: format!("/usr/bin/{}", shipped.program),
        args: &[],
        user: shipped.user,
    };
    let names: Vec<_> = shipped.names.iter().map(|name| (*name).to_owned()).collect();
    let image = Image {
        file: shipped.program,
        names: &names,
        applets: &[],
        files: &files,
        entry: Some(entry),
    };
    let archive = make(ground.dir(), &image).await?;
    std::fs::remove_file(&program)?;
    Ok(archive)
}

/// The archive of a program in a directory, of this machine's kind.
fn given(dir: &Path, program: &str) -> anyhow::Result<Option<PathBuf>> {
    let entries = std::fs::read_dir(dir);
    let entries = entries.with_context(|| format!("cannot read {}", dir.display()))?;
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // With a version or without one; not of another image whose name begins so.
        let rest = name.strip_prefix(program).unwrap_or("-other");
        let is_other = rest.strip_prefix('-').is_some_and(|of| of.starts_with(char::is_alphabetic));
        !is_other && name.ends_with(".tar") && !name.contains("arm64")
    };
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_it))
}

/// A program without its debug information, of which each container would have a copy.
async fn stripped(ground: &Ground, program: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let to = ground.dir().join(format!("stripped-{name}"));
    let mut command = Command::new("strip");
    let status = command.arg("--strip-debug").arg("-o").arg(&to).arg(program).status().await;
    let status = status.context("`strip` of binutils cannot be started")?;
    ensure!(status.success(), "cannot strip {}", program.display());
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_found_under_the_name_that_a_user_gave_it() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "csi-cloud-1-arm64.oci.tar",
            "csi-cloud-1-amd64.oci.tar",
            "csi-edge-direct-1-amd64.oci.tar",
            "csi-edge.tar",
        ] {
            std::fs::File::create(dir.path().join(name)).unwrap();
        }
        let named = |program| {
            given(dir.path(), program).unwrap().map(|path| path.file_name().unwrap().to_owned())
        };
        assert_eq!(named("csi-cloud").unwrap(), "csi-cloud-1-amd64.oci.tar");
        assert_eq!(named("csi-edge").unwrap(), "csi-edge.tar");
        assert!(named("hostdir").is_none());
    }

    #[test]
    fn every_image_of_the_tests_driver_is_there() {
        let deployed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/stand/manifests/deployed");
        let read = |name: &str| std::fs::read_to_string(deployed.join(name)).unwrap();
        let texts = read("one.yaml") + &read("three.yaml");
        let named = texts.lines().filter_map(|line| line.trim().strip_prefix("image: "));
        let named: Vec<_> = named.collect();
        assert_eq!(named.len(), 2, "{named:?}");
        for name in named {
            assert!(ALL.iter().any(|shipped| shipped.names.contains(&name)), "{name}");
        }
    }
}
