//! A virtual machine that runs: QEMU, its monitor, and the port to the guest's process 1. It ends
//! when its handle does.
//!
//! A VM runtime's work on a direct volume: plug the device in, tell the guest of its growth, take
//! it out. Every wait has an end, and an error holds the last output of the guest's kernel.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::time::{Instant, timeout};

use super::initramfs;
use super::kernel::Kernel;
use super::protocol::{Disk, GuestAnswer, GuestRequest, PORT};
use super::qmp::Qmp;
use harness::process::Process;
use harness::programs::Programs;

/// The program.
pub const QEMU: &str = "qemu-system-x86_64";
/// How long the processor's own virtualisation may take until the guest is up, and how long
/// emulation may.
const UP: [Duration; 2] = [Duration::from_secs(25), Duration::from_secs(150)];
/// How long a guest may take for a question.
const PATIENCE: Duration = Duration::from_secs(180);
/// How much of the console an error shows, in bytes.
const TAIL: usize = 1500;
/// A guest's memory, in MiB.
const MEMORY: u32 = 512;
/// The kernel modules for the port, disks and file systems. Their checksums are requested by name
/// at run time.
const MODULES: [&str; 7] =
    ["virtio_pci", "virtio_console", "virtio_blk", "crc32c_generic", "crc32c_intel", "ext4", "xfs"];
/// And for shared directories, if the kernel has it: Debian's cloud kernel has it, and no 9p.
const SHARES: &str = "virtiofs";

/// How a guest's processor is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Accel {
    /// By this machine's own.
    Kvm,
    /// By emulation.
    Tcg,
}

/// The files that all guests of a run share.
pub struct Ground {
    image: PathBuf,
    dir: tempfile::TempDir,
    /// How their processors are made.
    pub accel: Accel,
    /// Their kernel, and why it is emulated, if it is.
    pub about: String,
}

impl Ground {
    /// Makes the files that guests start with, and tries one. The default is KVM, if a guest starts
    /// with it.
    ///
    /// # Errors
    /// Something is missing, or no guest comes up.
    pub async fn new(kernel: &Path, wish: Option<Accel>) -> anyhow::Result<Self> {
        let kernel = Kernel::at(kernel)?;
        let init = Programs::beside_this()?.built("guestinit")?;
        let modules: Vec<_> =
            MODULES.into_iter().chain(Some(SHARES).filter(|name| kernel.has(name))).collect();
        let tools = [tool("resize2fs")?, tool("xfs_growfs")?];
        let dir = tempfile::Builder::new().prefix("ec-guest-").tempdir()?;
        let archive = initramfs::of(&kernel, &stripped(&init, dir.path())?, &tools, &modules)?;
        let at = dir.path().join("initramfs");
        proto::host::publish::publish(&at, &archive, 0o600, proto::host::publish::Existing::Keep)?;
        let mut ground = Self { image: kernel.image, dir, accel: Accel::Kvm, about: String::new() };
        let mut why = String::new();
        for accel in [Accel::Kvm, Accel::Tcg] {
            if wish.is_some_and(|wish| wish != accel) {
                continue;
            }
            ground.accel = accel;
            match ground.tried().await {
                Ok(about) => {
                    ground.about = format!("{about}{why}");
                    return Ok(ground);
                }
                Err(error) if accel == Accel::Kvm && wish.is_none() => {
                    let text = format!("{error:#}");
                    why = format!(
                        "; no guest comes up with KVM: {}",
                        text.lines().next().unwrap_or_default()
                    );
                }
                Err(error) => {
                    return Err(error.context(format!("no guest comes up with {accel:?}{why}")));
                }
            }
        }
        bail!("no guest comes up")
    }

    async fn tried(&self) -> anyhow::Result<String> {
        if self.accel == Accel::Kvm {
            ensure!(Path::new("/dev/kvm").exists(), "this machine has no /dev/kvm");
        }
        let from = Instant::now();
        let mut machine = Machine::start(self, self.dir.path(), &[]).await?;
        let took = from.elapsed().as_secs_f64();
        let release: String = machine.ask(&GuestRequest::Release).await?;
        machine.stop().await?;
        let how = if self.accel == Accel::Kvm { "KVM" } else { "emulated" };
        Ok(format!("Linux {release}, {how}, up after {took:.1} s"))
    }

    fn command(&self, dir: &Path, name: &str, more: &[String]) -> Command {
        let at = |what: &str| dir.join(format!("{name}-{what}")).display().to_string();
        // It does not outlive us, however we end.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", QEMU]);
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-smp",
            "2",
        ]);
        let accel = if self.accel == Accel::Kvm { "kvm" } else { "tcg" };
        command.args([
            "-machine",
            &format!("pc,accel={accel},memory-backend=memory"),
            "-cpu",
            "max",
        ]);
        // A virtiofsd has to see it.
        command.arg("-m").arg(format!("{MEMORY}M"));
        command
            .args(["-object", &format!("memory-backend-memfd,id=memory,size={MEMORY}M,share=on")]);
        command
            .arg("-kernel")
            .arg(&self.image)
            .arg("-initrd")
            .arg(self.dir.path().join("initramfs"));
        command.args(["-append", "console=ttyS0 quiet panic=-1"]);
        command.args(["-serial", &format!("file:{}", at("console"))]);
        for (socket, id) in [("qmp", "monitor"), ("port", "port")] {
            command.args(["-chardev", &format!("socket,id={id},path={}", at(socket))]);
        }
        command.args(["-mon", "chardev=monitor,mode=control", "-device", "virtio-serial-pci"]);
        command.args(["-device", &format!("virtserialport,chardev=port,name={PORT}")]);
        command.args(more);
        command
    }
}

/// A program without debug information, which is nineteen twentieths of it.
fn stripped(program: &Path, dir: &Path) -> anyhow::Result<PathBuf> {
    let to = dir.join("init");
    let done = std::process::Command::new("strip").arg("-o").arg(&to).arg(program).output();
    let done = done.context("strip cannot be started; it comes with the linker that cargo uses")?;
    ensure!(done.status.success(), "strip: {}", String::from_utf8_lossy(&done.stderr));
    Ok(to)
}

/// A program of this machine's.
fn tool(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.exists());
    found.with_context(|| format!("{name} is not here; it is in e2fsprogs or xfsprogs"))
}

/// A machine that runs.
pub struct Machine {
    qemu: Process,
    qmp: Qmp,
    lines: Lines<BufReader<OwnedReadHalf>>,
    port: OwnedWriteHalf,
    console: PathBuf,
}

impl Machine {
    /// Starts a machine with its sockets and logs in a directory, and with further arguments for
    /// QEMU; its guest is up.
    ///
    /// # Errors
    /// It does not come up in time.
    pub async fn start(ground: &Ground, dir: &Path, more: &[String]) -> anyhow::Result<Self> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("vm-{}", id.get(..6).unwrap_or(&id));
        let listen = |what: &str| UnixListener::bind(dir.join(format!("{name}-{what}")));
        let monitor = listen("qmp")?;
        let port = listen("port")?;
        let mut qemu = Process::start(&name, ground.command(dir, &name, more), dir)?;
        let connected = async {
            let (monitor, _) = monitor.accept().await?;
            let (port, _) = port.accept().await?;
            anyhow::Ok((Qmp::new(monitor).await?, port))
        };
        let connected = tokio::select! {
            connected = timeout(PATIENCE, connected) => {
                connected.context("QEMU does not begin").flatten()
            }
            ended = qemu.ended(PATIENCE) => {
                ended.and_then(|status| bail!("QEMU ended with {status}"))
            }
        };
        let (qmp, port) = connected.with_context(|| qemu.log_tail())?;
        let (read, port) = UnixStream::into_split(port);
        let lines = BufReader::new(read).lines();
        let mut machine =
            Self { qemu, qmp, lines, port, console: dir.join(format!("{name}-console")) };
        let limit = UP[usize::from(ground.accel == Accel::Tcg)];
        machine
            .asked::<String>(&GuestRequest::Release, limit)
            .await
            .context("the guest does not come up")?;
        Ok(machine)
    }

    /// Asks the guest.
    ///
    /// # Errors
    /// It could not, or does not answer in time.
    pub async fn ask<T: DeserializeOwned>(&mut self, ask: &GuestRequest) -> anyhow::Result<T> {
        self.asked(ask, PATIENCE).await
    }

    async fn asked<T: DeserializeOwned>(
        &mut self,
        ask: &GuestRequest,
        limit: Duration,
    ) -> anyhow::Result<T> {
        let exchange = async {
            self.port.write_all((serde_json::to_string(ask)? + "\n").as_bytes()).await?;
            let line = self.lines.next_line().await?.context("QEMU has ended")?;
            anyhow::Ok(serde_json::from_str(&line)?)
        };
        let said =
            timeout(limit, exchange).await.with_context(|| format!("no answer within {limit:?}"));
        match said
            .flatten()
            .with_context(|| format!("{ask:?}; its console ends:\n{}", self.console()))?
        {
            GuestAnswer::Done(value) => Ok(serde_json::from_value(value)?),
            GuestAnswer::Failed(why) => bail!("the guest says: {why}"),
        }
    }

    /// Plugs in a device of this machine's under a serial number, and waits until the guest has it.
    ///
    /// # Errors
    /// QEMU's, or the guest does not see it.
    pub async fn plug(&mut self, device: &Path, serial: &str) -> anyhow::Result<Disk> {
        let node = |aio: &str| {
            json!({
                "driver": "host_device", "node-name": serial, "filename": device, "aio": aio,
                "cache": { "direct": false, "no-flush": false },
            })
        };
        // As Kata has it by default. Not every machine lets its programs have io_uring.
        if self.qmp.execute("blockdev-add", node("io_uring")).await.is_err() {
            self.qmp.execute("blockdev-add", node("threads")).await?;
        }
        // Kata has QEMU's own locks let others write, so they keep no second machine away.
        let disk = json!({
            "driver": "virtio-blk-pci", "id": serial, "drive": serial, "serial": serial,
            "share-rw": true,
        });
        self.qmp.execute("device_add", disk).await?;
        self.until("the guest sees the disk", serial, |disk| disk.is_some())
            .await?
            .context("no disk")
    }

    /// Waits until the guest sees a device's new size in bytes.
    ///
    /// # Errors
    /// It does not.
    pub async fn grown(&mut self, serial: &str, bytes: u64) -> anyhow::Result<()> {
        self.qmp.execute("block_resize", json!({ "node-name": serial, "size": bytes })).await?;
        let larger = |disk: &Option<Disk>| disk.as_ref().is_some_and(|disk| disk.bytes == bytes);
        self.until("the guest sees the growth", serial, larger).await?;
        Ok(())
    }

    /// Takes a device out, and waits until neither the guest nor QEMU has it.
    ///
    /// # Errors
    /// One of them does not let it go.
    pub async fn unplug(&mut self, serial: &str) -> anyhow::Result<()> {
        self.qmp.execute("device_del", json!({ "id": serial })).await?;
        self.qmp.event("DEVICE_DELETED", serial).await?;
        self.qmp.execute("blockdev-del", json!({ "node-name": serial })).await?;
        self.until("the guest lets the disk go", serial, Option::is_none).await?;
        Ok(())
    }

    async fn until(
        &mut self,
        what: &str,
        serial: &str,
        good: impl Fn(&Option<Disk>) -> bool,
    ) -> anyhow::Result<Option<Disk>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let disk = self.ask(&GuestRequest::Disk { serial: serial.to_owned() }).await?;
            if good(&disk) {
                return Ok(disk);
            }
            ensure!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}; it has {disk:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Has the guest switch the machine off.
    ///
    /// # Errors
    /// It does not.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let _: Value = self.ask(&GuestRequest::End).await?;
        let status = self.qemu.ended(PATIENCE).await?;
        ensure!(status.success(), "QEMU ended with {status}: {}", self.qemu.log_tail());
        Ok(())
    }

    /// Pulls its plug.
    ///
    /// # Errors
    /// The system's.
    pub async fn kill(self) -> anyhow::Result<()> {
        self.qemu.kill().await
    }

    fn console(&self) -> String {
        let text = std::fs::read(&self.console).unwrap_or_default();
        let tail = text.get(text.len().saturating_sub(TAIL)..).unwrap_or_default();
        String::from_utf8_lossy(tail).into_owned()
    }
}
