//! Records of publications on this node: one file per target, which appears and goes whole.
//!
//! A record is durable before the driver is called to publish, and goes after the driver has
//! unpublished. So an interrupted operation is found and finished. A record is no proof of a
//! device's content; the [journal](super::journal) is.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use proto::control::not_taken::Pod;
use proto::csi::direct::DeviceKind;
use proto::host::files;
use proto::host::files::{make_private, name};
use proto::host::publish::{Existing, publish};
use serde::{Deserialize, Serialize};

use super::admitted;

/// The progress of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublicationState {
    /// The driver is about to be called, or was. Nothing has been handed over.
    Begun,
    /// The runtime may have it.
    Published,
}

/// Who may have a volume, and who may not get it for now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Custody {
    /// NodeUnpublishVolume has begun, so its entry goes or is gone. Its guest may run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withdrawing: bool,
    /// The ids of the sandboxes that its entry named before it was removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandboxes: Vec<String>,
    /// Why no runtime is given its device for now: an earlier guest may have it still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
}

/// A volume at a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Its id, as the driver has it.
    pub volume_id: String,
    /// The driver's CSI name.
    pub driver: String,
    /// The target with the symlinks of its parent resolved: the mount source that the runtime sees.
    pub target: PathBuf,
    /// The target as the kubelet names it.
    pub target_as_given: PathBuf,
    /// The staging path; empty for a driver without staging.
    pub staging: PathBuf,
    /// The path at which the driver has published it as a block device.
    pub private_path: PathBuf,
    /// The device for the runtime: a block device, for VFIO a PCI address, for SPDK a socket. Empty
    /// until the driver has published it.
    pub device: PathBuf,
    /// The device's number on the host, as `st_rdev`; 0 if it has none.
    pub number: u64,
    /// The boot of its publication; device numbers mean nothing after it.
    pub boot: String,
    /// The UUID of the file system on it.
    pub uuid: String,
    /// `ext4` or `xfs`.
    pub fstype: String,
    /// Mount options for the guest.
    pub options: Vec<String>,
    /// Further metadata for the runtime.
    pub metadata: BTreeMap<String, String>,
    /// The kind of its device.
    pub kind: DeviceKind,
    /// The progress of its publication.
    pub state: PublicationState,
    /// The pod that it was published for, if the kubelet told. No runtime is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// The driver was asked to take it back, or is about to be: nobody had the device before that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unpublishing: bool,
    /// Who may have it.
    #[serde(flatten)]
    pub custody: Custody,
}

/// The directory of the records below a state directory.
fn directory(state: &Path) -> PathBuf {
    state.join("direct").join("published")
}

fn path(state: &Path, driver: &str, volume_id: &str, target: &Path) -> PathBuf {
    let target = name(&[target.as_os_str().as_encoded_bytes()]);
    directory(state).join(format!("{}{target}.json", prefix(driver, volume_id)))
}

/// The prefix of a volume's record names, so that a damaged record hinders its own volume only.
fn prefix(driver: &str, volume_id: &str) -> String {
    format!("{}-", name(&[driver.as_bytes(), volume_id.as_bytes()]))
}

impl Published {
    /// True if this is a record of the same volume at the same target.
    pub fn is_of(&self, other: &Self) -> bool {
        (&self.driver, &self.volume_id, &self.target)
            == (&other.driver, &other.volume_id, &other.target)
    }

    /// Makes the record durable, in place of an older one.
    ///
    /// # Errors
    /// The file system's.
    pub fn keep(&self, state: &Path) -> io::Result<()> {
        make_private(&directory(state))?;
        let text = serde_json::to_vec_pretty(self)?;
        let path = path(state, &self.driver, &self.volume_id, &self.target);
        publish(&path, &text, 0o600, Existing::Replace)
    }

    /// Removes the record, if there is one.
    ///
    /// # Errors
    /// The file system's.
    pub fn forget(&self, state: &Path) -> io::Result<()> {
        files::remove(&path(state, &self.driver, &self.volume_id, &self.target))?;
        admitted::forget(state, &self.target)
    }
}

/// All records of a state directory, by file name; none if nothing was ever published there.
///
/// # Errors
/// The directory or a record cannot be read, so no device may count as free.
pub fn all(state: &Path) -> io::Result<Vec<Published>> {
    let records = each(state)?.into_iter().collect::<Result<Vec<_>, Damaged>>();
    Ok(records?)
}

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the record {path} cannot be read", path = path.display())]
pub struct Damaged {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl From<Damaged> for io::Error {
    fn from(damaged: Damaged) -> Self {
        Self::other(format!("{damaged}: {}", damaged.source))
    }
}

impl Damaged {
    /// True if it may be the record of this target, by its file's name.
    pub fn may_be_at(&self, target: &Path) -> bool {
        let stem = self.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let is_digest =
            |text: &str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match stem.split_once('-') {
            Some((volume, at)) if is_digest(volume) && is_digest(at) => {
                at == name(&[target.as_os_str().as_encoded_bytes()])
            }
            _ => true,
        }
    }
}

/// The same, with the fault in place of each unreadable record.
///
/// # Errors
/// The directory cannot be read.
pub fn each(state: &Path) -> io::Result<Vec<Result<Published, Damaged>>> {
    beginning(state, "")
}

fn beginning(state: &Path, prefix: &str) -> io::Result<Vec<Result<Published, Damaged>>> {
    let entries = match std::fs::read_dir(directory(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?;
        let file = entry.file_name();
        let file = file.to_string_lossy();
        // A file with another ending was being written at a power cut.
        if file.starts_with(prefix) && file.ends_with(".json") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let read_all =
        paths.into_iter().map(|path| read(&path).map_err(|source| Damaged { path, source }));
    Ok(read_all.collect())
}

fn read(path: &Path) -> io::Result<Published> {
    serde_json::from_slice(&files::read(path)?).map_err(io::Error::other)
}

/// The records of one volume: at most one, since one guest owns it.
///
/// # Errors
/// As for [`all`].
pub fn of(state: &Path, driver: &str, volume_id: &str) -> io::Result<Vec<Published>> {
    let records = beginning(state, &prefix(driver, volume_id))?;
    let mut records = records.into_iter().collect::<Result<Vec<_>, Damaged>>()?;
    records.retain(|record| record.driver == driver && record.volume_id == volume_id);
    Ok(records)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(volume_id: &str) -> Published {
        Published {
            volume_id: volume_id.into(),
            driver: "d.example".into(),
            target: "/pods/p/mount".into(),
            target_as_given: "/link/p/mount".into(),
            staging: PathBuf::new(),
            private_path: "/private/x".into(),
            device: "/dev/loop1".into(),
            number: 1793,
            boot: "b".into(),
            uuid: "u".into(),
            fstype: "ext4".into(),
            options: vec!["noatime".into()],
            metadata: BTreeMap::new(),
            kind: DeviceKind::Block,
            state: PublicationState::Published,
            pod: None,
            unpublishing: false,
            custody: Custody::default(),
        }
    }

    #[test]
    fn records_are_kept_replaced_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(all(dir.path()).unwrap(), []);
        let a = record("a");
        let mut b = record("b");
        a.keep(dir.path()).unwrap();
        b.keep(dir.path()).unwrap();
        b.state = PublicationState::Begun;
        b.keep(dir.path()).unwrap();
        assert_eq!(all(dir.path()).unwrap().len(), 2);
        assert_eq!(of(dir.path(), "d.example", "b").unwrap(), [b.clone()]);
        assert_eq!(of(dir.path(), "e.example", "b").unwrap(), []);
        b.forget(dir.path()).unwrap();
        b.forget(dir.path()).unwrap();
        assert_eq!(all(dir.path()).unwrap(), [a]);
    }

    #[test]
    fn a_record_of_an_older_version_is_one_whose_driver_was_not_asked() {
        let mut here = record("v");
        let text = serde_json::to_string(&here).unwrap();
        for newer in ["unpublishing", "with", "sandboxes", "custody"] {
            assert!(!text.contains(newer), "older versions know the rest: {text}");
        }
        assert_eq!(serde_json::from_str::<Published>(&text).unwrap(), here);
        here.unpublishing = true;
        here.custody = Custody {
            withdrawing: true,
            sandboxes: vec!["s-1".into()],
            withheld: Some("why".into()),
        };
        let text = serde_json::to_string(&here).unwrap();
        assert_eq!(serde_json::from_str::<Published>(&text).unwrap(), here);
    }

    #[test]
    fn a_record_that_cannot_be_read_is_no_empty_list() {
        let dir = tempfile::tempdir().unwrap();
        record("a").keep(dir.path()).unwrap();
        let cut = directory(dir.path()).join("cut.json");
        publish(&cut, b"{\"volume_id\":", 0o600, Existing::Keep).unwrap();
        assert!(all(dir.path()).unwrap_err().to_string().contains("cut.json"));
        // As it is written before it is renamed.
        std::fs::rename(&cut, cut.with_file_name(".x.new")).unwrap();
        assert_eq!(all(dir.path()).unwrap().len(), 1);
        // A damaged record hinders its own volume and no other.
        let a = record("a");
        let b = record("b");
        b.keep(dir.path()).unwrap();
        let damaged = path(dir.path(), &a.driver, &a.volume_id, &a.target);
        publish(&damaged, b"{", 0o600, Existing::Replace).unwrap();
        let cut = of(dir.path(), &a.driver, "a").unwrap_err().to_string();
        assert!(cut.contains(damaged.to_str().unwrap()), "{cut}");
        assert_eq!(of(dir.path(), &b.driver, "b").unwrap(), [b]);
    }

    #[test]
    fn a_damaged_record_is_of_its_own_target() {
        let dir = tempfile::tempdir().unwrap();
        let a = record("a");
        a.keep(dir.path()).unwrap();
        let damaged = path(dir.path(), &a.driver, &a.volume_id, &a.target);
        std::fs::remove_file(&damaged).unwrap();
        // Whatever has its name: nobody is waited for.
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &damaged, fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        let of = |path: &Path| Damaged { path: path.to_owned(), source: io::Error::other("x") };
        let seen = each(dir.path()).unwrap().pop().unwrap().unwrap_err();
        assert!(seen.may_be_at(&a.target) && !seen.may_be_at(Path::new("/pods/q/mount")));
        assert!(of(Path::new("/x.json")).may_be_at(Path::new("/pods/q/mount")));
    }
}
