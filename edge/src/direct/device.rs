//! A block device of the host: which one it is, whatever path leads to it, and who uses it.
//!
//! Nothing is done to a device that anybody else has open: the kernel is asked for mounts and for what is stacked
//! upon it, in whatever mount namespace, and `/proc` for processes, as a VM or an mkfs that outlived us.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, major, minor};

/// Where the kernel shows itself.
#[derive(Clone, Debug)]
pub struct Host {
    /// `/proc`
    pub proc: PathBuf,
    /// `/sys`
    pub sys: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), dev: "/dev".into() }
    }
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It is not there, or it cannot be opened.
    #[error("{path} cannot be used; did the driver publish it where csi-edge can see it?")]
    Absent {
        /// Its path.
        path: String,
        /// What the attempt met.
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error("{0} is no block device, though the driver published a block volume there")]
    NoBlockDevice(String),
    /// The host has it mounted, or something is stacked upon it.
    #[error("{0} is in use on this host: it is mounted, or part of another device; it is not handed over")]
    InUse(String),
    /// A process has it open.
    #[error("{path} is open in process {process}; it is handed over when that has ended")]
    Held {
        /// Its path.
        path: String,
        /// The process's id and name.
        process: String,
    },
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The path that the runtime is given.
    pub path: PathBuf,
    /// Its number, as `st_rdev`.
    pub number: u64,
}

/// The number of the block device at a path.
///
/// # Errors
/// There is none.
pub fn number(path: &Path) -> Result<u64, DeviceError> {
    let shown = || path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|source| DeviceError::Absent { path: shown(), source })?;
    if meta.file_type().is_block_device() {
        Ok(meta.rdev())
    } else {
        Err(DeviceError::NoBlockDevice(shown()))
    }
}

impl Host {
    /// The device at a path of ours, by the name that the host has for it if it has one.
    ///
    /// # Errors
    /// There is no block device.
    pub fn device(&self, path: &Path) -> Result<Device, DeviceError> {
        let number = number(path)?;
        let named = self.named(number).map(|name| self.dev.join(name));
        let named = named.filter(|named| self::number(named).is_ok_and(|there| there == number));
        Ok(Device { path: named.unwrap_or_else(|| path.to_owned()), number })
    }

    /// The name in `/dev` that the kernel has for a device.
    pub fn named(&self, number: u64) -> Option<String> {
        let at = self.sys.join("dev/block").join(format!("{}:{}", major(number), minor(number)));
        let event = std::fs::read_to_string(at.join("uevent")).ok()?;
        let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
        (!name.contains("..")).then(|| name.to_owned())
    }

    /// Refuses a device that anybody else uses.
    ///
    /// # Errors
    /// Who uses it, or it cannot be opened.
    pub fn is_free(&self, path: &Path, number: u64) -> Result<(), DeviceError> {
        let shown = || path.display().to_string();
        let flags = OFlags::EXCL.bits().cast_signed();
        // The kernel gives an exclusive open only to a device that is neither mounted nor claimed, in any namespace.
        match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => drop::<File>(file),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(DeviceError::InUse(shown()));
            }
            Err(source) => return Err(DeviceError::Absent { path: shown(), source }),
        }
        match self.holder(number) {
            Some(process) => Err(DeviceError::Held { path: shown(), process }),
            None => Ok(()),
        }
    }

    /// A process that has a device open; processes that end meanwhile have it no more.
    fn holder(&self, number: u64) -> Option<String> {
        let processes = std::fs::read_dir(&self.proc).ok()?.flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let held = |id: &u32| {
            let open = std::fs::read_dir(self.proc.join(id.to_string()).join("fd")).into_iter().flatten();
            open.flatten().any(|open| {
                std::fs::metadata(open.path())
                    .is_ok_and(|meta| meta.file_type().is_block_device() && meta.rdev() == number)
            })
        };
        let id = ids.into_iter().find(held)?;
        let name = std::fs::read_to_string(self.proc.join(id.to_string()).join("comm")).unwrap_or_default();
        Some(format!("{id} ({})", name.trim()))
    }

    /// What tells this boot from all others; empty if the kernel does not say.
    pub fn boot(&self) -> String {
        let id = std::fs::read_to_string(self.proc.join("sys/kernel/random/boot_id"));
        id.unwrap_or_default().trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_block_device_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let refused = Host::default().device(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("is no block device"), "{refused}");
        let gone = Host::default().device(&dir.path().join("gone")).unwrap_err().to_string();
        assert!(gone.contains("did the driver publish it"), "{gone}");
        assert!(!Host::default().boot().is_empty());
    }

    #[test]
    fn the_kernels_name_of_a_device_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host { sys: dir.path().to_owned(), ..Host::default() };
        let at = dir.path().join("dev/block/7:3");
        std::fs::create_dir_all(&at).unwrap();
        let event = |text: &str| {
            let path = at.join("uevent");
            proto::publish::publish(&path, text.as_bytes(), 0o600, proto::publish::Existing::Replace)
                .unwrap();
            host.named(rustix::fs::makedev(7, 3))
        };
        assert_eq!(event("MAJOR=7\nMINOR=3\nDEVNAME=loop3\nDEVTYPE=disk\n").as_deref(), Some("loop3"));
        assert_eq!(event("DEVNAME=mapper/x\n").as_deref(), Some("mapper/x"));
        assert_eq!(event("DEVNAME=../../etc/passwd\n"), None);
        assert_eq!(host.named(rustix::fs::makedev(7, 4)), None);
    }
}
