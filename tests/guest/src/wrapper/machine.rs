//! The VM of a sandbox, with the faults of Kata's runtime-rs that destroy a file system.
//!
//! It forgets a device when one of the containers that have it ends, and attaches it again for the
//! next start. And it outlives its shim. A machine is a process in a mount namespace of its own. It
//! has each attached device open, and mounts it by a loop device of its own upon the device's file.
//! So the kernel sees a second machine, or a second attachment, as a second mount.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use proto::host::publish::{Existing, publish};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::bundle::{BundleVolume, Container};

/// The first argument when it has started itself as the machine of a sandbox, whose id is the other
/// one.
pub(super) const MACHINE: &str = "machine";
/// The directory of the machines' states, each node's own.
pub const MACHINES: &str = "/run/runtimes/machines";
/// How often a machine looks which devices it has, and whether it is switched off.
const LOOKED: Duration = Duration::from_millis(50);

/// The devices of a machine, and the containers that use them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MachineState {
    /// The machine's process.
    process: u32,
    /// The machine's own disk of each device that the runtime remembers.
    attached: BTreeMap<String, PathBuf>,
    /// The containers by their ids.
    containers: BTreeMap<String, ContainerDevices>,
}

/// A container of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerDevices {
    /// Its name in the pod.
    pub(super) name: String,
    /// Its devices, with the disks as which it has them.
    disks: BTreeMap<String, PathBuf>,
}

impl MachineState {
    /// Forgets a container, and with it each device of it, though another container has it: that
    /// is the fault. Returns the disks that no container has any more.
    fn forget(&mut self, container: &str) -> Vec<PathBuf> {
        let Some(gone) = self.containers.remove(container) else { return Vec::new() };
        for device in gone.disks.keys() {
            self.attached.remove(device);
        }
        let mut others = self.containers.values();
        let mut unused: Vec<_> = gone.disks.into_values().collect();
        unused.retain(|disk| !others.any(|other| other.disks.values().any(|used| used == disk)));
        unused
    }
}

/// The machine of a sandbox, while nobody else changes its state.
pub(super) struct Machine {
    path: PathBuf,
    state: MachineState,
    _lock: File,
}

impl Machine {
    /// The machine of a sandbox, if it has one.
    ///
    /// # Errors
    /// Its state cannot be read.
    pub(super) fn of(sandbox: &str) -> anyhow::Result<Option<Self>> {
        let path = Path::new(MACHINES).join(sandbox);
        if !path.exists() {
            return Ok(None);
        }
        let lock = File::open(&path)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        let state = serde_json::from_slice(&std::fs::read(path.join("state"))?)?;
        Ok(Some(Self { path, state, _lock: lock }))
    }

    /// The machine of a sandbox, which is switched on if it is not there yet.
    fn on(sandbox: &str) -> anyhow::Result<Self> {
        if let Some(there) = Self::of(sandbox)? {
            return Ok(there);
        }
        let path = Path::new(MACHINES).join(sandbox);
        std::fs::create_dir_all(&path)?;
        let lock = File::open(&path)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        let machine = Self { path, state: MachineState::default(), _lock: lock };
        machine.keep()?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "slave", "--"]);
        command.arg(std::env::current_exe()?).arg(MACHINE).arg(sandbox);
        command.current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start the machine")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the machine does not start: {line}");
        let state = MachineState { process: child.id(), ..MachineState::default() };
        let machine = Self { state, ..machine };
        machine.keep()?;
        Ok(machine)
    }

    fn keep(&self) -> anyhow::Result<()> {
        let text = serde_json::to_vec(&self.state)?;
        Ok(publish(&self.path.join("state"), &text, 0o600, Existing::Replace)?)
    }

    /// Runs a command in the machine.
    fn run(&self, args: &[&OsStr]) -> anyhow::Result<()> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.state.process)).arg("--").args(args);
        let done = command.stdin(Stdio::null()).output().context("cannot start nsenter")?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim());
        Ok(())
    }

    /// Gives the machine a disk, which its kernel mounts.
    fn attach(&self, volume: &BundleVolume) -> anyhow::Result<PathBuf> {
        let name = Path::new(&volume.device).file_name().context("a device without a name")?;
        let file = Path::new("/sys/block").join(name).join("loop/backing_file");
        let file = std::fs::read_to_string(&file).context("not a loop device")?;
        let made = Command::new("losetup").args(["-f", "--show"]).arg(file.trim_end()).output()?;
        ensure!(made.status.success(), "losetup: {}", String::from_utf8_lossy(&made.stderr));
        let disk = PathBuf::from(String::from_utf8(made.stdout)?.trim());
        let place = self.path.join("mounts").join(disk.file_name().unwrap_or_default());
        std::fs::create_dir_all(&place)?;
        let fstype = volume.info.fstype.as_deref().unwrap_or_default();
        let options = volume.info.options.join(",");
        let mount = ["mount", "-t", fstype, "-o", &options].map(OsStr::new);
        let mounted = self.run(&[&mount[..], &[disk.as_os_str(), place.as_os_str()]].concat());
        // What is mounted goes with its last mount.
        let _ = Command::new("losetup").arg("-d").arg(&disk).status();
        mounted.map(|()| disk)
    }

    fn detach(&self, disk: &Path) -> anyhow::Result<()> {
        let place = self.path.join("mounts").join(disk.file_name().unwrap_or_default());
        self.run(&["umount".as_ref(), place.as_os_str()])
    }

    /// A container has ended.
    ///
    /// # Errors
    /// The machine is gone, or its state cannot be written.
    pub(super) fn ended(&mut self, container: &str) -> anyhow::Result<Option<ContainerDevices>> {
        let Some(known) = self.state.containers.get(container).cloned() else { return Ok(None) };
        for disk in self.state.forget(container) {
            self.detach(&disk)?;
        }
        self.keep()?;
        Ok(Some(known))
    }

    /// Switches the machine off.
    ///
    /// # Errors
    /// Its state cannot be removed.
    pub(super) fn off(self) -> anyhow::Result<()> {
        Ok(std::fs::remove_dir_all(&self.path)?)
    }
}

/// Puts the machine's disks in place of a container's devices, if its sandbox has a machine.
///
/// # Errors
/// The machine's state cannot be read.
pub(super) fn with_disks(container: &mut Container, id: &str) -> anyhow::Result<()> {
    let Some(machine) = Machine::of(&container.sandbox)? else { return Ok(()) };
    let disks = machine.state.containers.get(id).map(|container| &container.disks);
    for volume in &mut container.volumes {
        let disk = disks.and_then(|disks| disks.get(&volume.device));
        volume.device = disk.context("the machine has no such disk")?.display().to_string();
    }
    Ok(())
}

/// Gives the volumes of a container to the machine of its sandbox.
///
/// # Errors
/// The machine does not start, or its kernel refuses a disk.
pub(super) fn take(container: &Container, id: &str) -> anyhow::Result<()> {
    let mut machine = Machine::on(&container.sandbox)?;
    let mut has = ContainerDevices { name: container.name.clone(), disks: BTreeMap::new() };
    for volume in &container.volumes {
        let device = volume.device.clone();
        let disk = match machine.state.attached.get(&device) {
            Some(disk) => disk.clone(),
            None => {
                // The machine has it open while its kernel looks at it.
                machine.state.attached.insert(device.clone(), PathBuf::new());
                machine.keep()?;
                let attached = machine.attach(volume);
                match &attached {
                    Ok(disk) => machine.state.attached.insert(device.clone(), disk.clone()),
                    Err(_) => machine.state.attached.remove(&device),
                };
                machine.keep()?;
                attached.with_context(|| format!("the disk {device}"))?
            }
        };
        has.disks.insert(device, disk);
    }
    machine.state.containers.insert(id.to_owned(), has);
    machine.keep()
}

/// The machine itself.
///
/// # Errors
/// Its state cannot be read.
pub(super) fn run(sandbox: &OsStr) -> anyhow::Result<ExitCode> {
    let path = Path::new(MACHINES).join(sandbox).join("state");
    proto::host::program::runtime(1)?.block_on(look(&path))?;
    Ok(ExitCode::SUCCESS)
}

/// Has the attached devices open until the machine is switched off.
async fn look(path: &Path) -> anyhow::Result<()> {
    let mut open: BTreeMap<String, File> = BTreeMap::new();
    println!("ready");
    while let Ok(text) = std::fs::read(path) {
        let state: MachineState = serde_json::from_slice(&text)?;
        let used = |device: &String| {
            let has = |container: &ContainerDevices| container.disks.contains_key(device);
            state.attached.contains_key(device) || state.containers.values().any(has)
        };
        open.retain(|device, _| used(device));
        for device in state.attached.keys() {
            if !open.contains_key(device) {
                open.insert(device.clone(), File::open(device)?);
            }
        }
        tokio::time::sleep(LOOKED).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_forgotten_while_another_container_has_it() {
        let has = |name: &str| ContainerDevices {
            name: name.into(),
            disks: [("/dev/a".to_owned(), PathBuf::from("/dev/b"))].into(),
        };
        let mut machine = MachineState::default();
        machine.attached.insert("/dev/a".into(), "/dev/b".into());
        machine.containers.insert("1".into(), has("app"));
        machine.containers.insert("2".into(), has("sidecar"));
        assert!(machine.forget("2").is_empty(), "the first one has it mounted");
        assert!(machine.attached.is_empty(), "and the next start attaches it again");
        assert_eq!(machine.forget("1"), [Path::new("/dev/b")]);
        assert!(machine.forget("1").is_empty());
    }
}
