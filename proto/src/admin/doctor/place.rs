//! Checks a directory: it must exist, be writable, and have room. The check writes nothing.

use std::io;
use std::path::Path;

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

use super::finding::Finding;

/// A disk with less of its bytes or files free is nearly full, in percent.
const SCARCE: u64 = 10;
/// A disk with less of them free is full, in percent.
const FULL: u64 = 1;
/// A state directory needs at least this many free bytes.
pub const ROOM: u64 = 64 << 20;

/// The state of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It cannot be looked at: `NotFound`, or the system's error.
    Unseen(io::ErrorKind, String),
    /// Something else has its path.
    NoDirectory,
    /// It is there.
    There {
        /// Whether this process may make files in it; why not, if it may not.
        writable: Result<(), String>,
        /// The room on its disk.
        room: Room,
    },
}

/// The room on a disk, for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Free bytes.
    pub free: u64,
    /// All bytes.
    pub total: u64,
    /// Files that can still be made.
    pub free_files: u64,
    /// All files; 0 if the file system has no such limit.
    pub total_files: u64,
}

/// Looks at a directory. A file system that hangs holds the caller.
pub fn look(path: &Path) -> Place {
    match look_closely(path) {
        Ok(place) => place,
        Err(error) => Place::Unseen(error.kind(), error.to_string()),
    }
}

fn look_closely(path: &Path) -> io::Result<Place> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(Place::NoDirectory);
    }
    let disk = statvfs(path)?;
    let writable = match access(path, Access::WRITE_OK | Access::EXEC_OK) {
        // Some file systems in user space let everything pass here.
        Ok(()) if disk.f_flag.contains(StatVfsMountFlags::RDONLY) => {
            Err("its file system is read-only".to_owned())
        }
        Ok(()) => Ok(()),
        Err(error) => Err(io::Error::from(error).to_string()),
    };
    let unit = disk.f_frsize;
    let room = Room {
        free: disk.f_bavail.saturating_mul(unit),
        total: disk.f_blocks.saturating_mul(unit),
        free_files: disk.f_favail,
        total_files: disk.f_files,
    };
    Ok(Place::There { writable, room })
}

/// The purpose of a directory, and advice for when it fails the check.
#[derive(Clone, Copy, Debug)]
pub struct Use<'a> {
    /// The word of the check.
    pub check: &'a str,
    /// The directory.
    pub path: &'a Path,
    /// The bytes that must be free, however large the disk is.
    pub least: u64,
    /// Advice if it is missing.
    pub missing: &'a str,
}

/// Judges a directory.
pub fn directory(used: Use<'_>, place: &Place) -> Finding {
    let Use { check, path, least, missing } = used;
    let about = path.display().to_string();
    match place {
        Place::Unseen(io::ErrorKind::NotFound, _) => {
            Finding::fault(check, about, "there is none", missing)
        }
        Place::Unseen(_, why) => Finding::fault(
            check,
            about,
            format!("it cannot be looked at: {why}"),
            "run this as the user that the program runs as, and look at the disk",
        ),
        Place::NoDirectory => {
            Finding::fault(check, about, "it is no directory", "move it away, or name another path")
        }
        Place::There { writable: Err(why), .. } => Finding::fault(
            check,
            about,
            format!("it cannot be written: {why}"),
            "run this as the user that the program runs as; if it cannot be written then either, \
             give it the directory, and mount the disk read-write (after an error of the disk the \
             kernel mounts it read-only: dmesg)",
        ),
        Place::There { writable: Ok(()), room } => free(check, about, *room, least),
    }
}

/// Judges the room on a disk.
pub fn free(check: &str, about: impl Into<String>, room: Room, least: u64) -> Finding {
    let bytes = percent(room.free, room.total);
    let files =
        if room.total_files == 0 { 100 } else { percent(room.free_files, room.total_files) };
    let mut found = format!("{} free of {} ({bytes} %)", size(room.free), size(room.total));
    if files < SCARCE {
        found = format!("{found}, {} files free ({files} %)", room.free_files);
    }
    let left = bytes.min(files);
    let about = about.into();
    let advice = "free space on that disk, or give the directory a larger one; a full disk keeps \
                  what must be durable from being written, and such calls fail";
    if left < FULL || room.free < least {
        return Finding::fault(check, about, found, advice);
    }
    if left < SCARCE {
        return Finding::warning(check, about, found, advice);
    }
    Finding::ok(check, about, found)
}

fn percent(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(100)
}

/// A number of bytes as people read it.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=9_999_999 => format!("{} KiB", bytes >> 10),
        10_000_000..=9_999_999_999 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::doctor::Verdict;

    const GIB: u64 = 1 << 30;

    fn judged(place: &Place) -> Finding {
        let path = Path::new("/d");
        directory(Use { check: "state", path, least: ROOM, missing: "make it" }, place)
    }

    fn with(free: u64, total: u64, free_files: u64) -> Finding {
        let room = Room { free, total, free_files, total_files: 1000 };
        judged(&Place::There { writable: Ok(()), room })
    }

    #[test]
    fn a_disk_is_scarce_below_a_tenth_and_full_below_a_hundredth() {
        for (finding, verdict) in [
            (with(10 * GIB, 100 * GIB, 500), Verdict::Ok),
            (with(9 * GIB, 100 * GIB, 500), Verdict::Warning),
            (with(GIB, 100 * GIB, 500), Verdict::Warning),
            (with(GIB - 1, 100 * GIB, 500), Verdict::Fault),
            (with(ROOM, ROOM, 500), Verdict::Ok),
            (with(ROOM - 1, ROOM, 500), Verdict::Fault),
            (with(50 * GIB, 100 * GIB, 99), Verdict::Warning),
            (with(50 * GIB, 100 * GIB, 9), Verdict::Fault),
        ] {
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert_eq!(finding.advice.is_empty(), verdict == Verdict::Ok);
        }
        let room = Room { free: GIB, total: GIB, free_files: 0, total_files: 0 };
        assert_eq!(free("disk", "d", room, 0).verdict, Verdict::Ok, "it counts no files");
    }

    #[test]
    fn a_directory_is_looked_at_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let Place::There { writable: Ok(()), room } = look(dir.path()) else { panic!() };
        assert!(room.total >= room.free && room.total > 0, "{room:?}");
        let none = judged(&look(&dir.path().join("none")));
        assert_eq!((none.found.as_str(), none.advice.as_str()), ("there is none", "make it"));
        let file = dir.path().join("file");
        std::fs::File::create(&file).unwrap();
        assert_eq!(look(&file), Place::NoDirectory);
        assert_eq!(judged(&look(&file.join("below"))).verdict, Verdict::Fault);
        let closed = Place::There { writable: Err("read-only".into()), room };
        let closed = judged(&closed);
        assert_eq!(closed.verdict, Verdict::Fault);
        assert!(closed.found.contains("cannot be written: read-only"), "{closed:?}");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            [5, 64 << 20, 64 << 10, 40 << 30].map(size),
            ["5 B", "64 MiB", "64 KiB", "40 GiB"]
        );
    }
}
