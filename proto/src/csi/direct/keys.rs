//! The keys of direct volumes and their values. An unknown key or value is an error.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Asks for a direct volume; its value is the contract, `kata`. In a class it may be `auto`.
pub const KEY: &str = "edge-csi.io/direct";
/// In a class: the RuntimeClass of the pods decides, once, when the volume is created.
const AUTO: &str = "auto";
/// The contract that there is.
const KATA: &str = "kata";
/// In a volume's context: its class has `auto`, and it is an ordinary volume.
pub const NONE: &str = "none";
/// In a volume's context: the source of the decision whether it is direct. Up to 0.2, ordinary
/// volumes lack it.
const BY: &str = "edge-csi.io/direct-by";
/// The RuntimeClass of the pods did.
const RUNTIME_CLASS: &str = "runtime-class";
const ACCESS: &str = "edge-csi.io/direct-access";
const KIND: &str = "edge-csi.io/direct-kind";
const BLANK: &str = "edge-csi.io/direct-blank";
const MKFS: &str = "edge-csi.io/direct-mkfs-options";
const FSCK: &str = "edge-csi.io/direct-fsck";
const GROUP_CHANGE: &str = "edge-csi.io/direct-fs-group-change";

/// All keys that a StorageClass can have. csi-cloud refuses others with the prefix `edge-csi.io/`.
pub const OF_A_CLASS: [&str; 7] = [KEY, ACCESS, BLANK, GROUP_CHANGE, FSCK, KIND, MKFS];

/// Whether a key, known or not, is about direct volumes.
pub(super) fn is_ours(key: &str) -> bool {
    key.strip_prefix(KEY).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The reason why settings or a capability of a direct volume are refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// A key with an unknown value.
    #[error("{key} is {value:?}, and it can be: {can}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Its known values.
        can: &'static str,
    },
    /// An unknown key.
    #[error("{0} is no key of direct volumes; docs/how-to/direct-volumes.md lists them")]
    UnknownKey(String),
    /// The decision is left open where it had to be made.
    #[error(
        "{KEY} is auto, which csi-cloud decides when it creates a volume, and this one it did not \
         create so; write kata, or leave {KEY} out"
    )]
    NotDecided,
    /// Settings of a volume that is not direct.
    #[error("{0} is given and {KEY} is not; give {KEY}: kata as well, or leave both out")]
    NotDirect(String),
    /// Options that mkfs may not have.
    #[error(
        "{MKFS} has {0:?}; it can have mkfs's options for the layout of the file system, without \
         paths"
    )]
    MkfsOption(String),
    /// Several pods of a node could use it.
    #[error(
        "access mode {0} (ReadWriteOnce) lets several pods of a node use the volume, and one guest \
         must own it: use ReadWriteOncePod with a driver that has SINGLE_NODE_MULTI_WRITER, or set \
         {ACCESS}: ReadWriteOnce in the class, and a second pod is then refused when it comes"
    )]
    SharedOnNode(&'static str),
    /// Several nodes could use it, or none could write.
    #[error("access mode {0} is not for a volume that one guest owns; use ReadWriteOncePod")]
    Shared(&'static str),
    /// A block volume: runtimes pass those to guests by themselves.
    #[error(
        "a direct volume is asked for with volumeMode Block; runtimes hand such volumes over by \
         themselves: leave {KEY} out, or use volumeMode Filesystem"
    )]
    Block,
    /// A mount option that a guest cannot have.
    #[error("mount option {option:?} is refused: {why}")]
    MountOption {
        /// The option.
        option: String,
        /// The reason.
        why: String,
    },
    /// A group that is not a number.
    #[error("volume_mount_group is {0:?}, which is no group's id")]
    Group(String),
    /// A file system that we cannot format.
    #[error("file system {0:?} is none that can be had directly; there are ext4 and xfs")]
    FileSystem(String),
}

/// The access mode of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// One pod, which Kubernetes enforces.
    #[default]
    ReadWriteOncePod,
    /// One node, which Kubernetes enforces; we refuse a second pod.
    ReadWriteOnce,
}

/// The device that a guest gets. Records of volumes keep it under these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A block device of the host.
    #[default]
    Block,
    /// A PCI device, through VFIO.
    Vfio,
    /// A vhost-user socket of SPDK.
    Spdk,
}

/// The devices that may be formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blank {
    /// Those without a signature, with zeroes at start and end.
    #[default]
    Zero,
    /// Those without a signature: for drivers that reuse space without erasing it.
    Unsigned,
}

/// Whether a file system is checked before its guest gets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsck {
    /// Safe repairs are made; other damage is an error.
    #[default]
    Preen,
    /// Not here; the guest checks it.
    Never,
}

/// The condition under which the guest changes the group of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// At each mount.
    Always,
    /// If the root directory's group or mode differs.
    OnRootMismatch,
}

impl GroupChange {
    /// The value that runtimes read.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::OnRootMismatch => "OnRootMismatch",
        }
    }
}

/// A file system that we can make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4.
    #[default]
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Its name for mount and blkid.
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

/// True if a class leaves the decision to the RuntimeClass of the pods.
pub fn is_auto(class: &BTreeMap<String, String>) -> bool {
    class.get(KEY).is_some_and(|value| value == AUTO)
}

/// True if these settings ask for a direct volume, with no decision open.
pub fn is_on(settings: &BTreeMap<String, String>) -> bool {
    settings.get(KEY).is_some_and(|value| value != AUTO && value != NONE)
}

/// The settings of a volume, after a decision on its class's `auto`.
pub fn decided(class: &BTreeMap<String, String>, is_direct: bool) -> BTreeMap<String, String> {
    let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let others = class.iter().filter(|(key, _)| *key != KEY && (is_direct || !is_ours(key)));
    let mut settings: BTreeMap<_, _> = others.map(|(key, value)| entry(key, value)).collect();
    settings.extend([entry(KEY, if is_direct { KATA } else { NONE }), entry(BY, RUNTIME_CLASS)]);
    settings
}

/// The decision by the RuntimeClass of the pods for a volume with this context. None if the
/// StorageClass left nothing to decide.
pub fn decision(context: &BTreeMap<String, String>) -> Option<bool> {
    match context.get(KEY)?.as_str() {
        NONE => Some(false),
        KATA => context.contains_key(BY).then_some(true),
        _ => None,
    }
}

/// True if a version up to 0.2 decided that the volume with this context is an ordinary one.
pub fn is_ordinary_since_before(context: &BTreeMap<String, String>) -> bool {
    decision(context) == Some(false) && !context.contains_key(BY)
}

/// The settings of direct volumes in a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Direct {
    /// The access mode.
    pub access: Access,
    /// The device that guests get.
    pub kind: DeviceKind,
    /// The devices that may be formatted.
    pub blank: Blank,
    /// Further options for mkfs, one word each.
    pub mkfs: Vec<String>,
    /// Whether the file system is checked before.
    pub fsck: Fsck,
    /// The condition under which the guest changes the group of files; none leaves it to the
    /// runtime.
    pub group_change: Option<GroupChange>,
}

impl Direct {
    /// Reads parameters or a volume's context; none if the volume is not direct.
    ///
    /// # Errors
    /// They contradict each other, or have an unknown key or value.
    pub fn read(entries: &BTreeMap<String, String>) -> Result<Option<Self>, Contradiction> {
        let mut ours = entries.iter().filter(|(key, _)| is_ours(key)).peekable();
        let Some((first, _)) = ours.peek() else { return Ok(None) };
        match entries.get(KEY).map(String::as_str) {
            None => return Err(Contradiction::NotDirect((*first).clone())),
            Some(NONE) => return Ok(None),
            Some(AUTO) => return Err(Contradiction::NotDecided),
            Some(_) => {}
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
            (KEY, KATA) => {}
            (KEY, _) => return Err(bad("kata, auto")),
            (BY, RUNTIME_CLASS) => {}
            (BY, _) => return Err(bad(RUNTIME_CLASS)),
            (ACCESS, "ReadWriteOncePod") => self.access = Access::ReadWriteOncePod,
            (ACCESS, "ReadWriteOnce") => self.access = Access::ReadWriteOnce,
            (ACCESS, _) => return Err(bad("ReadWriteOncePod, ReadWriteOnce")),
            (KIND, "block") => self.kind = DeviceKind::Block,
            (KIND, "vfio") => self.kind = DeviceKind::Vfio,
            (KIND, "spdk") => self.kind = DeviceKind::Spdk,
            (KIND, _) => return Err(bad("block, vfio, spdk")),
            (BLANK, "zero") => self.blank = Blank::Zero,
            (BLANK, "unsigned") => self.blank = Blank::Unsigned,
            (BLANK, _) => return Err(bad("zero, unsigned")),
            (FSCK, "preen") => self.fsck = Fsck::Preen,
            (FSCK, "never") => self.fsck = Fsck::Never,
            (FSCK, _) => return Err(bad("preen, never")),
            (GROUP_CHANGE, "Always") => self.group_change = Some(GroupChange::Always),
            (GROUP_CHANGE, "OnRootMismatch") => {
                self.group_change = Some(GroupChange::OnRootMismatch)
            }
            (GROUP_CHANGE, _) => return Err(bad("Always, OnRootMismatch")),
            (MKFS, words) => self.mkfs = words.split_whitespace().map(str::to_owned).collect(),
            (other, _) => return Err(Contradiction::UnknownKey(other.to_owned())),
        }
        Ok(())
    }

    /// Refuses options with which mkfs would do more than lay out this one device.
    ///
    /// # Errors
    /// [`Contradiction::MkfsOption`] if an option is not allowed for this file system, or its value
    /// is missing or not allowed.
    pub(super) fn check_mkfs(&self, file_system: FileSystem) -> Result<(), Contradiction> {
        // The letters of options that have a value. Not among them: labels, UUIDs, force, devices.
        let letters = match file_system {
            FileSystem::Ext4 => "bCEgGIiJmNOT",
            FileSystem::Xfs => "bdilmns",
        };
        // Values that name files, or the UUID, which we choose.
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
            let is_bad =
                bad_parts.iter().any(|part| value.contains(part)) || value.starts_with('-');
            if !letters.contains(letter) || is_bad {
                return Err(Contradiction::MkfsOption(format!("{letter} {value}")));
            }
        }
        Ok(())
    }
}
