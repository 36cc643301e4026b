//! Volumes handed over as a PCI device: `vfio-pci` gets the volume's controller instead of the host
//! driver, and the host gets it back later.
//!
//! A controller goes as a whole, so it must have one block device only, and its IOMMU group one
//! controller only. Tested with a made-up `/sys`, not on hardware.

use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::host::Host;

/// The runtimes' name of this kind.
pub(crate) const TYPE: &str = "vfiovol";
const DRIVER: &str = "vfio-pci";

/// The reason why a PCI device cannot be handed over or taken back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VfioError {
    /// The block device is of another kind.
    #[error(
        "{0} is no PCI device's, so it cannot be handed over by VFIO; use edge-csi.io/direct-kind: \
         block"
    )]
    NoPci(String),
    /// No released runtime gives it to a guest.
    #[error(
        "PCI device {0} is an NVMe controller, and no released runtime hands one to a guest as a \
         volume: Kata's runtime-rs looks for a disk /dev/vdX there, and the container fails. Use \
         edge-csi.io/direct-kind: block, or set direct.vfio_nvme = true in csi-edge's \
         configuration if your runtime can"
    )]
    Nvme(String),
    /// There is no IOMMU.
    #[error("PCI device {0} is in no IOMMU group; is the IOMMU switched on?")]
    NoGroup(String),
    /// Other devices would go with it.
    #[error("PCI device {pci} cannot go alone: {others} would go with it")]
    NotAlone {
        /// Its address.
        pci: String,
        /// The other devices.
        others: String,
    },
    /// The kernel did not bind it to `vfio-pci`.
    #[error("PCI device {pci} has driver {has:?} and not {DRIVER}; is that module loaded?")]
    NotBound {
        /// Its address.
        pci: String,
        /// Its driver.
        has: String,
    },
    /// The kernel's files.
    #[error("{0} cannot be used")]
    Io(String, #[source] io::Error),
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> VfioError {
    let path = path.display().to_string();
    move |source| VfioError::Io(path, source)
}

/// A controller and its address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pci {
    address: String,
    /// The device that the runtime gets.
    pub(crate) device: PathBuf,
}

/// Whether runtimes of this node take an NVMe controller as a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nvme {
    /// No released runtime does.
    #[default]
    Refused,
    /// The operator says so.
    Taken,
}

/// Writes a file of `/sys`; tests have a kernel of their own.
pub(crate) type WriteSysfs<'a> = &'a (dyn Fn(&Path, &str) -> io::Result<()> + Sync);

/// Writes text to a file of the kernel.
///
/// # Errors
/// The system's.
pub(crate) fn kernel(path: &Path, text: &str) -> io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Runs slow work with the kernel on a thread of its own.
///
/// # Errors
/// The work's own, or it did not come to an end.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VfioError> + Send + 'static,
) -> Result<T, VfioError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|gone| Err(VfioError::Io("/sys".into(), io::Error::other(gone))))
}

/// The controller of a block device, if it can go alone.
///
/// # Errors
/// There is no PCI controller, or it is NVMe and refused, is in no IOMMU group, or cannot go alone.
/// It also fails if `/sys` cannot be read.
pub(crate) fn controller(host: &Host, number: u64, nvme: Nvme) -> Result<Pci, VfioError> {
    let name = host.named(number).unwrap_or_else(|| number.to_string());
    let block = host.sys.join("class/block").join(&name);
    let block = std::fs::canonicalize(&block).map_err(failed(&block))?;
    let device = block.ancestors().find(|path| address_of(path).is_some());
    let device = device.ok_or_else(|| VfioError::NoPci(name.clone()))?;
    let address = address_of(device).unwrap_or_default().to_owned();
    if nvme == Nvme::Refused && name.starts_with("nvme") {
        return Err(VfioError::Nvme(address));
    }
    let group = device.join("iommu_group");
    let group = std::fs::canonicalize(group).map_err(|_| VfioError::NoGroup(address.clone()))?;
    let all = host.sys.join("class/block");
    let mut others = names(&group.join("devices"))?;
    others.retain(|other| *other != address);
    for other in names(&all)? {
        let at = std::fs::canonicalize(all.join(&other)).unwrap_or_default();
        if at.starts_with(device) && other != name {
            others.push(other);
        }
    }
    if !others.is_empty() {
        return Err(VfioError::NotAlone { pci: address, others: others.join(", ") });
    }
    let number = group.file_name().unwrap_or_default();
    Ok(Pci { device: host.dev.join("vfio").join(number), address })
}

/// The controller that was handed over as this device; none if its group is empty or gone.
///
/// # Errors
/// The group cannot be read.
pub(crate) fn handed_over(host: &Host, device: &Path) -> Result<Option<Pci>, VfioError> {
    let group = host.sys.join("kernel/iommu_groups").join(device.file_name().unwrap_or_default());
    let address = match names(&group.join("devices")) {
        Err(VfioError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => None,
        names => names?.pop(),
    };
    Ok(address.map(|address| Pci { address, device: device.to_owned() }))
}

impl Pci {
    fn at(&self, host: &Host) -> PathBuf {
        host.sys.join("bus/pci/devices").join(&self.address)
    }

    /// Its driver, if it has one.
    fn driver(&self, host: &Host) -> Option<String> {
        let driver = std::fs::canonicalize(self.at(host).join("driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }

    /// Gives it to `vfio-pci`; repeating this does no harm.
    ///
    /// # Errors
    /// A file of the kernel cannot be written, or the device has another driver after that.
    pub(crate) fn hand_over(&self, host: &Host, write: WriteSysfs<'_>) -> Result<(), VfioError> {
        self.rebind(host, DRIVER, write)?;
        match self.driver(host) {
            Some(driver) if driver == DRIVER => Ok(()),
            other => {
                let pci = self.address.clone();
                let has = other.unwrap_or_default();
                Err(VfioError::NotBound { pci, has })
            }
        }
    }

    /// Gives it back to the kernel's own driver.
    ///
    /// # Errors
    /// A file of the kernel cannot be written.
    pub(crate) fn give_back(&self, host: &Host, write: WriteSysfs<'_>) -> Result<(), VfioError> {
        if self.driver(host).is_some_and(|driver| driver != DRIVER) {
            return Ok(());
        }
        // An empty line clears the override.
        self.rebind(host, "\n", write)
    }

    fn rebind(&self, host: &Host, driver: &str, write: WriteSysfs<'_>) -> Result<(), VfioError> {
        let device = self.at(host);
        let say = |path: PathBuf, text: &str| write(&path, text).map_err(failed(&path));
        say(device.join("driver_override"), driver)?;
        if self.driver(host).is_some_and(|has| has != driver) {
            say(device.join("driver/unbind"), &self.address)?;
        }
        say(host.sys.join("bus/pci/drivers_probe"), &self.address)
    }
}

/// The PCI address at the end of a path: `0000:00:04.0`.
fn address_of(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let shape = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b':',
        10 => byte == b'.',
        _ => byte.is_ascii_hexdigit(),
    };
    (name.len() == 12 && name.bytes().enumerate().all(shape)).then_some(name)
}

fn names(directory: &Path) -> Result<Vec<String>, VfioError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed(directory))? {
        names.push(entry.map_err(failed(directory))?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use proto::host::publish::{Existing, publish};
    use std::os::unix::fs::symlink;

    const PCI: &str = "0000:00:04.0";

    /// A machine with one NVMe controller, and a kernel that obeys.
    struct Machine {
        dir: tempfile::TempDir,
        host: Host,
        number: u64,
        written: Mutex<Vec<String>>,
    }

    impl Machine {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let sys = dir.path().join("sys");
            let dev = dir.path().join("dev");
            let host = Host { sys: sys.clone(), dev, ..Host::default() };
            let number = rustix::fs::makedev(259, 1);
            let device = sys.join("devices").join(PCI);
            let group = sys.join("kernel/iommu_groups/9");
            for path in [
                "bus/pci/devices",
                "bus/pci/drivers/nvme",
                "bus/pci/drivers/vfio-pci",
                "class/block",
            ] {
                std::fs::create_dir_all(sys.join(path)).unwrap();
            }
            std::fs::create_dir_all(device.join("nvme/nvme0/nvme0n1")).unwrap();
            std::fs::create_dir_all(group.join("devices")).unwrap();
            std::fs::create_dir_all(sys.join("dev/block/259:1")).unwrap();
            let event = sys.join("dev/block/259:1/uevent");
            publish(&event, b"DEVNAME=nvme0n1\n", 0o600, Existing::Keep).unwrap();
            symlink(device.join("nvme/nvme0/nvme0n1"), sys.join("class/block/nvme0n1")).unwrap();
            symlink(&device, sys.join("bus/pci/devices").join(PCI)).unwrap();
            symlink(&device, group.join("devices").join(PCI)).unwrap();
            symlink(&group, device.join("iommu_group")).unwrap();
            symlink(sys.join("bus/pci/drivers/nvme"), device.join("driver")).unwrap();
            Self { dir, host, number, written: Mutex::default() }
        }

        fn sys(&self, path: &str) -> PathBuf {
            self.dir.path().join("sys").join(path)
        }

        /// As the kernel does: unbinding removes the driver, probing sets the override or the
        /// controller's own driver.
        fn write(&self, path: &Path, text: &str) -> io::Result<()> {
            let path =
                path.strip_prefix(self.dir.path().join("sys")).unwrap().display().to_string();
            let mut written = self.written.lock();
            let driver = self.sys("devices").join(PCI).join("driver");
            if path.ends_with("/unbind") {
                std::fs::remove_file(&driver)?;
            }
            if path.ends_with("drivers_probe") && std::fs::read_link(&driver).is_err() {
                let named = written.iter().rev().find_map(|line| line.strip_suffix("=vfio-pci"));
                let overridden = written.iter().rev().find(|line| line.contains("driver_override"));
                let vfio =
                    named.is_some() && overridden.is_some_and(|line| line.ends_with("vfio-pci"));
                let name = if vfio { "vfio-pci" } else { "nvme" };
                symlink(self.sys("bus/pci/drivers").join(name), &driver)?;
            }
            written.push(format!("{path}={}", text.trim()));
            Ok(())
        }
    }

    #[test]
    fn a_controller_is_handed_over_and_given_back() {
        let machine = Machine::new();
        let write = |path: &Path, text: &str| machine.write(path, text);
        let pci = controller(&machine.host, machine.number, Nvme::Taken).unwrap();
        assert_eq!(pci.device, machine.host.dev.join("vfio/9"));
        pci.hand_over(&machine.host, &write).unwrap();
        assert_eq!(
            *machine.written.lock(),
            [
                "bus/pci/devices/0000:00:04.0/driver_override=vfio-pci",
                "bus/pci/devices/0000:00:04.0/driver/unbind=0000:00:04.0",
                "bus/pci/drivers_probe=0000:00:04.0",
            ]
        );
        pci.hand_over(&machine.host, &write).unwrap();
        assert_eq!(pci.driver(&machine.host).as_deref(), Some("vfio-pci"));
        let pci = handed_over(&machine.host, &pci.device).unwrap().unwrap();
        pci.give_back(&machine.host, &write).unwrap();
        assert_eq!(pci.driver(&machine.host).as_deref(), Some("nvme"));
        let written = machine.written.lock().len();
        pci.give_back(&machine.host, &write).unwrap();
        assert_eq!(machine.written.lock().len(), written, "it was back already");
    }

    #[test]
    fn what_cannot_go_alone_stays() {
        let machine = Machine::new();
        let other = machine.sys("devices").join(PCI).join("nvme/nvme0/nvme0n2");
        std::fs::create_dir(&other).unwrap();
        symlink(&other, machine.sys("class/block/nvme0n2")).unwrap();
        let refused =
            controller(&machine.host, machine.number, Nvme::Taken).unwrap_err().to_string();
        assert!(refused.contains("nvme0n2 would go with it"), "{refused}");
        let machine = Machine::new();
        symlink("/", machine.sys("kernel/iommu_groups/9/devices/0000:00:05.0")).unwrap();
        let refused =
            controller(&machine.host, machine.number, Nvme::Taken).unwrap_err().to_string();
        assert!(refused.contains("0000:00:05.0"), "{refused}");
        let machine = Machine::new();
        std::fs::remove_file(machine.sys("devices").join(PCI).join("iommu_group")).unwrap();
        assert!(matches!(
            controller(&machine.host, machine.number, Nvme::Taken),
            Err(VfioError::NoGroup(_))
        ));
    }

    #[test]
    fn an_nvme_controller_stays_unless_the_operator_says_that_it_is_taken() {
        let machine = Machine::new();
        let refused = controller(&machine.host, machine.number, Nvme::default()).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(PCI) && refused.contains("direct.vfio_nvme = true"), "{refused}");
        assert!(machine.written.lock().is_empty());
    }

    #[test]
    fn a_controller_that_was_pulled_out_is_not_given_back() {
        let machine = Machine::new();
        let pci = controller(&machine.host, machine.number, Nvme::Taken).unwrap();
        std::fs::remove_dir_all(machine.sys("kernel/iommu_groups/9")).unwrap();
        assert_eq!(handed_over(&machine.host, &pci.device).unwrap(), None);
    }

    #[test]
    fn a_kernel_that_does_not_give_it_is_noticed() {
        let machine = Machine::new();
        let pci = controller(&machine.host, machine.number, Nvme::Taken).unwrap();
        let refused = pci.hand_over(&machine.host, &|_, _| Ok(())).unwrap_err();
        assert!(matches!(refused, VfioError::NotBound { has, .. } if has == "nvme"));
        assert_eq!(address_of(Path::new("/sys/0000:00:1f.2")), Some("0000:00:1f.2"));
        for other in ["/sys/nvme0", "/sys/0000-00:1f.2", "/", "/sys/0000:00:1f.22"] {
            assert_eq!(address_of(Path::new(other)), None);
        }
    }
}
