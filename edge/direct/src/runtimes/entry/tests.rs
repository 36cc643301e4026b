//! Whatever can be in an entry's place: what it counts as, what repairs it, and what may be taken
//! back.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use proto::host::publish::{Existing, publish};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::records::published::tests::record;
use crate::runtimes::mount_info::{DRIVER, VOLUME};

fn overwrite(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> io::Result<()> {
    publish(path.as_ref(), text.as_ref(), 0o600, Existing::Replace)
}

fn is_taken(refused: &MountInfoError, why: &str) -> bool {
    matches!(refused, MountInfoError::Taken { by, .. } if by.contains(why))
}

struct Host {
    _dir: tempfile::TempDir,
    root: Root,
    record: Published,
    entry: std::path::PathBuf,
}

impl Host {
    /// A volume with its entry, and a sandbox that has it.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path().join("shared/entries"));
        let mut record = record("v");
        record.metadata = [(DRIVER, "d.example"), (VOLUME, "v")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        restore(&root, &record).unwrap();
        let entry = root.entry(&record.target).unwrap();
        overwrite(entry.join("sandbox-1"), b"").unwrap();
        Self { _dir: dir, root, record, entry }
    }

    fn file(&self) -> std::path::PathBuf {
        self.entry.join(FILE)
    }

    fn state(&self) -> EntryState {
        compare(&self.root, &self.record).unwrap()
    }

    fn write(&self, info: &MountInfo) {
        overwrite(self.file(), serde_json::to_vec(info).unwrap()).unwrap();
    }

    /// Checks that it is damaged, is repaired, and could as well be taken back.
    fn is_repaired(&self, why: &str) {
        let state = self.state();
        assert!(matches!(&state, EntryState::Damaged(text) if text.contains(why)), "{state:?}");
        let names = ("d.example", "v");
        assert!(self.root.is_open(&self.record.target, names, true).is_ok(), "{why}");
        restore(&self.root, &self.record).unwrap();
        assert_eq!(self.state(), EntryState::Same, "{why}");
        assert!(self.entry.join("sandbox-1").exists(), "{why}");
        let beside = self.root.beside().unwrap().entry();
        let neighbour = beside.parent().and_then(Path::parent).unwrap();
        assert_eq!(std::fs::read_dir(neighbour).unwrap().count(), 0, "{why}");
    }

    /// Checks that it is somebody else's, and is left alone.
    fn is_left(&self, why: &str) {
        let state = self.state();
        assert!(matches!(&state, EntryState::Foreign(text) if text.contains(why)), "{state:?}");
        let names = ("d.example", "v");
        for recorded in [true, false] {
            let refused = self.root.is_open(&self.record.target, names, recorded).unwrap_err();
            assert!(is_taken(&refused, why), "{refused}");
        }
        let refused = restore(&self.root, &self.record).unwrap_err();
        assert!(is_taken(&refused, why), "{refused}");
        self.root.remove(&self.record.target, "d.example", "v").unwrap();
        assert!(self.entry.symlink_metadata().is_ok(), "{why}");
        assert_eq!(self.state(), state);
    }
}

#[test]
fn a_damaged_entry_is_written_again_with_its_sandboxes() {
    let host = Host::new();
    assert_eq!(host.state(), EntryState::Same);
    std::fs::remove_file(host.file()).unwrap();
    host.is_repaired("no mountInfo.json");
    for text in [&b""[..], b"{", b"{\"volume-type\":\"directvol\"", b"\xff"] {
        overwrite(host.file(), text).unwrap();
        host.is_repaired("cannot be read");
    }
    std::fs::File::create(host.file()).unwrap().set_len(1 << 30).unwrap();
    host.is_repaired("has more than");
    let whole = MountInfo::of(&host.record);
    host.write(&MountInfo { device: "/dev/sda".into(), ..whole.clone() });
    host.is_repaired("device \"/dev/sda\"");
    host.write(&MountInfo { fstype: "xfs".into(), ..whole.clone() });
    host.is_repaired("fstype");
    host.write(&MountInfo { options: vec!["ro".into()], ..whole.clone() });
    host.is_repaired("options");
    host.write(&MountInfo { volume_type: "blk".into(), ..whole.clone() });
    host.is_repaired("volume-type");
    let mut other = whole;
    other.metadata.insert("fsGroup".into(), "9".into());
    host.write(&other);
    host.is_repaired("metadata");
    std::fs::remove_dir_all(&host.entry).unwrap();
    assert_eq!(host.state(), EntryState::Missing);
    restore(&host.root, &host.record).unwrap();
    assert_eq!(host.state(), EntryState::Same);
}

#[test]
fn what_is_in_place_of_an_entry_is_somebody_elses_and_waits_for_nobody() {
    let host = Host::new();
    let whole = MountInfo::of(&host.record);
    host.write(&MountInfo { metadata: Default::default(), ..whole.clone() });
    host.is_left("somebody else");
    let mut other = whole;
    other.metadata.insert(VOLUME.into(), "w".into());
    host.write(&other);
    host.is_left("volume w");

    let put = |path: &Path, what: &str| match what {
        "fifo" => mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).unwrap(),
        "link" => symlink("/etc/hostname", path).unwrap(),
        "directory" => std::fs::create_dir(path).unwrap(),
        "socket" => drop(UnixListener::bind(path).unwrap()),
        _ => overwrite(path, b"x").unwrap(),
    };
    for what in ["fifo", "link", "directory", "socket"] {
        let host = Host::new();
        std::fs::remove_file(host.file()).unwrap();
        put(&host.file(), what);
        host.is_left("no regular file");
    }
    for what in ["fifo", "link", "socket", "file"] {
        let host = Host::new();
        std::fs::remove_dir_all(&host.entry).unwrap();
        put(&host.entry, what);
        host.is_left("no directory");
    }
}

#[test]
fn a_cut_file_of_ours_is_taken_back() {
    for text in [None, Some("{\"volume-ty")] {
        let host = Host::new();
        std::fs::remove_file(host.file()).unwrap();
        if let Some(text) = text {
            overwrite(host.file(), text).unwrap();
        }
        host.root.remove(&host.record.target, "d.example", "v").unwrap();
        assert_eq!(host.state(), EntryState::Missing);
    }
}

#[test]
fn another_device_at_the_path_is_noticed() {
    let mut record = record("v");
    record.device = "/dev/null".into();
    record.number = rustix::fs::makedev(1, 3);
    assert_eq!(device(&record).unwrap(), DevicePath::Same);
    record.number += 1;
    assert_eq!(device(&record).unwrap(), DevicePath::Another);
    record.device = "/dev/does-not-exist".into();
    assert_eq!(device(&record).unwrap(), DevicePath::Gone);
}
