//! Formatting with the real tools on image files: what a power cut leaves behind, whichever blocks
//! reached the disk.

use std::os::unix::fs::FileExt;
use std::process::Command;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::device::host::tests::skipped;
use proto::host::publish::{Existing, publish};

const MIB: u64 = 1024 * 1024;
const BLOCK: usize = 4096;
const STEPS: [&str; 7] = [
    "before the journal's beginning",
    "before mkfs",
    "after mkfs",
    "before the label goes",
    "after the label went",
    "before the journal's end",
    "after the journal's end",
];

/// A volume, and the state directories of two nodes.
struct TestVolume {
    image: tempfile::NamedTempFile,
    here: tempfile::TempDir,
    there: tempfile::TempDir,
}

fn on(_: &'static str) -> Result<(), FormatError> {
    Ok(())
}

fn wanted(file_system: Option<FileSystem>) -> FormatSettings<'static> {
    FormatSettings { file_system, mkfs: &[], blank: Blank::Zero, fsck: Fsck::Preen }
}

impl TestVolume {
    fn new(size: u64) -> Self {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(size).unwrap();
        Self { image, here: tempfile::tempdir().unwrap(), there: tempfile::tempdir().unwrap() }
    }

    fn journal(&self) -> Journal {
        Journal::of(self.here.path(), "d.example", "v")
    }

    /// The same volume's journal at another node, or here after the state directory was lost.
    fn other_journal(&self) -> Journal {
        Journal::of(self.there.path(), "d.example", "v")
    }

    async fn ready(&self) -> Result<Ready, FormatError> {
        ready(self.image.path(), &self.journal(), wanted(None), &on).await
    }

    async fn cut_at(&self, step: &'static str, file_system: FileSystem) {
        let cut = move |at| if at == step { Err(FormatError::Cut(at)) } else { Ok(()) };
        let done = ready(self.image.path(), &self.journal(), wanted(Some(file_system)), &cut).await;
        assert!(matches!(done, Err(FormatError::Cut(at)) if at == step), "{done:?}");
    }

    async fn seen(&self) -> Seen {
        probe(self.image.path()).await.unwrap()
    }

    /// Fails unless the content is whole, without its label, and this one.
    async fn is_good(&self, ready: &Ready) {
        let found = self.seen().await.signature.unwrap();
        assert_eq!(
            (&*found.kind, &*found.uuid, &*found.label),
            (ready.file_system.as_str(), &*ready.uuid, "")
        );
        let check = match ready.file_system {
            FileSystem::Ext4 => {
                Command::new("e2fsck").args(["-f", "-n"]).arg(self.image.path()).output()
            }
            FileSystem::Xfs => Command::new("xfs_repair").arg("-n").arg(self.image.path()).output(),
        };
        let check = check.unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.image.path()).unwrap()
    }

    fn write(&self, bytes: &[u8]) {
        self.image.as_file().write_all_at(bytes, 0).unwrap();
    }
}

fn has_xfs() -> bool {
    let has = Command::new("mkfs.xfs").arg("-V").output().is_ok();
    if !has {
        skipped("its part with xfs needs xfsprogs");
    }
    has
}

#[tokio::test]
async fn a_blank_volume_is_formatted_once() {
    let volume = TestVolume::new(16 * MIB);
    let first = volume.ready().await.unwrap();
    assert_eq!(first.file_system, FileSystem::Ext4);
    volume.is_good(&first).await;
    assert_eq!(volume.ready().await.unwrap(), first);
    assert_eq!(
        ready(volume.image.path(), &volume.other_journal(), wanted(None), &on).await.unwrap(),
        first
    );
}

#[tokio::test]
async fn a_power_cut_at_any_step_leaves_nothing_that_is_taken_for_good_and_is_not() {
    let mut cases: Vec<_> = STEPS.iter().map(|step| (*step, FileSystem::Ext4, 16)).collect();
    if has_xfs() {
        cases.extend(STEPS.iter().map(|step| (*step, FileSystem::Xfs, 320)));
    }
    for (step, file_system, mib) in cases {
        for here in [true, false] {
            let volume = TestVolume::new(mib * MIB);
            volume.cut_at(step, file_system).await;
            let before = volume.seen().await.signature;
            let journal = if here { volume.journal() } else { volume.other_journal() };
            let ready =
                ready(volume.image.path(), &journal, wanted(Some(file_system)), &on).await.unwrap();
            volume.is_good(&ready).await;
            // Content without its label may have been handed over, so it is never made again.
            if let Some(good) = before.filter(|before| before.label.is_empty()) {
                assert_eq!(good.uuid, ready.uuid, "{step}");
            }
        }
    }
}

/// The code's steps are the ones cut at.
#[tokio::test]
async fn all_steps_are_known_here() {
    let volume = TestVolume::new(16 * MIB);
    let met = Mutex::new(Vec::new());
    let note = |step| {
        met.lock().push(step);
        Ok(())
    };
    ready(volume.image.path(), &volume.journal(), wanted(None), &note).await.unwrap();
    assert_eq!(*met.lock(), STEPS);
}

/// A volume of which the disk has kept only some of mkfs's blocks.
async fn torn(keep: impl Fn(usize) -> bool) -> TestVolume {
    let volume = TestVolume::new(16 * MIB);
    volume.cut_at("after mkfs", FileSystem::Ext4).await;
    let mut bytes = volume.bytes();
    let blank = [0; BLOCK];
    let written = bytes.chunks_mut(BLOCK).filter(|block| **block != blank);
    for (_, block) in written.enumerate().filter(|(at, _)| !keep(*at)) {
        block.fill(0);
    }
    volume.write(&bytes);
    volume
}

async fn torn_is_mended(keep: impl Fn(usize) -> bool + Copy) {
    let volume = torn(keep).await;
    let mended = volume.ready().await.unwrap();
    volume.is_good(&mended).await;
    // Another node has the label alone to go by. Without a label it leaves what is not blank.
    let volume = torn(keep).await;
    let before = volume.bytes();
    match ready(volume.image.path(), &volume.other_journal(), wanted(None), &on).await {
        Ok(mended) => volume.is_good(&mended).await,
        Err(FormatError::NotBlank) => {
            assert!(volume.bytes() == before, "it was refused and written to")
        }
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn whatever_block_of_mkfs_is_lost_or_alone_the_volume_is_made_whole() {
    for lost in 0..12 {
        torn_is_mended(|block| block != lost).await;
        torn_is_mended(|block| block == lost).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn whatever_blocks_of_mkfs_are_lost_the_volume_is_made_whole(kept in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(torn_is_mended(|block| kept >> (block % 64) & 1 == 1));
    }
}

#[tokio::test]
async fn what_says_that_it_is_something_is_never_formatted() {
    for (at, bytes) in [
        (0, b"LUKS\xba\xbe\0\x01".as_slice()),
        (0x218, b"LVM2 001"),
        (4086, b"SWAPSPACE2"),
        (510, b"\x55\xaa"),
        (100, b"nobody knows what this is"),
        (16 * MIB - 30, b"nor this, at the end"),
    ] {
        let volume = TestVolume::new(16 * MIB);
        volume.image.as_file().write_all_at(bytes, at).unwrap();
        let before = volume.bytes();
        let refused = volume.ready().await.unwrap_err();
        assert!(matches!(refused, FormatError::NotBlank | FormatError::Foreign(_)), "{refused:?}");
        assert!(
            volume.bytes() == before && volume.journal().read().unwrap().is_none(),
            "{refused}"
        );
    }
    let volume = TestVolume::new(16 * MIB);
    Command::new("mkfs.ext4")
        .args(["-q", "-L", "theirs"])
        .arg(volume.image.path())
        .output()
        .unwrap();
    let theirs = volume.seen().await.signature.unwrap();
    assert_eq!(volume.ready().await.unwrap().uuid, theirs.uuid);
    let refused =
        ready(volume.image.path(), &volume.journal(), wanted(Some(FileSystem::Xfs)), &on).await;
    assert!(matches!(refused, Err(FormatError::OtherFileSystem { .. })));
    assert_eq!(volume.seen().await.signature.unwrap(), theirs);
}

/// Newer blkids check the checksum of ext4; `probe` has that test.
#[tokio::test]
async fn a_torn_superblock_is_not_formatted_though_the_class_lets_what_has_no_signature_be() {
    if !has_xfs() {
        return;
    }
    let volume = TestVolume::new(320 * MIB);
    Command::new("mkfs.xfs").arg("-q").arg(volume.image.path()).output().unwrap();
    // Sizes that are none.
    for at in [4, 124] {
        volume.image.as_file().write_all_at(&[0xff; 4], at).unwrap();
    }
    let before = volume.bytes();
    let unsigned = FormatSettings { blank: Blank::Unsigned, ..wanted(None) };
    let refused = ready(volume.image.path(), &volume.journal(), unsigned, &on).await.unwrap_err();
    assert!(matches!(refused, FormatError::Probe(ProbeError::Torn("xfs"))), "{refused:?}");
    assert!(volume.bytes() == before && volume.journal().read().unwrap().is_none());
}

#[tokio::test]
async fn bytes_without_a_signature_are_formatted_only_if_the_class_says_so() {
    let volume = TestVolume::new(16 * MIB);
    volume.image.as_file().write_all_at(b"what the last volume left", 9000).unwrap();
    let unsigned = FormatSettings { blank: Blank::Unsigned, ..wanted(None) };
    let made = ready(volume.image.path(), &volume.journal(), unsigned, &on).await.unwrap();
    volume.is_good(&made).await;
}

#[tokio::test]
async fn a_volume_that_had_a_file_system_and_reads_blank_is_not_formatted() {
    let volume = TestVolume::new(16 * MIB);
    volume.ready().await.unwrap();
    volume.write(&vec![0; volume.bytes().len()]);
    assert!(matches!(volume.ready().await, Err(FormatError::Lost(_))));
    assert!(volume.seen().await.zero);
}

#[tokio::test]
async fn a_device_that_took_the_place_of_the_volume_is_left_alone() {
    let volume = TestVolume::new(16 * MIB);
    volume.cut_at("before mkfs", FileSystem::Ext4).await;
    // Another device, with other content or size, where formatting was begun.
    volume.image.as_file().set_len(32 * MIB).unwrap();
    assert!(matches!(volume.ready().await, Err(FormatError::OtherSize { .. })));
    Command::new("mkfs.ext4")
        .args(["-q", "-L", "theirs"])
        .arg(volume.image.path())
        .output()
        .unwrap();
    let theirs = volume.seen().await.signature.unwrap();
    assert_eq!(
        volume.ready().await.unwrap().uuid,
        theirs.uuid,
        "it is what it was, and handed over"
    );
    assert_eq!(volume.seen().await.signature.unwrap(), theirs);
}

#[tokio::test]
async fn a_file_system_that_is_not_the_volumes_is_neither_checked_nor_handed_over() {
    let volume = TestVolume::new(16 * MIB);
    let made = volume.ready().await.unwrap();
    Command::new("mkfs.ext4").args(["-q", "-F"]).arg(volume.image.path()).output().unwrap();
    // e2fsck would repair this.
    let args = ["-w", "-R", "set_super_value free_blocks_count 1"];
    Command::new("debugfs").args(args).arg(volume.image.path()).output().unwrap();
    let before = volume.bytes();
    let refused = volume.ready().await.unwrap_err();
    assert!(
        matches!(&refused, FormatError::Another { then, .. } if *then == made.uuid),
        "{refused:?}"
    );
    assert!(volume.bytes() == before, "it was written to");
}

#[tokio::test]
async fn a_copy_of_a_volume_that_was_being_formatted_is_refused() {
    let volume = TestVolume::new(16 * MIB);
    volume.cut_at("before the label goes", FileSystem::Ext4).await;
    let before = volume.bytes();
    let copy = Journal::of(volume.here.path(), "d.example", "copy");
    let refused = ready(volume.image.path(), &copy, wanted(None), &on).await.unwrap_err();
    assert!(matches!(refused, FormatError::CopyOfUnfinished(_)), "{refused:?}");
    assert!(volume.bytes() == before && copy.read().unwrap().is_none());
}

#[tokio::test]
async fn a_journal_that_cannot_be_read_stops_everything() {
    let volume = TestVolume::new(16 * MIB);
    let state = volume.here.path().join("direct");
    publish(&state, b"no directory", 0o600, Existing::Keep).unwrap();
    assert!(matches!(volume.ready().await, Err(FormatError::Journal(_))));
    assert!(volume.seen().await.zero);
}

#[tokio::test]
async fn mkfs_options_count_and_those_that_make_no_such_file_system_do_not_pass() {
    let volume = TestVolume::new(16 * MIB);
    let mkfs = ["-b", "2048"].map(str::to_owned);
    ready(
        volume.image.path(),
        &volume.journal(),
        FormatSettings { mkfs: &mkfs, ..wanted(None) },
        &on,
    )
    .await
    .unwrap();
    let found = Command::new("blkid")
        .args(["-p", "-o", "value", "-s", "BLOCK_SIZE"])
        .arg(volume.image.path())
        .output();
    assert_eq!(found.unwrap().stdout, b"2048\n");
    let volume = TestVolume::new(16 * MIB);
    let mkfs = ["-b", "3"].map(str::to_owned);
    let refused = ready(
        volume.image.path(),
        &volume.journal(),
        FormatSettings { mkfs: &mkfs, ..wanted(None) },
        &on,
    )
    .await;
    assert!(matches!(refused, Err(FormatError::Tool(ToolError::Failed { .. }))));
    // The class was corrected.
    let made = volume.ready().await.unwrap();
    volume.is_good(&made).await;
}

#[tokio::test]
async fn a_used_file_system_is_mended_or_not_handed_over() {
    let volume = TestVolume::new(16 * MIB);
    let made = volume.ready().await.unwrap();
    // Wrong counts are safe to repair.
    let debugfs = |words: &str| {
        Command::new("debugfs")
            .args(["-w", "-R", words])
            .arg(volume.image.path())
            .output()
            .unwrap();
    };
    debugfs("set_super_value state 2");
    debugfs("set_super_value free_blocks_count 1");
    assert_eq!(volume.ready().await.unwrap(), made);
    volume.is_good(&made).await;
    // A root directory that is not one.
    debugfs("set_super_value state 2");
    debugfs("clri <2>");
    assert!(matches!(volume.ready().await, Err(FormatError::Tool(_))));
    let never = FormatSettings { fsck: Fsck::Never, ..wanted(None) };
    assert_eq!(ready(volume.image.path(), &volume.journal(), never, &on).await.unwrap(), made);
}

#[tokio::test]
async fn what_says_that_it_is_clean_is_read_whole_if_two_guests_may_have_had_it() {
    let volume = TestVolume::new(16 * MIB);
    let made = volume.ready().await.unwrap();
    let args = ["-w", "-R", "set_inode_field <2> links_count 9"];
    Command::new("debugfs").args(args).arg(volume.image.path()).output().unwrap();
    let is_damaged = || {
        let check = Command::new("e2fsck").args(["-f", "-n"]).arg(volume.image.path()).output();
        !check.unwrap().status.success()
    };
    assert_eq!(volume.ready().await.unwrap(), made);
    assert!(is_damaged(), "it was read whole");
    volume.journal().suspect().unwrap();
    let never = FormatSettings { fsck: Fsck::Never, ..wanted(None) };
    ready(volume.image.path(), &volume.journal(), never, &on).await.unwrap();
    assert!(is_damaged(), "it was checked against its class");
    assert_eq!(volume.ready().await.unwrap(), made);
    volume.is_good(&made).await;
    let ready = Content::Ready { uuid: made.uuid, suspect: false };
    assert_eq!(volume.journal().read().unwrap(), Some(ready));
}

#[tokio::test]
async fn a_protected_file_system_that_is_clean_is_not_waited_for() {
    let volume = TestVolume::new(16 * MIB);
    let made = volume.ready().await.unwrap();
    crate::format::mmp::protect(volume.image.path()).await.unwrap();
    let before = volume.bytes();
    let begun = tokio::time::Instant::now();
    assert_eq!(volume.ready().await.unwrap(), made);
    // e2fsck waits for 11 s.
    assert!(begun.elapsed().as_secs() < 5 && volume.bytes() == before);
    volume.is_good(&made).await;
}
