//! The mount options of a direct volume's guest, out of a capability's mount flags.
//!
//! The guest's kernel mounts the device, so only options of that kernel reach it. Cloud and edge
//! share this list: the cloud refuses a class by it, and the edge an older volume.

use super::keys::{Contradiction, FileSystem};

/// The mount options that the guest gets, and those that it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestOptions {
    /// Its options, each once and in order; `ro` comes last.
    pub options: Vec<String>,
    /// Words for the host alone. They say nothing about the data.
    pub dropped: Vec<String>,
}

impl GuestOptions {
    /// True if the guest mounts its device for reading only.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }
}

/// The value of an option.
#[derive(Clone, Copy)]
enum Value {
    /// None.
    No,
    /// A number.
    Number,
    /// A number, with `k`, `m` or `g` after it if need be.
    Size,
    /// One of these words.
    Word(&'static [&'static str]),
}

use Value::{No, Number, Size, Word};

/// Mount options that concern only the host: bind mounts, users who may mount, mounts at boot,
/// SELinux.
const OF_THE_HOST: [&str; 28] = [
    "_netdev",
    "auto",
    "bind",
    "defaults",
    "group",
    "loud",
    "noauto",
    "nofail",
    "nogroup",
    "noowner",
    "nouser",
    "nousers",
    "owner",
    "private",
    "rbind",
    "remount",
    "rprivate",
    "rshared",
    "rslave",
    "runbindable",
    "rw",
    "seclabel",
    "shared",
    "silent",
    "slave",
    "unbindable",
    "user",
    "users",
];
/// The same, with anything behind.
const OF_THE_HOST_WITH_VALUES: [&str; 11] = [
    "X-",
    "x-",
    "comment=",
    "context=",
    "defcontext=",
    "fscontext=",
    "helper=",
    "rootcontext=",
    "seclabel=",
    "uhelper=",
    "user=",
];

/// Options that are known and not for a guest, with the reason.
const REFUSED: [(&str, &str); 16] = [
    ("nosymfollow", "guests do not know it, and without it symlinks would be followed"),
    ("nouuid", "it would let a guest mount one device twice, which destroys it"),
    ("noload", "its journal must be replayed"),
    ("norecovery", "its journal must be replayed"),
    ("dax", "the guest's disk has no memory to map"),
    ("loop", "a guest mounts its device whole"),
    ("offset", "a guest mounts its device whole"),
    ("sizelimit", "a guest mounts its device whole"),
    ("encryption", "a guest mounts its device whole"),
    ("sb", "a guest mounts its device whole"),
    ("logdev", "a guest has one device"),
    ("rtdev", "a guest has one device"),
    ("journal", "a guest has one device"),
    ("journal_dev", "a guest has one device"),
    ("journal_path", "a guest has one device"),
    ("abort", "it makes the file system read-only at once"),
];

/// Options of every file system.
const GENERIC: [(&str, Value); 20] = [
    ("async", No),
    ("atime", No),
    ("dev", No),
    ("diratime", No),
    ("dirsync", No),
    ("exec", No),
    ("lazytime", No),
    ("noatime", No),
    ("nodev", No),
    ("nodiratime", No),
    ("noexec", No),
    ("nolazytime", No),
    ("norelatime", No),
    ("nostrictatime", No),
    ("nosuid", No),
    ("relatime", No),
    ("ro", No),
    ("strictatime", No),
    ("suid", No),
    ("sync", No),
];

/// Not `noacl` and `nouser_xattr`, which newer kernels refuse, and not `prjquota`, which needs a
/// feature that mkfs leaves out.
const EXT4: [(&str, Value); 53] = [
    ("acl", No),
    ("auto_da_alloc", No),
    ("auto_da_alloc", Number),
    ("barrier", No),
    ("barrier", Number),
    ("block_validity", No),
    ("bsddf", No),
    ("bsdgroups", No),
    ("commit", Number),
    ("data", Word(&["journal", "ordered", "writeback"])),
    ("data_err", Word(&["abort", "ignore"])),
    ("delalloc", No),
    ("dioread_lock", No),
    ("dioread_nolock", No),
    ("discard", No),
    ("errors", Word(&["continue", "panic", "remount-ro"])),
    ("grpid", No),
    ("grpquota", No),
    ("i_version", No),
    ("init_itable", No),
    ("init_itable", Number),
    ("inode_readahead_blks", Number),
    ("journal_async_commit", No),
    ("journal_checksum", No),
    ("journal_ioprio", Number),
    ("max_batch_time", Number),
    ("max_dir_size_kb", Number),
    ("mb_optimize_scan", Number),
    ("min_batch_time", Number),
    ("minixdf", No),
    ("no_mbcache", No),
    ("no_prefetch_block_bitmaps", No),
    ("noauto_da_alloc", No),
    ("nobarrier", No),
    ("noblock_validity", No),
    ("nodelalloc", No),
    ("nodiscard", No),
    ("nodioread_nolock", No),
    ("nogrpid", No),
    ("noinit_itable", No),
    ("nojournal_checksum", No),
    ("noquota", No),
    ("nouid32", No),
    ("oldalloc", No),
    ("orlov", No),
    ("prefetch_block_bitmaps", No),
    ("quota", No),
    ("resgid", Number),
    ("resuid", Number),
    ("stripe", Number),
    ("sysvgroups", No),
    ("user_xattr", No),
    ("usrquota", No),
];

/// Not `noattr2`, which no kernel takes for a file system that mkfs makes now.
const XFS: [(&str, Value); 34] = [
    ("allocsize", Size),
    ("attr2", No),
    ("bsdgroups", No),
    ("discard", No),
    ("filestreams", No),
    ("gqnoenforce", No),
    ("gquota", No),
    ("grpid", No),
    ("grpquota", No),
    ("ikeep", No),
    ("inode32", No),
    ("inode64", No),
    ("largeio", No),
    ("logbsize", Size),
    ("logbufs", Word(&["0", "2", "3", "4", "5", "6", "7", "8"])),
    ("noalign", No),
    ("nodiscard", No),
    ("nogrpid", No),
    ("noikeep", No),
    ("nolargeio", No),
    ("noquota", No),
    ("pqnoenforce", No),
    ("pquota", No),
    ("prjquota", No),
    ("qnoenforce", No),
    ("quota", No),
    ("sunit", Number),
    ("swalloc", No),
    ("swidth", Number),
    ("sysvgroups", No),
    ("uqnoenforce", No),
    ("uquota", No),
    ("usrquota", No),
    ("wsync", No),
];

/// Options that are known, and refused.
pub fn refused() -> impl Iterator<Item = &'static str> {
    REFUSED.iter().map(|(name, _)| *name)
}

/// Each option that a guest can have, in each of its forms: with each word, or with 1 or 32 KiB.
pub fn examples(file_system: FileSystem) -> Vec<String> {
    let own: &[(&str, Value)] = match file_system {
        FileSystem::Ext4 => &EXT4,
        FileSystem::Xfs => &XFS,
    };
    let examples = GENERIC.iter().chain(own).flat_map(|(name, value)| value.examples(name));
    examples.collect()
}

/// The options of these flags that a guest gets.
///
/// # Errors
/// The first option that a guest cannot have, and why.
pub fn for_guest(
    flags: &[String],
    file_system: FileSystem,
    read_only: bool,
) -> Result<GuestOptions, Contradiction> {
    let mut found = GuestOptions::default();
    let mut read_only = read_only;
    for word in flags.iter().flat_map(|flag| words(flag)).map(str::trim) {
        if word == "ro" {
            read_only = true;
        } else if is_of_the_host(word) {
            found.dropped.push(word.to_owned());
        } else if !word.is_empty() && !found.options.iter().any(|there| there == word) {
            check(word, file_system)?;
            found.options.push(word.to_owned());
        }
    }
    is_mountable(&found.options)?;
    found.options.extend(read_only.then(|| "ro".to_owned()));
    Ok(found)
}

/// The options in a flag. A policy's context contains commas.
fn words(flag: &str) -> Vec<&str> {
    let is_policy = |key: &str| key.ends_with("context") && !key.contains(',');
    let is_of_policy = flag.split_once('=').is_some_and(|(key, _)| is_policy(key));
    if is_of_policy { vec![flag] } else { flag.split(',').collect() }
}

fn is_of_the_host(word: &str) -> bool {
    OF_THE_HOST.contains(&word)
        || OF_THE_HOST_WITH_VALUES.iter().any(|prefix| word.starts_with(prefix))
}

/// Refuses options that a kernel takes only together with others.
fn is_mountable(options: &[String]) -> Result<(), Contradiction> {
    const ASYNC: &str = "journal_async_commit";
    let data = options.iter().rev().find_map(|option| option.strip_prefix("data="));
    if options.iter().any(|option| option == ASYNC) && matches!(data, None | Some("ordered")) {
        let why = "ext4 mounts with it only with data=writeback or data=journal".to_owned();
        return Err(Contradiction::MountOption { option: ASYNC.to_owned(), why });
    }
    Ok(())
}

fn check(word: &str, file_system: FileSystem) -> Result<(), Contradiction> {
    let refused = |why: String| Err(Contradiction::MountOption { option: word.to_owned(), why });
    let key = word.split_once('=').map_or(word, |(key, _)| key);
    if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == key) {
        return refused((*why).to_owned());
    }
    let own: &[(&str, Value)] = match file_system {
        FileSystem::Ext4 => &EXT4,
        FileSystem::Xfs => &XFS,
    };
    let mut known = GENERIC.iter().chain(own).filter(|(name, _)| *name == key).peekable();
    let name = file_system.as_str();
    if known.peek().is_none() {
        return refused(format!("it is none of the known options of {name}"));
    }
    if known.any(|(_, value)| value.is_in(word)) {
        return Ok(());
    }
    refused(format!("{name} does not take it with this value"))
}

impl Value {
    /// An option with each of its words, or with a number or a size.
    fn examples(self, name: &str) -> Vec<String> {
        match self {
            No => vec![name.to_owned()],
            Number => vec![format!("{name}=1")],
            Size => vec![format!("{name}=32k"), format!("{name}=32768")],
            Word(words) => words.iter().map(|word| format!("{name}={word}")).collect(),
        }
    }

    /// True if an option has a value of this kind.
    fn is_in(self, word: &str) -> bool {
        let value = word.split_once('=').map(|(_, value)| value);
        let is_number = |text: &str| {
            (1..=19).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        match (self, value) {
            (No, value) => value.is_none(),
            (Number, Some(text)) => is_number(text),
            (Size, Some(text)) => is_number(text.strip_suffix(['k', 'm', 'g']).unwrap_or(text)),
            (Word(words), Some(text)) => words.contains(&text),
            (_, None) => false,
        }
    }
}

#[cfg(test)]
mod tests;
