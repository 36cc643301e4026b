//! Process 1 of the guest, and everything that runs in it. It loads the kernel's modules and
//! executes commands from the port until the other end closes.
//!
//! It knows nothing of CSI: it has the devices that it is given, as the agent in a VM runtime's
//! guest has.

use std::ffi::CString;
use std::fs;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;
use tokio::time::Instant;

use super::load;
use super::protocol::{Disk, GuestAnswer, GuestRequest, MODULES, Owner, PORT, Usage};
use crate::agent;
use crate::agent::Group;

/// How long the guest's kernel may take for one step.
const KERNEL: Duration = Duration::from_secs(20);
/// The kernel counts a disk's size in these units, whatever the disk's own sectors are.
const SECTOR: u64 = 512;

/// Runs until the port is closed, and then switches the machine off.
///
/// # Errors
/// This is not process 1, or it cannot be switched off.
pub fn run() -> anyhow::Result<()> {
    ensure!(std::process::id() == 1, "this is process 1 of a test's guest and nothing else");
    if let Err(error) = serve() {
        println!("guest: {error:#}");
    }
    rustix::fs::sync();
    rustix::system::reboot(rustix::system::RebootCommand::PowerOff).context("cannot switch off")
}

fn serve() -> anyhow::Result<()> {
    for (kind, at) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        fs::create_dir_all(at)?;
        mount(kind, at, kind, MountFlags::empty(), None)
            .with_context(|| format!("cannot mount {at}"))?;
    }
    modules(&Path::new("/").join(MODULES))?;
    let port = wait("port", || port(Path::new("/sys/class/virtio-ports")))?;
    let port = File::options().read(true).write(true).open(port)?;
    let mut lines = BufReader::new(&port).lines();
    loop {
        // A port reads as ended until the kernel knows that the other end is open.
        let line = wait("other end", || lines.next().context("nobody is at the port"))??;
        let ask: GuestRequest = serde_json::from_str(&line)?;
        let end = matches!(ask, GuestRequest::End);
        let said = match obey(ask) {
            Ok(value) => GuestAnswer::Done(value),
            Err(error) => GuestAnswer::Failed(format!("{error:#}")),
        };
        let mut text = serde_json::to_vec(&said)?;
        text.push(b'\n');
        (&port).write_all(&text)?;
        if end {
            return Ok(());
        }
    }
}

/// In the order of their names.
fn modules(dir: &Path) -> anyhow::Result<()> {
    let mut files =
        fs::read_dir(dir)?.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.sort();
    for file in files {
        let loaded = rustix::system::finit_module(File::open(&file)?, c"", 0);
        // A module may not suit the processor. Another module replaces it, or the mount of the file
        // system reports it missing.
        if let Err(error) = loaded {
            println!("guest: {} is not loaded: {error}", file.display());
        }
    }
    Ok(())
}

/// The device of our port.
fn port(ports: &Path) -> anyhow::Result<PathBuf> {
    for port in fs::read_dir(ports)?.filter_map(Result::ok) {
        if fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == PORT) {
            return Ok(Path::new("/dev").join(port.file_name()));
        }
    }
    bail!("there is none of that name")
}

/// Asks until there is an answer.
fn wait<T>(what: &str, mut ask: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let deadline = Instant::now() + KERNEL;
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("no {what}")));
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "process 1 has nothing else to do, and each wait an end"
            )]
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn obey(ask: GuestRequest) -> anyhow::Result<Value> {
    let nothing = |()| Value::Null;
    Ok(match ask {
        GuestRequest::Release => rustix::system::uname().release().to_string_lossy().into(),
        GuestRequest::Disk { serial } => {
            serde_json::to_value(disk(Path::new("/sys/block"), &serial)?)?
        }
        GuestRequest::Mount { source, kind, options, group, at } => {
            mounted(&source, &kind, &options, group, &at).map(nothing)?
        }
        GuestRequest::Unmount { at } => unmount(&at, UnmountFlags::empty()).map(nothing)?,
        GuestRequest::Write { path, text, times } => {
            write(&path, text.as_bytes(), times).map(nothing)?
        }
        GuestRequest::Owner { path } => serde_json::to_value(owner(&path)?)?,
        GuestRequest::Read { path } => fs::read_to_string(path)?.into(),
        GuestRequest::Usage { at } => serde_json::to_value(usage(&at)?)?,
        GuestRequest::Grow { device, kind, at } => grow(&device, &kind, &at).map(nothing)?,
        GuestRequest::Churn { below } => churn(below).map(nothing)?,
        GuestRequest::Load(load) => serde_json::to_value(load::run(&load)?)?,
        GuestRequest::End => Value::Null,
    })
}

fn disk(disks: &Path, serial: &str) -> anyhow::Result<Option<Disk>> {
    for disk in fs::read_dir(disks)?.filter_map(Result::ok) {
        if fs::read_to_string(disk.path().join("serial")).is_ok_and(|text| text.trim() == serial) {
            let sectors: u64 = fs::read_to_string(disk.path().join("size"))?.trim().parse()?;
            let path = Path::new("/dev").join(disk.file_name());
            return Ok(Some(Disk { path, bytes: sectors * SECTOR }));
        }
    }
    Ok(None)
}

fn mounted(
    source: &str,
    kind: &str,
    options: &[String],
    group: Option<Group>,
    at: &Path,
) -> anyhow::Result<()> {
    fs::create_dir_all(at)?;
    let (flags, data) = agent::flags(options);
    let data = CString::new(data)?;
    mount(source, at, kind, flags, data.as_c_str())
        .with_context(|| format!("cannot mount {source} as {kind}"))?;
    let given = group.map_or(Ok(()), |group| group.gets(at, flags.contains(MountFlags::RDONLY)));
    if given.is_err() {
        unmount(at, UnmountFlags::empty())?;
    }
    given.with_context(|| format!("cannot give {source} to {group:?}"))
}

fn owner(path: &Path) -> anyhow::Result<Owner> {
    let meta = fs::metadata(path)?;
    Ok(Owner { group: meta.gid(), mode: meta.mode() })
}

fn write(path: &Path, text: &[u8], times: usize) -> anyhow::Result<()> {
    let mut file = std::io::BufWriter::with_capacity(1 << 16, File::create(path)?);
    for _ in 0..times {
        file.write_all(text)?;
    }
    file.into_inner()?.sync_all()?;
    // Its name, too.
    Ok(File::open(path.parent().context("a file without a directory")?)?.sync_all()?)
}

fn usage(at: &Path) -> anyhow::Result<Usage> {
    let said = rustix::fs::statvfs(at)?;
    let total = said.f_blocks * said.f_frsize;
    let free = said.f_bfree * said.f_frsize;
    Ok(Usage { total, free, inodes: said.f_files, inodes_free: said.f_ffree })
}

fn grow(device: &Path, kind: &str, at: &Path) -> anyhow::Result<()> {
    let mut command = match kind {
        "ext4" => Command::new("/bin/resize2fs"),
        "xfs" => Command::new("/bin/xfs_growfs"),
        other => bail!("{other} cannot be grown"),
    };
    // resize2fs takes the device and finds its mount; xfs_growfs takes the mount.
    let output = command.arg(if kind == "xfs" { at } else { device }).output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Makes and renames files all the time, so that the journal always has blocks to replay.
fn churn(below: PathBuf) -> anyhow::Result<()> {
    fs::create_dir_all(&below)?;
    let round = move |n: u64| {
        let new = below.join(format!("new-{}", n % 64));
        let old = below.join(format!("old-{}", n % 64));
        let mut file = File::create(&new)?;
        file.write_all(&vec![0x3c; 4096 * (1 + n as usize % 16)])?;
        if n.is_multiple_of(16) {
            file.sync_all()?;
        }
        fs::rename(&new, &old)?;
        if n.is_multiple_of(3) { fs::remove_file(&old) } else { Ok(()) }
    };
    for n in 0..256 {
        round(n)?;
    }
    std::thread::Builder::new().spawn(move || (256..).try_for_each(round))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_known_by_its_serial_number_and_nothing_else() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        for (name, serial) in [("vda", "v-1"), ("vdb", "v-10\n"), ("loop0", "")] {
            fs::create_dir(dir.path().join(name))?;
            File::create(dir.path().join(name).join("serial"))?.write_all(serial.as_bytes())?;
            File::create(dir.path().join(name).join("size"))?.write_all(b"8\n")?;
        }
        assert_eq!(disk(dir.path(), "v-10")?, Some(Disk { path: "/dev/vdb".into(), bytes: 4096 }));
        assert_eq!(disk(dir.path(), "v-2")?, None);
        Ok(())
    }

    #[test]
    fn nobody_but_process_1_switches_the_machine_off() {
        assert!(run().unwrap_err().to_string().contains("nothing else"));
    }

    #[test]
    fn what_is_written_is_read() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("file");
        obey(GuestRequest::Write { path: path.clone(), text: "ab".into(), times: 3 })?;
        assert_eq!(obey(GuestRequest::Read { path })?, "ababab");
        let usage: Usage =
            serde_json::from_value(obey(GuestRequest::Usage { at: dir.path().into() })?)?;
        assert!(usage.total > usage.free);
        Ok(())
    }
}
