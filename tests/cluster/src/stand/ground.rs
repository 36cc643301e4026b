//! The base of the whole cluster: its directory, its programs, and free ports.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use harness::port;
use harness::programs::Programs;

/// Programs that Debian's packages or `make stand` must have installed.
const TOOLS: [&str; 10] = [
    "csi-attacher",
    "csi-provisioner",
    "csi-resizer",
    "csi-snapshotter",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "registrar",
    "snapshot-controller",
];
const PACKAGES: [(&str, &str); 7] = [
    ("/usr/bin/etcd", "etcd-server"),
    ("/usr/bin/containerd", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/loopback", "containernetworking-plugins"),
    ("/bin/busybox", "busybox-static"),
    ("/usr/bin/setpriv", "util-linux"),
    ("/usr/sbin/mkfs.xfs", "xfsprogs"),
];

/// The directory of an older version's programs. A stand then has nothing in its configuration
/// that an older version does not know.
const OLDER: &str = "EDGE_CSI_OLDER";

/// The directory, programs and ports of a cluster.
pub struct Ground {
    dir: PathBuf,
    ours: Programs,
    /// The checkout, with deploy/ and the tools of tests/go.
    source: PathBuf,
}

impl Ground {
    /// Finds all programs. Our programs are in the directory of the running one.
    ///
    /// # Errors
    /// Something is missing; the error says all of it and how to get it.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let ours = Programs::beside_this()?;
        let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = crate_dir.ancestors().nth(2).context("no checkout")?.to_owned();
        let ground = Self { dir: dir.to_owned(), ours, source };
        let packages =
            PACKAGES.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, name)| *name);
        let packages: Vec<_> = packages.collect();
        ensure!(packages.is_empty(), "install Debian's packages {}", packages.join(" "));
        let tools: Vec<_> =
            TOOLS.iter().filter(|name| !ground.tool(name).exists()).copied().collect();
        ensure!(
            tools.is_empty(),
            "{} are not built; run `make stand` or `make e2e`",
            tools.join(" ")
        );
        std::fs::create_dir_all(ground.logs())?;
        Ok(ground)
    }

    /// Everything is below here.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The checkout that everything was built of.
    pub fn checkout(&self) -> &Path {
        &self.source
    }

    /// A path in the directory, as text.
    pub fn at(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Where the programs log.
    pub fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// A name that no other stand on this machine has.
    pub fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// A program of Kubernetes or of its sidecars.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.source.join("tests/go/bin").join(name)
    }

    /// The path of one of our programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.ours.path(name)
    }

    /// The path of one of our programs as this checkout builds it.
    pub fn newest(&self, name: &str) -> PathBuf {
        self.ours.newest(name)
    }

    /// The directory of an older version's programs, if it is one of two versions' stand.
    pub fn older(&self) -> Option<PathBuf> {
        older()
    }

    /// Reads a file of the checkout.
    ///
    /// # Errors
    /// It is not there.
    pub fn source(&self, name: &str) -> anyhow::Result<String> {
        let path = self.source.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The files of a directory of the checkout, read, in the order of their names.
    ///
    /// # Errors
    /// It is not there.
    pub fn sources(&self, dir: &str) -> anyhow::Result<Vec<String>> {
        let path = self.source.join(dir);
        let entries = std::fs::read_dir(&path);
        let entries = entries.with_context(|| format!("cannot read {}", path.display()))?;
        let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        let read = |file: &PathBuf| {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
        };
        files.iter().map(read).collect()
    }
}

/// As [`Ground::older`].
pub(super) fn older() -> Option<PathBuf> {
    std::env::var_os(OLDER).map(PathBuf::from)
}

/// Ports of loopback that are free now, all different. If one is taken before its use, its program
/// fails with an error.
///
/// # Errors
/// There are none.
pub(super) fn ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for at in &mut ports {
        *at = port::free()?;
        held.push(TcpListener::bind(("127.0.0.1", *at)).context("a port was taken")?);
    }
    Ok(ports)
}
