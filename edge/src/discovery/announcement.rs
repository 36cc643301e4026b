//! What a registrar announces, and whether it is a driver that may be used.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use proto::host::plain;
use proto::host::socket::path_of;
use proto::names::DriverName;
use proto::registration::PluginInfo;

use super::settings::Settings;

/// The type of a CSI driver in the kubelet's protocol.
const CSI_PLUGIN: &str = "CSIPlugin";

/// A driver that may be used, and its socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) driver: DriverName,
    pub(super) socket: PathBuf,
}

/// Why an announcement is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unused {
    /// It is for somebody else.
    #[error("it announces a {0}, not a CSI driver")]
    NoCsiDriver(String),
    /// A kubelet is told of our own front.
    #[error("it announces csi-edge's own front")]
    OwnFront,
    /// The node's operator does not allow it.
    #[error("the driver is not allowed; name it in [discovery] allow of csi-edge's configuration")]
    NotAllowed,
    /// It cannot be right.
    #[error("{0}")]
    Wrong(String),
    /// Its driver has another socket that stays in use for now.
    #[error("{0}")]
    TwoSockets(String),
    /// It may be right soon.
    #[error("{0}")]
    NotYet(String),
}

/// The directory in which csi-edge serves its own fronts, wherever it is mounted.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnFronts(pub(super) Option<PathBuf>);

impl OwnFronts {
    /// Whether this socket is in it, by its path or by the directory's device and inode.
    pub(super) fn contains(&self, socket: &Path) -> bool {
        let Some(own) = &self.0 else { return false };
        let Some(parent) = socket.parent() else { return false };
        let identity = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        parent == own || identity(own).is_some_and(|own| Some(own) == identity(parent))
    }
}

/// Reads an announcement.
///
/// # Errors
/// It is not used, and why.
pub(super) fn read(
    info: &PluginInfo,
    settings: &Settings,
    fronts: &OwnFronts,
) -> Result<Found, Unused> {
    if info.r#type != CSI_PLUGIN {
        return Err(Unused::NoCsiDriver(plain(&info.r#type)));
    }
    let wrong = |why: String| Unused::Wrong(plain(&why));
    let driver: DriverName = info.name.parse().map_err(|error| wrong(format!("{error}")))?;
    let endpoint = path_of(&info.endpoint);
    let given = Path::new(endpoint);
    if !given.is_absolute() {
        return Err(wrong(format!("its endpoint {endpoint:?} is no absolute path")));
    }
    // A front that is not there yet, or whose links lead elsewhere, is ours by its given path too.
    let resolved = given.canonicalize();
    if fronts.contains(given) || resolved.as_deref().is_ok_and(|socket| fronts.contains(socket)) {
        return Err(Unused::OwnFront);
    }
    if !settings.allows(&driver) {
        return Err(Unused::NotAllowed);
    }
    if !info.supported_versions.iter().any(|version| is_1(version)) {
        let versions = info.supported_versions.join(", ");
        return Err(wrong(format!("it speaks CSI {versions:?}, and csi-edge speaks 1.x")));
    }
    let not_here = |why| {
        let why = format!("its endpoint {endpoint:?} {why}; is the path the same for csi-edge?");
        Unused::NotYet(plain(&why))
    };
    let socket = resolved.map_err(|error| not_here(format!("cannot be found: {error}")))?;
    match std::fs::metadata(&socket) {
        Ok(meta) if meta.file_type().is_socket() => Ok(Found { driver, socket }),
        Ok(_) => Err(not_here("is no socket".into())),
        Err(error) => Err(not_here(format!("cannot be found: {error}"))),
    }
}

/// Whether a version of CSI is 1.x. A kubelet takes a leading `v` too.
fn is_1(version: &str) -> bool {
    let version = version.strip_prefix('v').unwrap_or(version);
    version.split_once('.').map_or(version, |(major, _)| major) == "1"
}
