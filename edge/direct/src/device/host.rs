//! Block devices of this host: which device a path leads to, and who uses it.
//!
//! A device that anybody else has open is not touched. The kernel knows mounts and stacked devices
//! of every mount namespace; `/proc` shows processes, such as a VM or an mkfs that outlived
//! csi-edge. Loop devices upon a device are in neither.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, OFlags, StatxFlags, major, makedev, minor, statx};
use rustix::io::Errno;

use super::loops;

/// The kernel's name of the initial PID namespace; the number is compiled in.
const ALL_PROCESSES: &str = "pid:[4026531836]";
/// Programs that start a node's VMs. If one of them is visible, so are the processes that it
/// starts, even if the node is itself a container.
const STARTERS: [&str; 3] = ["kubelet", "containerd", "crio"];

/// The directories of the kernel's files.
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

/// The reason why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It is not there, or it cannot be opened.
    #[error("{path} cannot be used; did the driver publish it where csi-edge can see it?")]
    Absent {
        /// Its path.
        path: String,
        /// The error of the attempt.
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error("{0} is no block device, though the driver published a block volume there")]
    NoBlockDevice(String),
    /// The host has mounted it, or another device is stacked upon it.
    #[error(
        "{0} is in use on this host: it is mounted, or part of another device; this waits until \
         that has ended"
    )]
    InUse(String),
    /// A loop device reads and writes it.
    #[error(
        "{path} is in use on this host: {device} is set up upon it; this waits until that has ended"
    )]
    Looped {
        /// Its path.
        path: String,
        /// The loop device's name.
        device: String,
    },
    /// A process has it open.
    #[error("{path} is open in process {process}; this waits until that has ended")]
    Held {
        /// Its path.
        path: String,
        /// The process's id and name.
        process: String,
    },
    /// Another volume has it.
    #[error(
        "{path} is the device of volume {volume} too, which is, or is about to be, handed over"
    )]
    Anothers {
        /// Its path.
        path: String,
        /// That volume's id.
        volume: String,
    },
    /// A VM that has the device might be invisible.
    #[error(
        "it is not known who has a device open, because csi-edge does not see all processes of the \
         host; run it in the host's PID namespace (hostPID: true)"
    )]
    Blind,
    /// The processes cannot be read.
    #[error(
        "it is not known who has a device open, because {path} cannot be read; run csi-edge as \
         root and privileged"
    )]
    Unknown {
        /// The unreadable path.
        path: String,
        /// The error of the attempt.
        #[source]
        source: io::Error,
    },
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The path that the runtime gets.
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
    let meta =
        std::fs::metadata(path).map_err(|source| DeviceError::Absent { path: shown(), source })?;
    if meta.file_type().is_block_device() {
        Ok(meta.rdev())
    } else {
        Err(DeviceError::NoBlockDevice(shown()))
    }
}

impl Host {
    /// The device at a path of ours, by its name on the host if it has one.
    ///
    /// # Errors
    /// There is no block device.
    pub fn device(&self, path: &Path) -> Result<Device, DeviceError> {
        let number = number(path)?;
        let named = self.named(number).map(|name| self.dev.join(name));
        let named = named.filter(|named| self::number(named).is_ok_and(|there| there == number));
        Ok(Device { path: named.unwrap_or_else(|| path.to_owned()), number })
    }

    /// The kernel's name of a device in `/dev`.
    pub fn named(&self, number: u64) -> Option<String> {
        let at = self.sys.join("dev/block").join(format!("{}:{}", major(number), minor(number)));
        let event = std::fs::read_to_string(at.join("uevent")).ok()?;
        let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
        (!name.contains("..")).then(|| name.to_owned())
    }

    /// Refuses a device that anybody else uses.
    ///
    /// # Errors
    /// Somebody uses it, or it cannot be opened.
    pub fn is_free(&self, path: &Path, number: u64) -> Result<(), DeviceError> {
        let shown = || path.display().to_string();
        if is_claimed(path).map_err(|source| DeviceError::Absent { path: shown(), source })? {
            return Err(DeviceError::InUse(shown()));
        }
        self.is_closed(FileType::BlockDevice, number, path)
    }

    /// Refuses a device that somebody may still write to. The device itself may be gone; only its
    /// users are checked.
    ///
    /// # Errors
    /// Somebody uses it, or its users are not known.
    pub fn is_let_go(&self, path: &Path, number: u64) -> Result<(), DeviceError> {
        if is_claimed(path).unwrap_or(false) {
            return Err(DeviceError::InUse(path.display().to_string()));
        }
        self.is_closed(FileType::BlockDevice, number, path)
    }

    /// Refuses a device that a process or a loop device has open.
    ///
    /// # Errors
    /// A process or a loop device has it open, or this is not known.
    pub fn is_closed(&self, kind: FileType, number: u64, path: &Path) -> Result<(), DeviceError> {
        if kind == FileType::BlockDevice {
            let views = loops::views(&self.proc).map_err(unknown(&self.proc))?;
            let device = loops::upon(&self.sys, &views, number).map_err(unknown(&self.sys))?;
            if let Some(device) = device {
                return Err(DeviceError::Looped { path: path.display().to_string(), device });
            }
        }
        match self.holder(kind, number)? {
            Some(process) => Err(DeviceError::Held { path: path.display().to_string(), process }),
            None => Ok(()),
        }
    }

    /// Checks that all processes of the host are visible, so that any VM is among them.
    ///
    /// # Errors
    /// [`DeviceError::Blind`], or it is not known.
    pub fn sees_all(&self) -> Result<(), DeviceError> {
        let path = self.proc.join("self/ns/pid");
        let namespace = std::fs::read_link(&path).map_err(unknown(&path))?;
        if namespace == Path::new(ALL_PROCESSES) {
            return Ok(());
        }
        let processes = std::fs::read_dir(&self.proc).map_err(unknown(&self.proc))?;
        let starts = |process: std::fs::DirEntry| {
            // What has ended starts nothing.
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            STARTERS.contains(&name.trim())
        };
        if processes.flatten().any(starts) { Ok(()) } else { Err(DeviceError::Blind) }
    }

    /// A process that has a device open, by id and name.
    ///
    /// # Errors
    /// A process cannot be inspected, or some cannot be seen.
    pub(crate) fn holder(
        &self,
        kind: FileType,
        number: u64,
    ) -> Result<Option<String>, DeviceError> {
        self.sees_all()?;
        for (id, process) in self.processes()? {
            if open_devices(&process.join("fd"), kind)?.contains(&number) {
                return Ok(Some(named_process(id, &process)));
            }
        }
        Ok(None)
    }

    /// The processes that have block devices open, each by its id and name, by the device's number.
    ///
    /// # Errors
    /// A process that cannot be inspected, or [`DeviceError::Blind`].
    pub fn holders(&self) -> Result<BTreeMap<u64, BTreeMap<u32, String>>, DeviceError> {
        self.sees_all()?;
        let mut holders = BTreeMap::<u64, BTreeMap<u32, String>>::new();
        for (id, process) in self.processes()? {
            for number in open_devices(&process.join("fd"), FileType::BlockDevice)? {
                let of_device = holders.entry(number).or_default();
                of_device.insert(id, named_process(id, &process));
            }
        }
        Ok(holders)
    }

    /// All processes but the host's init, which is neither a VM nor an mkfs: some hosts hide its
    /// files.
    fn processes(&self) -> Result<Vec<(u32, PathBuf)>, DeviceError> {
        let mut processes = Vec::new();
        for entry in std::fs::read_dir(&self.proc).map_err(unknown(&self.proc))? {
            let process = entry.map_err(unknown(&self.proc))?;
            let id = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            processes.extend(id.filter(|id| *id != 1).map(|id| (id, process.path())));
        }
        Ok(processes)
    }

    /// True if a recorded boot is the current one; never if the kernel did not name it.
    pub fn is_boot(&self, noted: &str) -> bool {
        !noted.is_empty() && self.boot() == noted
    }

    /// True if a recorded boot has surely ended.
    pub fn is_other_boot(&self, noted: &str) -> bool {
        let boot = self.boot();
        !noted.is_empty() && !boot.is_empty() && boot != noted
    }

    /// The id of this boot; empty if the kernel does not tell.
    pub fn boot(&self) -> String {
        let id = std::fs::read_to_string(self.proc.join("sys/kernel/random/boot_id"));
        id.unwrap_or_default().trim().to_owned()
    }
}

/// Whether a device is mounted or claimed by another. The kernel grants an exclusive open only
/// once, over all namespaces.
fn is_claimed(path: &Path) -> io::Result<bool> {
    let flags = OFlags::EXCL.bits().cast_signed();
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => {
            drop::<File>(file);
            Ok(false)
        }
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(true),
        Err(error) => Err(error),
    }
}

/// A process by its id and name, for people.
fn named_process(id: u32, process: &Path) -> String {
    let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
    format!("{id} ({})", name.trim())
}

/// The numbers of the devices of this kind among a process's open files.
fn open_devices(files: &Path, kind: FileType) -> Result<BTreeSet<u64>, DeviceError> {
    let mut devices = BTreeSet::new();
    let Some(open) = unless_ended(std::fs::read_dir(files)).map_err(unknown(files))? else {
        return Ok(devices);
    };
    for file in open {
        let Some(file) = unless_ended(file).map_err(unknown(files))? else { continue };
        let path = file.path();
        let leads = match unless_ended(std::fs::read_link(&path)) {
            Ok(Some(leads)) => leads,
            Ok(None) => continue,
            // Linux denies this for a process that has just ended.
            Err(_) if files.try_exists().is_ok_and(|is_there| !is_there) => return Ok(devices),
            Err(error) => return Err(unknown(&path)(error)),
        };
        // Sockets and pipes have no path.
        if !leads.is_absolute() {
            continue;
        }
        // A file that cannot be inspected is on a dead file server, which has no devices. No server
        // is asked, because it might never answer.
        let Ok(meta) = statx(CWD, &path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) else {
            continue;
        };
        if FileType::from_raw_mode(meta.stx_mode.into()) == kind {
            devices.insert(makedev(meta.stx_rdev_major, meta.stx_rdev_minor));
        }
    }
    Ok(devices)
}

/// None for a process, or a file of it, that is gone.
fn unless_ended<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error)
            if error.kind() == ErrorKind::NotFound
                || Errno::from_io_error(&error) == Some(Errno::SRCH) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn unknown(path: &Path) -> impl Fn(io::Error) -> DeviceError {
    let path = path.display().to_string();
    move |source| DeviceError::Unknown { path: path.clone(), source }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proto::host::publish::{Existing, publish};
    use rustix::fs::{Mode, mknodat};
    use std::cmp::Reverse;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A FIFO in place of a file or device: an open hangs, until this goes.
    pub(crate) struct Hanging(PathBuf);

    impl Hanging {
        pub(crate) fn at(path: &Path) -> Self {
            mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            Self(path.to_owned())
        }
    }

    impl Drop for Hanging {
        fn drop(&mut self) {
            // It stays open, because a thread may open the FIFO only now.
            std::mem::forget(File::options().read(true).write(true).open(&self.0));
        }
    }

    /// A `/proc` of a host with one process, 12, that has this file open.
    pub(crate) fn with_open(path: &Path) -> (tempfile::TempDir, Host) {
        let (dir, host) = processes(ALL_PROCESSES);
        symlink(path, dir.path().join("12/fd/3")).unwrap();
        std::fs::create_dir_all(dir.path().join("sys/kernel/random")).unwrap();
        let boot = dir.path().join("sys/kernel/random/boot_id");
        publish(&boot, b"b\n", 0o600, Existing::Keep).unwrap();
        (dir, host)
    }

    /// A block device of this host that tests only look at; `None` if it has none. Each call has
    /// another while there are enough, because a look at one claims it for a moment. Whoever sets
    /// up a loop device gets the first free number, so tests look at the last ones.
    pub(crate) fn block_device() -> Option<PathBuf> {
        static DEVICES: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
            let names = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
            let paths = names.map(|entry| Path::new("/dev").join(entry.file_name()));
            let is_free = |path: &Path| is_claimed(path).is_ok_and(|claimed| !claimed);
            let free = paths.filter(|path| number(path).is_ok() && is_free(path));
            let mut free: Vec<_> = free.collect();
            free.sort_by_key(|path| Reverse((path.as_os_str().len(), path.clone())));
            free.truncate(free.len().div_ceil(2));
            free
        });
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed).checked_rem(DEVICES.len());
        if next.is_none() {
            skipped("it needs root and a block device that nobody uses");
        }
        DEVICES.get(next?).cloned()
    }

    /// Says that this test does not run here, and why. In CI nothing may be missing.
    pub(crate) fn skipped(why: &str) {
        let test = std::thread::current();
        // Not eprintln!: the test harness would keep that to itself.
        let _ = writeln!(io::stderr(), "test skipped: {}: {why}", test.name().unwrap_or_default());
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no test may be skipped in CI");
    }

    /// Has a process's mount table say that it has a root, and then this.
    fn mounted(process: &Path, more: &str) {
        let text = format!("22 1 8:1 / / rw shared:1 - ext4 /dev/root rw\n{more}");
        let path = process.join("mountinfo");
        publish(&path, text.as_bytes(), 0o600, Existing::Replace).unwrap();
    }

    /// A `/proc` with one process, in this PID namespace.
    fn processes(namespace: &str) -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        for path in ["self/ns", "1", "12/fd", "sys"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        for process in ["self", "1"] {
            mounted(&dir.path().join(process), "");
        }
        symlink(namespace, dir.path().join("self/ns/pid")).unwrap();
        symlink("socket:[7]", dir.path().join("12/fd/0")).unwrap();
        symlink("/ended/meanwhile", dir.path().join("12/fd/1")).unwrap();
        let host = Host { proc: dir.path().to_owned(), ..Host::default() };
        (dir, host)
    }

    #[test]
    fn who_has_a_device_is_known_or_an_error() {
        let null = std::fs::metadata("/dev/null").unwrap().rdev();
        let closed =
            |host: &Host| host.is_closed(FileType::CharacterDevice, null, Path::new("/dev/x"));
        let (dir, host) = processes(ALL_PROCESSES);
        closed(&host).unwrap();
        symlink("/dev/null", dir.path().join("12/fd/2")).unwrap();
        let held = closed(&host).unwrap_err();
        assert!(matches!(&held, DeviceError::Held { process, .. } if process == "12 ()"));
        // A publication and an unpublication both wait for it.
        let text = held.to_string();
        assert!(text.ends_with("this waits until that has ended"), "{text}");
        // The number of a character device says nothing about block devices.
        host.is_closed(FileType::BlockDevice, null, Path::new("/dev/x")).unwrap();
        // The process is there, and its files cannot be listed.
        std::fs::remove_dir_all(dir.path().join("12/fd")).unwrap();
        symlink("/dev/null", dir.path().join("12/fd")).unwrap();
        assert!(matches!(closed(&host), Err(DeviceError::Unknown { .. })));
        let (_dir, container) = processes("pid:[4026532201]");
        assert!(matches!(closed(&container), Err(DeviceError::Blind)));
        // A node in a container, with its kubelet.
        let (dir, node) = processes("pid:[4026532201]");
        let comm = dir.path().join("12/comm");
        publish(&comm, b"kubelet\n", 0o600, Existing::Keep).unwrap();
        closed(&node).unwrap();
        let nowhere = Host { proc: "/does/not/exist".into(), ..Host::default() };
        assert!(matches!(closed(&nowhere), Err(DeviceError::Unknown { .. })));
    }

    #[test]
    fn a_loop_device_upon_a_device_uses_it() {
        let Some(device) = block_device() else { return };
        let (dir, host) = processes(ALL_PROCESSES);
        let sys = dir.path().join("sys");
        let host = Host { sys: sys.clone(), ..host };
        let number = number(&device).unwrap();
        let unknown = host.is_free(&device, number).unwrap_err();
        assert!(matches!(unknown, DeviceError::Unknown { .. }), "{unknown}");
        for name in ["loop0/queue", "loop1/loop", "loop2/loop", "sda"] {
            std::fs::create_dir_all(sys.join("block").join(name)).unwrap();
        }
        let backed = |path: &Path| {
            let text = format!("{}\n", path.display());
            let file = sys.join("block/loop2/loop/backing_file");
            publish(&file, text.as_bytes(), 0o600, Existing::Replace).unwrap();
        };
        // An image, as that of a device which is itself a loop device.
        backed(&dir.path().join("12/comm"));
        host.is_free(&device, number).unwrap();
        backed(&device);
        for used in [host.is_free(&device, number), host.is_let_go(&device, number)] {
            let used = used.unwrap_err().to_string();
            assert!(used.contains("loop2 is set up upon it"), "{used}");
        }
        // The path is that of the host, which has the device under another name.
        std::fs::create_dir_all(dir.path().join("1/root/hosts")).unwrap();
        symlink(&device, dir.path().join("1/root/hosts/disk")).unwrap();
        backed(Path::new("/hosts/disk"));
        assert!(host.is_free(&device, number).is_err());
        // A server would be asked, which may be dead.
        let nfs = |point: &str| format!("23 22 0:5 / {point} rw - nfs4 server:/a rw\n");
        mounted(&dir.path().join("1"), &nfs("/hosts"));
        host.is_free(&device, number).unwrap();
        backed(&device);
        assert!(host.is_free(&device, number).is_err());
        for process in ["self", "1"] {
            mounted(&dir.path().join(process), &nfs("/dev"));
        }
        host.is_free(&device, number).unwrap();
        std::fs::remove_file(dir.path().join("self/mountinfo")).unwrap();
        let unknown = host.is_free(&device, number).unwrap_err();
        assert!(matches!(unknown, DeviceError::Unknown { .. }), "{unknown}");
    }

    #[test]
    fn a_boot_without_a_name_is_no_other_and_not_this_one() {
        let host = Host::default();
        assert!(host.is_boot(&host.boot()) && !host.is_boot("another"));
        let (_dir, silent) = processes(ALL_PROCESSES);
        assert!(!silent.is_boot("") && !silent.is_boot(&host.boot()));
        // It may have been this one.
        assert!(
            !silent.is_other_boot(&host.boot())
                && !host.is_other_boot("")
                && host.is_other_boot("another")
        );
    }

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
            publish(&path, text.as_bytes(), 0o600, Existing::Replace).unwrap();
            host.named(makedev(7, 3))
        };
        assert_eq!(
            event("MAJOR=7\nMINOR=3\nDEVNAME=loop3\nDEVTYPE=disk\n").as_deref(),
            Some("loop3")
        );
        assert_eq!(event("DEVNAME=mapper/x\n").as_deref(), Some("mapper/x"));
        assert_eq!(event("DEVNAME=../../etc/passwd\n"), None);
        assert_eq!(host.named(makedev(7, 4)), None);
    }
}
