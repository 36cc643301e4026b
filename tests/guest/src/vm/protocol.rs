//! The protocol between a test and the guest's process 1: a line of JSON each way over a
//! virtio-serial port. There is one request at a time. Each is answered, or the guest has ended.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::Group;

/// The port's name, by which the guest finds it.
pub const PORT: &str = "edge-csi";
/// Where the modules of its kernel are, and in which order they are loaded.
pub const MODULES: &str = "modules";

/// A request to a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestRequest {
    /// Its kernel's release, when it is up.
    Release,
    /// The disk with this serial number: a [`Disk`], or nothing.
    Disk {
        /// The number.
        serial: String,
    },
    /// Mounts.
    Mount {
        /// A device, or the name of a share.
        source: String,
        /// The file system.
        kind: String,
        /// Its options, as in `mountInfo.json`.
        options: Vec<String>,
        /// The group that gets it.
        group: Option<Group>,
        /// Where; made if it is not there.
        at: PathBuf,
    },
    /// Unmounts.
    Unmount {
        /// Where.
        at: PathBuf,
    },
    /// Writes a file, and has it on the disk.
    Write {
        /// The file.
        path: PathBuf,
        /// The content of the file.
        text: String,
        /// The number of copies.
        times: usize,
    },
    /// Whose something is: an [`Owner`].
    Owner {
        /// The file or directory.
        path: PathBuf,
    },
    /// Read a file.
    Read {
        /// The file.
        path: PathBuf,
    },
    /// How full a file system is: a [`Usage`].
    Usage {
        /// Where it is mounted.
        at: PathBuf,
    },
    /// Makes a mounted file system as large as its device.
    Grow {
        /// The device.
        device: PathBuf,
        /// The file system.
        kind: String,
        /// Where it is mounted.
        at: PathBuf,
    },
    /// Makes, renames and removes files without end, and is answered when that has begun.
    Churn {
        /// Below this directory.
        below: PathBuf,
    },
    /// Loads a file: a [`Loaded`].
    Load(Load),
    /// Switches the machine off.
    End,
}

/// A guest's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestAnswer {
    /// Success, with the output.
    Done(Value),
    /// It was not, and why.
    Failed(String),
}

/// Whose something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its group.
    pub group: u32,
    /// Its mode.
    pub mode: u32,
}

/// A disk that the guest's kernel has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// For example `/dev/vda`.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// The numbers of `statfs`, as Kata's agent reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

/// A load on one file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// The file; written whole first, if it is shorter.
    pub path: PathBuf,
    /// How large it is, in bytes.
    pub bytes: u64,
    /// How much is read or written at once, in bytes; a multiple of 4096.
    pub block: usize,
    /// The operation.
    pub what: What,
    /// How many do so at the same time.
    pub threads: usize,
    /// For how long, in ms.
    pub ms: u64,
}

/// The operations of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Reads the file from its beginning to its end, again and again.
    Read,
    /// Writes it so.
    Write,
    /// Reads it anywhere.
    ReadAnywhere,
    /// Writes to it anywhere.
    WriteAnywhere,
    /// Makes a second file, writes a block, and removes the file.
    Files,
}

/// The result of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// Bytes in a second.
    pub bytes_per_s: f64,
    /// Blocks in a second.
    pub per_s: f64,
    /// The file was open with `O_DIRECT`, so no data came from the guest's page cache.
    /// [`What::Files`] never uses it.
    pub direct: bool,
}
