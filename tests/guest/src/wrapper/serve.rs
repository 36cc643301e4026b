//! The shim of a sandbox, with the socket and dialect of Kata's Go runtime. It answers with the
//! true numbers of the container's file system, and grows it on request. It ends with the
//! container.
//!
//! It has nothing of the device open, and its namespace has it not mounted: what the container
//! leaves is free at once.

use std::convert::Infallible;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proto::host::tasks::Tasks;
use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};

use super::bundle::Container;
use super::host::SERVE;
use crate::shim::go::{Query, parse};
use crate::shim::{GuestFileSystem as Usage, reply, statistics};

/// The socket's name, in the directory of the sandbox.
const SOCKET: &str = "shim-monitor.sock";
/// How often it is looked whether the container has ended.
const LOOKED: Duration = Duration::from_millis(50);

/// A shim that has its socket and waits for its container.
pub(super) struct Serving {
    child: Child,
    /// The sandbox's directory.
    dir: PathBuf,
}

/// The container of a shim.
#[derive(Serialize, Deserialize)]
struct Guest {
    /// The container's first process.
    process: i32,
    /// Its direct volumes.
    volumes: Vec<Served>,
    /// The sandbox's own directory.
    dir: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Served {
    device: String,
    fstype: String,
    destination: PathBuf,
}

impl Serving {
    /// Starts the shim of a sandbox, with its socket in a directory. The shim ends if this process
    /// ends before it passes a container.
    ///
    /// # Errors
    /// It does not get its socket.
    pub(super) fn start(dir: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // The shim gets no stdout of ours: that is the container's, and stays open while anybody
        // has it.
        command.arg(SERVE).arg(dir).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start the shim")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the shim has no socket: {line}");
        Ok(Self { child, dir: dir.to_owned() })
    }

    /// Tells it of its container, which was made.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn has(mut self, pid_file: &Path, container: &Container) -> anyhow::Result<()> {
        let process = std::fs::read_to_string(pid_file);
        let process = process.with_context(|| format!("cannot read {}", pid_file.display()))?;
        let served = container.volumes.iter().map(|volume| Served {
            device: volume.device.clone(),
            fstype: volume.info.fstype.clone().unwrap_or_default(),
            destination: volume.destination.clone(),
        });
        let dir = self.dir.clone();
        let guest = Guest { process: process.trim().parse()?, volumes: served.collect(), dir };
        let mut stdin = self.child.stdin.take().context("no stdin")?;
        writeln!(stdin, "{}", serde_json::to_string(&guest)?)?;
        Ok(())
    }
}

/// The shim itself.
///
/// # Errors
/// It gets no socket.
pub(super) fn run(dir: &Path) -> anyhow::Result<ExitCode> {
    proto::host::program::runtime(1)?.block_on(listen(&dir.join(SOCKET)))?;
    Ok(ExitCode::SUCCESS)
}

async fn listen(socket: &Path) -> anyhow::Result<()> {
    let dir = socket.parent().context("a socket without a directory")?;
    std::fs::create_dir_all(dir)?;
    // The socket of an earlier container of the sandbox.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    let ours = socket.metadata()?.ino();
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    if let Ok(guest) = serde_json::from_str::<Guest>(&line) {
        let tasks = Tasks::default();
        let process = guest.process;
        tokio::select! {
            done = accept(listener, Arc::new(guest), &tasks) => done?,
            () = ended(process) => {}
        }
        tasks.give_up();
    }
    // The next container's shim may have taken our place.
    if socket.metadata().is_ok_and(|there| there.ino() == ours) {
        std::fs::remove_dir_all(dir)?;
    }
    Ok(())
}

/// Waits until a process has ended. It polls, because a notification takes unsafe code.
async fn ended(process: i32) {
    // The process may have ended already. An open file in /proc belongs to this process only,
    // even if its id is used again.
    let Ok(mut status) = File::open(format!("/proc/{process}/stat")) else { return };
    let mut text = String::new();
    while status.rewind().is_ok() && status.read_to_string(&mut text).is_ok() {
        text.clear();
        tokio::time::sleep(LOOKED).await;
    }
}

async fn accept(listener: UnixListener, guest: Arc<Guest>, tasks: &Tasks) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let guest = guest.clone();
        tasks.spawn_until_stop("shim connection", async move {
            // A caller that closes its connection needs no answer.
            let _ = converse(stream, guest).await;
        });
    }
}

async fn converse(stream: UnixStream, guest: Arc<Guest>) -> hyper::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let guest = guest.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body =
                body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            Ok::<_, Infallible>(guest.answer(parse(&parts, &body)).await)
        }
    });
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
}

impl Guest {
    async fn answer(&self, asked: Query) -> Response<Full<Bytes>> {
        let failed = |what: &str, error: anyhow::Error| {
            let text = format!("failed to {what}: {error:#}\n");
            reply(StatusCode::INTERNAL_SERVER_ERROR, text)
        };
        match asked {
            // A shim of runtime-rs, which takes POST only.
            _ if self.volumes.is_empty() => reply(StatusCode::NOT_FOUND, "URL NOT FOUND"),
            Query::Refused(status, text) => reply(status, text),
            Query::Stats(device) => match self.usage(&device) {
                Ok(usage) => reply(StatusCode::OK, statistics(&usage).to_string()),
                Err(error) => failed("get volume stats", error),
            },
            Query::Resize(device, _) => match self.grow(&device).await {
                Ok(()) => reply(StatusCode::OK, ""),
                Err(error) => failed("resize the volume", error),
            },
        }
    }

    fn volume(&self, device: &str) -> anyhow::Result<&Served> {
        let found = self.volumes.iter().find(|volume| volume.device == device);
        found.with_context(|| format!("failed to find device {device}"))
    }

    /// The numbers of the container's file system, counted as Kata's agent does.
    fn usage(&self, device: &str) -> anyhow::Result<Usage> {
        let volume = self.volume(device)?;
        let inside = volume.destination.strip_prefix("/")?;
        let path = PathBuf::from(format!("/proc/{}/root", self.process)).join(inside);
        let there = path.metadata()?.dev();
        ensure!(
            there == Path::new(device).metadata()?.rdev(),
            "the container has something else there"
        );
        let has = rustix::fs::statvfs(&path)?;
        let free = has.f_bfree * has.f_frsize;
        let total = has.f_blocks * has.f_frsize;
        let inodes_used = has.f_files.saturating_sub(has.f_ffree);
        Ok(Usage {
            total,
            used: total.saturating_sub(free),
            inodes: has.f_files,
            inodes_used,
            grows: true,
        })
    }

    /// Makes the file system as large as its device. Only a namespace that has it mounted can do
    /// that, and the container has no tools. So it is mounted once more in a short-lived namespace.
    async fn grow(&self, device: &str) -> anyhow::Result<()> {
        let volume = self.volume(device)?;
        let grow = match volume.fstype.as_str() {
            "xfs" => "xfs_growfs \"$2\"",
            _ => "resize2fs \"$1\"",
        };
        let script = format!("mount -t \"$0\" \"$1\" \"$2\" && {grow}");
        let mut command = tokio::process::Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "sh", "-c", &script]);
        command.args([&volume.fstype, device]).arg(&self.dir).stdin(Stdio::null());
        let done = command.output().await.context("cannot start unshare")?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_volumes_own_numbers_are_told() {
        let served = |device: &str| Served {
            device: device.into(),
            fstype: "xfs".into(),
            destination: "/".into(),
        };
        let process = std::process::id().cast_signed();
        let guest =
            Guest { process, volumes: vec![served("/dev/null")], dir: "/does/not/exist".into() };
        // The root of the machine is not on that device.
        assert!(guest.usage("/dev/null").unwrap_err().to_string().contains("something else"));
        let unknown = guest.answer(Query::Stats("/dev/zero".into())).await;
        assert_eq!(unknown.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let text = unknown.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text, "failed to get volume stats: failed to find device /dev/zero\n");
    }

    #[tokio::test]
    async fn it_is_seen_that_a_process_ended() -> anyhow::Result<()> {
        let mut child = Command::new("sleep").arg("1000").spawn()?;
        let process = child.id().cast_signed();
        let patience = Duration::from_millis(120);
        assert!(tokio::time::timeout(patience, ended(process)).await.is_err(), "it runs");
        child.kill()?;
        child.wait()?;
        tokio::time::timeout(harness::wait::STOP, ended(process)).await?;
        Ok(())
    }
}
