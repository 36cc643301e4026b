//! What Kata's agent does with a volume's storage, stated again from its code. It says which
//! options are flags of mount(2), and how a group gets a volume.

use std::collections::BTreeMap;
use std::fs::{Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use anyhow::Context;
use rustix::mount::MountFlags;
use serde::{Deserialize, Serialize};

/// What a group gets of a file that may be written, and of one that may not.
const FILES: [u32; 2] = [0o660, 0o440];
/// And besides of a directory: it is searched, and what is made in it is the group's.
const DIRECTORIES: u32 = 0o2110;

/// Options that are flags. Those with `true` take the flag away.
const FLAGS: [(&str, bool, MountFlags); 20] = [
    ("ro", false, MountFlags::RDONLY),
    ("rw", true, MountFlags::RDONLY),
    ("nosuid", false, MountFlags::NOSUID),
    ("suid", true, MountFlags::NOSUID),
    ("nodev", false, MountFlags::NODEV),
    ("dev", true, MountFlags::NODEV),
    ("noexec", false, MountFlags::NOEXEC),
    ("exec", true, MountFlags::NOEXEC),
    ("sync", false, MountFlags::SYNCHRONOUS),
    ("async", true, MountFlags::SYNCHRONOUS),
    ("dirsync", false, MountFlags::DIRSYNC),
    ("noatime", false, MountFlags::NOATIME),
    ("atime", true, MountFlags::NOATIME),
    ("nodiratime", false, MountFlags::NODIRATIME),
    ("diratime", true, MountFlags::NODIRATIME),
    ("relatime", false, MountFlags::RELATIME),
    ("norelatime", true, MountFlags::RELATIME),
    ("strictatime", false, MountFlags::STRICTATIME),
    ("nostrictatime", true, MountFlags::STRICTATIME),
    ("defaults", false, MountFlags::empty()),
];

/// What all file systems have is flags for the kernel; the rest is for the file system.
pub fn flags(options: &[String]) -> (MountFlags, String) {
    let mut flags = MountFlags::empty();
    let mut data = Vec::new();
    for option in options {
        match FLAGS.iter().find(|(word, ..)| word == option) {
            Some((_, true, flag)) => flags.remove(*flag),
            Some((_, false, flag)) => flags.insert(*flag),
            None => data.push(option.as_str()),
        }
    }
    (flags, data.join(","))
}

/// The group that gets a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its id.
    pub id: u32,
    /// Nothing is changed if the root is the group's already.
    pub on_root_mismatch: bool,
}

impl Group {
    /// The group in an entry's metadata, if there is one.
    ///
    /// # Errors
    /// It is no number.
    pub fn of(metadata: &BTreeMap<String, String>) -> anyhow::Result<Option<Self>> {
        let Some(group) = metadata.get("fsGroup") else { return Ok(None) };
        let id = group.parse().with_context(|| format!("fsGroup {group}"))?;
        let policy = metadata.get("fsGroupChangePolicy").map(String::as_str);
        Ok(Some(Self { id, on_root_mismatch: policy == Some("OnRootMismatch") }))
    }

    /// Gives the group all of a mounted volume, also of one that cannot be written.
    ///
    /// # Errors
    /// The system's: EROFS if the volume is mounted for reading only.
    pub fn gets(self, root: &Path, is_read_only: bool) -> io::Result<()> {
        let meta = std::fs::metadata(root)?;
        let mode = meta.permissions().mode();
        if self.on_root_mismatch && meta.gid() == self.id && given(&meta, is_read_only) == mode {
            return Ok(());
        }
        give(root, self.id, is_read_only)
    }
}

/// The mode that something has when its group may use it.
fn given(meta: &Metadata, is_read_only: bool) -> u32 {
    let more = if meta.is_dir() { DIRECTORIES } else { 0 };
    meta.permissions().mode() | FILES[usize::from(is_read_only)] | more
}

fn give(path: &Path, group: u32, is_read_only: bool) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    if meta.is_symlink() {
        return Ok(());
    }
    if meta.is_dir() {
        for entry in std::fs::read_dir(path)? {
            give(&entry?.path(), group, is_read_only)?;
        }
    }
    chown(path, None, Some(group))?;
    std::fs::set_permissions(path, Permissions::from_mode(given(&meta, is_read_only)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_all_file_systems_are_flags_and_the_others_text() {
        let text = |options: &[&str]| {
            flags(&options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
        };
        let nothing = MountFlags::empty();
        assert_eq!(text(&[]), (nothing, String::new()));
        let both = MountFlags::NOATIME | MountFlags::RDONLY;
        assert_eq!(text(&["noatime", "ro"]), (both, String::new()));
        assert_eq!(text(&["noatime", "atime", "defaults"]), (nothing, String::new()));
        assert_eq!(
            text(&["rw", "data=ordered", "lazytime"]),
            (nothing, "data=ordered,lazytime".to_owned())
        );
    }

    #[test]
    fn a_group_gets_all_that_is_in_a_directory_and_nothing_beyond_it() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let beyond = tempfile::NamedTempFile::new()?;
        std::fs::create_dir(dir.path().join("below"))?;
        std::fs::File::create(dir.path().join("below/file"))?
            .set_permissions(Permissions::from_mode(0o600))?;
        std::os::unix::fs::symlink(beyond.path(), dir.path().join("link"))?;
        let before = beyond.path().metadata()?.permissions().mode();
        // Any of ours: another group needs root.
        let id = rustix::process::getegid().as_raw();
        let mode = |name: &str| {
            dir.path().join(name).metadata().map(|meta| meta.permissions().mode() & 0o7777)
        };
        let group = Group { id, on_root_mismatch: true };
        group.gets(dir.path(), false)?;
        assert_eq!((mode("below")? & 0o2770, mode("below/file")?), (0o2770, 0o660));
        assert_eq!(beyond.path().metadata()?.permissions().mode(), before);
        // The root is the group's already.
        std::fs::set_permissions(dir.path().join("below/file"), Permissions::from_mode(0o600))?;
        group.gets(dir.path(), false)?;
        assert_eq!(mode("below/file")?, 0o600);
        Group { on_root_mismatch: false, ..group }.gets(dir.path(), true)?;
        assert_eq!(mode("below/file")?, 0o640);
        Ok(())
    }

    #[test]
    fn a_group_is_a_number() {
        let metadata = |pairs: &[(&str, &str)]| {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            Group::of(&pairs.iter().map(owned).collect())
        };
        assert_eq!(metadata(&[]).unwrap(), None);
        let group = Group { id: 7, on_root_mismatch: false };
        assert_eq!(metadata(&[("fsGroup", "7")]).unwrap(), Some(group));
        let policy = ("fsGroupChangePolicy", "OnRootMismatch");
        let group = Group { on_root_mismatch: true, ..group };
        assert_eq!(metadata(&[("fsGroup", "7"), policy]).unwrap(), Some(group));
        assert!(metadata(&[("fsGroup", "x")]).is_err());
    }
}
