//! Growth of file system images with the real tools and without root, interrupted growth included.

use super::*;
use crate::device::host::tests::{block_device, with_open};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use tempfile::{NamedTempFile, TempDir};

const UUID: &str = "5f0c4b1e-6f5d-4f0a-9d3e-0123456789ab";
const MIB: u64 = 1 << 20;

/// A device, and a state directory.
struct Place {
    file: NamedTempFile,
    state: TempDir,
}

impl Place {
    fn new(bytes: u64) -> Self {
        let place =
            Self { file: NamedTempFile::new().unwrap(), state: tempfile::tempdir().unwrap() };
        place.becomes(bytes);
        place
    }

    fn ext4(bytes: u64) -> Self {
        let place = Self::new(bytes);
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F", "-U", UUID])
            .arg(place.file.path())
            .status();
        assert!(made.unwrap().success());
        place
    }

    fn becomes(&self, bytes: u64) {
        self.file.as_file().set_len(bytes).unwrap();
    }

    /// The sectors of 512 bytes that are allocated.
    fn sectors(&self) -> u64 {
        self.file.as_file().metadata().unwrap().blocks()
    }

    async fn grow(&self, fstype: &str, uuid: &str) -> Result<u64, GrowError> {
        let growing = Growing::of(self.state.path());
        grow(&Host::default(), &growing, self.file.path(), (fstype, uuid)).await
    }

    fn whole(&self) -> bool {
        let checked =
            Command::new("e2fsck").args(["-f", "-n"]).arg(self.file.path()).output().unwrap();
        checked.status.success()
    }

    fn notes(&self) -> usize {
        std::fs::read_dir(self.state.path().join("direct/growing")).map_or(0, Iterator::count)
    }
}

#[tokio::test]
async fn ext4_is_grown_to_its_device_and_says_how_large_it_is() {
    let place = Place::ext4(16 * MIB);
    assert_eq!(place.grow("ext4", UUID).await.unwrap(), 16 * MIB, "nothing to do");
    place.becomes(64 * MIB);
    assert_eq!(place.grow("ext4", &UUID.to_uppercase()).await.unwrap(), 64 * MIB);
    assert!(place.whole());
    assert_eq!(place.notes(), 0);
}

#[tokio::test]
async fn what_is_not_certainly_ours_is_left_alone() {
    let place = Place::ext4(16 * MIB);
    place.becomes(32 * MIB);
    let before = std::fs::read(place.file.path()).unwrap();
    for (fstype, uuid) in [("ext4", "00000000-0000-0000-0000-000000000001"), ("xfs", UUID)] {
        let other = place.grow(fstype, uuid).await.unwrap_err();
        assert!(matches!(other, GrowError::AnotherFileSystem { .. }), "{other}");
    }
    mend(&Host::default(), &Growing::of(place.state.path()), place.file.path()).await.unwrap();
    assert!(before == std::fs::read(place.file.path()).unwrap(), "it was written to");
}

#[tokio::test]
async fn a_growth_that_was_cut_is_mended_and_ended() {
    // Each round cuts resize2fs after it wrote more, because each point of a growth is mended
    // differently.
    for round in 0..8 {
        let place = Place::ext4(64 * MIB);
        let write = format!("write {} kept", std::env::current_exe().unwrap().display());
        let debugfs = |request: &str| {
            let done = Command::new("debugfs")
                .args(["-w", "-R", request])
                .arg(place.file.path())
                .output()
                .unwrap();
            done.stdout
        };
        debugfs(&write);
        let before = debugfs("stat kept");
        place.becomes(4096 * MIB);
        let growing = Growing::of(place.state.path());
        growing.begin(&Superblock::at(place.file.path()).unwrap().unwrap()).unwrap();
        let quiet = Stdio::null;
        let mut resize = Command::new("resize2fs");
        let mut resize =
            resize.arg(place.file.path()).stdout(quiet()).stderr(quiet()).spawn().unwrap();
        let cut = place.sectors() + round * 128;
        while place.sectors() < cut && resize.try_wait().unwrap().is_none() {
            tokio::task::yield_now().await;
        }
        resize.kill().unwrap();
        resize.wait().unwrap();
        mend(&Host::default(), &growing, place.file.path()).await.unwrap();
        assert_eq!(place.grow("ext4", UUID).await.unwrap(), 4096 * MIB, "round {round}");
        assert!(place.whole(), "round {round}");
        assert_eq!(place.notes(), 0);
        let size = |stat: &[u8]| {
            String::from_utf8_lossy(stat).split_once("Size:").map(|(_, rest)| rest[..20].to_owned())
        };
        assert_eq!(size(&before), size(&debugfs("stat kept")), "round {round}");
    }
}

#[tokio::test]
async fn what_was_mounted_since_is_not_mended_by_force() {
    let place = Place::ext4(16 * MIB);
    let growing = Growing::of(place.state.path());
    let mut found = Superblock::at(place.file.path()).unwrap().unwrap();
    growing.begin(&found).unwrap();
    assert!(growing.was_begun(&found).unwrap());
    found.mounted += 1;
    assert!(!growing.was_begun(&found).unwrap());
}

#[tokio::test]
async fn xfs_is_left_to_a_guest_until_it_fills_its_device() {
    let place = Place::new(16 * MIB);
    let mut head = vec![0; 4096];
    // The beginning that mkfs.xfs writes: magic, block size, blocks, and UUID.
    head[..16].copy_from_slice(b"XFSB\0\0\x10\0\0\0\0\0\0\0\x10\0");
    head[32..48].copy_from_slice(uuid::Uuid::parse_str(UUID).unwrap().as_bytes());
    io::Write::write_all(&mut place.file.as_file(), &head).unwrap();
    assert_eq!(place.grow("xfs", UUID).await.unwrap(), 16 * MIB);
    place.becomes(17 * MIB);
    let xfs = place.grow("xfs", UUID).await.unwrap_err();
    assert!(matches!(xfs, GrowError::NeedsMount { .. }), "{xfs}");
    let growing = Growing::of(place.state.path());
    fill(&Host::default(), &growing, place.file.path(), ("xfs", UUID)).await.unwrap();
}

#[tokio::test]
async fn a_blank_or_short_device_is_no_file_system() {
    for bytes in [0, 1500, 4096] {
        let error = Place::new(bytes).grow("ext4", UUID).await.unwrap_err();
        assert!(matches!(error, GrowError::AnotherFileSystem { .. }), "{error}");
    }
}

/// As udev has it, after a tool has written to it.
#[tokio::test(start_paused = true)]
async fn who_opens_the_device_for_a_moment_is_waited_for() {
    let Some(device) = block_device() else { return };
    let (proc, host) = with_open(&device);
    let state = tempfile::tempdir().unwrap();
    let growing = Growing::of(state.path());
    let held = mend(&host, &growing, &device).await.unwrap_err();
    assert!(matches!(held, GrowError::InUse(DeviceError::Held { .. })), "{held}");
    let closes = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        std::fs::remove_file(proc.path().join("12/fd/3")).unwrap();
    };
    let (mended, ()) = tokio::join!(mend(&host, &growing, &device), closes);
    mended.unwrap();
}
