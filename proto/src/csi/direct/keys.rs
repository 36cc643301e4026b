//! The keys of direct volumes, each with all that it may say. A key or value that is not here is an error.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Asks for a direct volume, and says for which contract; its value is `kata`.
pub const KEY: &str = "edge-csi.io/direct";
const ACCESS: &str = "edge-csi.io/direct-access";
const KIND: &str = "edge-csi.io/direct-kind";
const BLANK: &str = "edge-csi.io/direct-blank";
const MKFS: &str = "edge-csi.io/direct-mkfs-options";
const FSCK: &str = "edge-csi.io/direct-fsck";
const GROUP_CHANGE: &str = "edge-csi.io/direct-fs-group-change";

/// Whether a key is one of direct volumes, known or not.
pub(super) fn is_ours(key: &str) -> bool {
    key.strip_prefix(KEY).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// What is asked for, and cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// A key has a value that it cannot have.
    #[error("{key} is {value:?}, and it can be: {can}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it can be.
        can: &'static str,
    },
    /// A key that nobody knows.
    #[error("{0} is no key of direct volumes; docs/direct-volumes.md lists them")]
    UnknownKey(String),
    /// Details of a direct volume that is none.
    #[error("{0} is given and {KEY} is not; give {KEY}: kata as well, or leave both out")]
    NotDirect(String),
    /// One of our keys among the parameters of a VolumeAttributesClass.
    #[error(
        "{0} is among the mutable parameters; such keys go into the StorageClass, and none of them can be changed later"
    )]
    Mutable(String),
    /// Options for mkfs that are none that it may have.
    #[error("{MKFS} has {0:?}; it can have mkfs's options for the layout of the file system, without paths")]
    MkfsOption(String),
    /// Several pods of a node could have it.
    #[error(
        "access mode {0} (ReadWriteOnce) lets several pods of a node use the volume, and one guest must own it: use \
         ReadWriteOncePod with a driver that has SINGLE_NODE_MULTI_WRITER, or set {ACCESS}: ReadWriteOnce in the class, \
         and a second pod is then refused when it comes"
    )]
    SharedOnNode(&'static str),
    /// Several nodes could have it, or nobody could write.
    #[error("access mode {0} is not for a volume that one guest owns; use ReadWriteOncePod")]
    Shared(&'static str),
    /// A block volume is handed to a guest without our doing.
    #[error(
        "a direct volume is asked for with volumeMode Block; runtimes hand such volumes over by themselves: \
         leave {KEY} out, or use volumeMode Filesystem"
    )]
    Block,
    /// A mount option that a guest cannot have.
    #[error("{0}")]
    MountOption(String),
    /// A group that is no number.
    #[error("volume_mount_group is {0:?}, which is no group's id")]
    Group(String),
    /// No file system that we format.
    #[error("file system {0:?} is none that can be had directly; there are ext4 and xfs")]
    FileSystem(String),
}

/// Whose a volume may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// One pod's, by the word of Kubernetes.
    #[default]
    ReadWriteOncePod,
    /// One node's by the word of Kubernetes; one pod's all the same, because a second one is refused.
    ReadWriteOnce,
}

/// How a volume is handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// As a block device.
    #[default]
    Block,
    /// As a PCI device.
    Vfio,
    /// As a vhost-user socket.
    Spdk,
}

/// What may be formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blank {
    /// What has no signature, and zeroes at its start and end.
    #[default]
    Zero,
    /// What has no signature: for drivers that hand out space as the last volume left it.
    Unsigned,
}

/// What is done about a file system before it is handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsck {
    /// What is safe to mend is mended; what is not stops the hand-over.
    #[default]
    Preen,
    /// Nothing; the guest sees to it.
    Never,
}

/// When the guest gives files to the volume's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// At each mount.
    Always,
    /// If the root directory is not as it should be.
    OnRootMismatch,
}

impl GroupChange {
    /// As runtimes read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::OnRootMismatch => "OnRootMismatch",
        }
    }
}

/// A file system that we make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4.
    #[default]
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Its name, as mount takes it and blkid gives it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

impl FromStr for FileSystem {
    type Err = Contradiction;

    fn from_str(text: &str) -> Result<Self, Contradiction> {
        match text {
            "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            other => Err(Contradiction::FileSystem(other.to_owned())),
        }
    }
}

/// What a class says of its direct volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Direct {
    /// Whose they may be.
    pub access: Access,
    /// How they are handed over.
    pub kind: Kind,
    /// What may be formatted.
    pub blank: Blank,
    /// Further options for mkfs, one word each.
    pub mkfs: Vec<String>,
    /// What is done before they are handed over.
    pub fsck: Fsck,
    /// When the guest gives files to the volume's group; none leaves it to the runtime.
    pub group_change: Option<GroupChange>,
}

impl Direct {
    /// What parameters, or a volume's context, say; none if the volume is not to be direct.
    ///
    /// # Errors
    /// They contradict each other, or say what is not known.
    pub fn read(entries: &BTreeMap<String, String>) -> Result<Option<Self>, Contradiction> {
        let mut ours = entries.iter().filter(|(key, _)| is_ours(key)).peekable();
        let Some((first, _)) = ours.peek() else { return Ok(None) };
        if !entries.contains_key(KEY) {
            return Err(Contradiction::NotDirect((*first).clone()));
        }
        let mut direct = Self::default();
        for (key, value) in ours {
            direct.set(key, value)?;
        }
        Ok(Some(direct))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Contradiction> {
        let bad = |can| Contradiction::Value { key: key.to_owned(), value: value.to_owned(), can };
        match (key, value) {
            (KEY, "kata") => {}
            (KEY, _) => return Err(bad("kata")),
            (ACCESS, "ReadWriteOncePod") => self.access = Access::ReadWriteOncePod,
            (ACCESS, "ReadWriteOnce") => self.access = Access::ReadWriteOnce,
            (ACCESS, _) => return Err(bad("ReadWriteOncePod, ReadWriteOnce")),
            (KIND, "block") => self.kind = Kind::Block,
            (KIND, "vfio") => self.kind = Kind::Vfio,
            (KIND, "spdk") => self.kind = Kind::Spdk,
            (KIND, _) => return Err(bad("block, vfio, spdk")),
            (BLANK, "zero") => self.blank = Blank::Zero,
            (BLANK, "unsigned") => self.blank = Blank::Unsigned,
            (BLANK, _) => return Err(bad("zero, unsigned")),
            (FSCK, "preen") => self.fsck = Fsck::Preen,
            (FSCK, "never") => self.fsck = Fsck::Never,
            (FSCK, _) => return Err(bad("preen, never")),
            (GROUP_CHANGE, "Always") => self.group_change = Some(GroupChange::Always),
            (GROUP_CHANGE, "OnRootMismatch") => self.group_change = Some(GroupChange::OnRootMismatch),
            (GROUP_CHANGE, _) => return Err(bad("Always, OnRootMismatch")),
            (MKFS, words) => self.mkfs = words.split_whitespace().map(str::to_owned).collect(),
            (other, _) => return Err(Contradiction::UnknownKey(other.to_owned())),
        }
        Ok(())
    }

    /// Refuses options that would make mkfs do something else than lay out this one device.
    pub(super) fn check_mkfs(&self, file_system: FileSystem) -> Result<(), Contradiction> {
        // The letters of options that have a value. Labels, UUIDs, force and other devices are not among them.
        let letters = match file_system {
            FileSystem::Ext4 => "bCEgGIiJmNOT",
            FileSystem::Xfs => "bdilmns",
        };
        // Values that name files, or the UUID, which is ours to choose.
        let bad_parts = ["/", "device=", "offset=", "name=", "file", "logdev", "rtdev", "uuid="];
        let mut words = self.mkfs.iter();
        while let Some(word) = words.next() {
            let bad = || Contradiction::MkfsOption(word.clone());
            let (letter, attached) =
                word.strip_prefix('-').and_then(|rest| rest.split_at_checked(1)).ok_or_else(bad)?;
            if word == "-K" && file_system == FileSystem::Xfs {
                continue;
            }
            let value = if attached.is_empty() { words.next().ok_or_else(bad)? } else { attached };
            let is_bad = bad_parts.iter().any(|part| value.contains(part)) || value.starts_with('-');
            if !letters.contains(letter) || is_bad {
                return Err(Contradiction::MkfsOption(format!("{letter} {value}")));
            }
        }
        Ok(())
    }
}
