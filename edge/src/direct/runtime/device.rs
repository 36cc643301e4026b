//! A device of the host, as far as a runtime's side needs it: its size, whether it is still the one that was
//! published, and whether any process has it open.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// How many bytes a block device, or a file in its place, has.
///
/// # Errors
/// It cannot be opened.
pub fn size(device: &Path) -> io::Result<u64> {
    File::open(device)?.seek(SeekFrom::End(0))
}

/// Whether the device at this path has this number; a recorded number of 0 is of no device and says nothing. Names like
/// `/dev/loop3` are given to other devices in time.
///
/// # Errors
/// It is not there.
pub fn is_still(device: &Path, number: u64) -> io::Result<bool> {
    Ok(number == 0 || std::fs::metadata(device)?.rdev() == number)
}

/// The id of a process that has the device open, other than this one, by what `processes` (`/proc`) shows: all of them
/// only to root, and only in the host's PID namespace.
///
/// # Errors
/// The device is not there, or the processes cannot be listed.
pub fn opened_by(device: &Path, processes: &Path) -> io::Result<Option<u32>> {
    let device = identity(&std::fs::metadata(device)?);
    let own = std::process::id();
    for process in std::fs::read_dir(processes)? {
        let process = process?;
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that has ended meanwhile, or that is not ours to look at, has nothing to show.
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let mut opened = files.flatten().filter_map(|file| std::fs::metadata(file.path()).ok());
        if id != own && opened.any(|meta| identity(&meta) == device) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// What makes two files the same one: of devices their number, whatever node of the file system names it.
fn identity(meta: &Metadata) -> (bool, u64, u64) {
    if meta.file_type().is_block_device() { (true, meta.rdev(), 0) } else { (false, meta.dev(), meta.ino()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_has_it_open_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        assert_eq!(size(file.path()).unwrap(), 4096);
        let processes = Path::new("/proc");
        assert_eq!(opened_by(file.path(), processes).unwrap(), None, "it counts itself");
        let mut holder = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(file.reopen().unwrap())
            .spawn()
            .expect("cat is everywhere");
        assert_eq!(opened_by(file.path(), processes).unwrap(), Some(holder.id()));
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_eq!(opened_by(file.path(), processes).unwrap(), None);
    }

    #[test]
    fn another_device_of_the_same_name_is_told_apart() {
        let null = Path::new("/dev/null");
        let number = std::fs::metadata(null).unwrap().rdev();
        assert!(is_still(null, number).unwrap());
        assert!(is_still(null, 0).unwrap());
        assert!(!is_still(null, number + 1).unwrap());
    }
}
