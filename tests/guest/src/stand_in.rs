//! A stand-in for a guest: a process in a mount namespace of its own. It finds its volume as a
//! runtime does, mounts it only there, and executes one command per line.
//!
//! It shows our half of the contract, and is no VM: `contract` has what it took from the runtimes.

use std::fs;
use std::fs::File;
use std::io;
use std::io::{BufRead, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::contract::{Found, Info, OciConfig, Runtime, detect};
use harness::stand::Stand;

/// The arguments of a guest.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How it finds its volume
    #[arg(long)]
    runtime: Runtime,
    /// Where direct volumes are published
    #[arg(long)]
    root: PathBuf,
    /// The container's config.json
    #[arg(long)]
    config: PathBuf,
    /// Where it mounts
    #[arg(long)]
    at: PathBuf,
}

/// The guest's own side: mounts, reports the result, executes commands until its stdin ends,
/// unmounts.
///
/// # Errors
/// The system's, or a line that it does not understand.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let config: OciConfig = serde_json::from_slice(&fs::read(&args.config)?)?;
    let mount = config.mounts.first().context("no mount")?;
    let files = match detect(args.runtime, &args.root, mount) {
        Found::Direct(info) => {
            mounted(args, &info)?;
            println!("direct");
            args.at.clone()
        }
        Found::Shared => {
            // As the Go runtime does in the directory that it shares with the guest, and runc in
            // the container.
            fs::create_dir_all(&args.at)?;
            rustix::mount::mount_bind_recursive(&mount.source, &args.at)?;
            println!("shared");
            args.at.clone()
        }
        Found::Fails(why) => {
            println!("fails {why}");
            return Ok(());
        }
    };
    for line in io::stdin().lock().lines() {
        match obey(&files, &line?) {
            Ok(said) => println!("ok {said}"),
            Err(error) => println!("error {error:#}"),
        }
        io::stdout().flush()?;
    }
    if files == args.at {
        rustix::mount::unmount(&args.at, rustix::mount::UnmountFlags::empty())?;
    }
    Ok(())
}

fn mounted(args: &Args, info: &Info) -> anyhow::Result<()> {
    fs::create_dir_all(&args.at)?;
    let mut command = Command::new("mount");
    command.args(["-t", info.fstype.as_deref().unwrap_or_default()]);
    if !info.options.is_empty() {
        command.args(["-o", &info.options.join(",")]);
    }
    let done = command.arg(info.device.as_deref().unwrap_or_default()).arg(&args.at).output()?;
    ensure!(done.status.success(), "mount: {}", String::from_utf8_lossy(&done.stderr));
    // The agent does so for the Go runtime; runtime-rs reads no metadata.
    if let Some(group) = info.metadata.get("fsGroup").filter(|_| args.runtime == Runtime::Go) {
        std::os::unix::fs::chown(&args.at, None, Some(group.parse()?))?;
    }
    Ok(())
}

fn obey(files: &Path, line: &str) -> anyhow::Result<String> {
    let mut words = line.splitn(3, ' ');
    let what = words.next().unwrap_or_default();
    let name = words.next().unwrap_or_default();
    let path = files.join(name);
    match what {
        "write" => {
            let mut file = File::create(&path)?;
            file.write_all(words.next().unwrap_or_default().as_bytes())?;
            file.sync_all()?;
            Ok(String::new())
        }
        "read" => Ok(fs::read_to_string(&path)?),
        "group" => Ok(fs::metadata(files)?.gid().to_string()),
        "mounts" => Ok(fs::read_to_string("/proc/self/mountinfo")?.lines().count().to_string()),
        other => bail!("{other} is nothing that a guest does"),
    }
}

/// A guest that runs, as the test sees it.
pub struct Guest {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// The state of its volume: `direct`, `shared` or `fails`, and why.
    pub found: String,
}

impl Guest {
    /// Starts a guest whose container has this mount source.
    ///
    /// # Errors
    /// It cannot be started; the error holds what it said.
    pub async fn start(
        stand: &Stand,
        runtime: Runtime,
        root: &Path,
        source: &Path,
    ) -> anyhow::Result<Self> {
        let id = uuid::Uuid::new_v4();
        let config = stand.dir().join(format!("config-{id}.json"));
        // As containerd writes it.
        let mount = serde_json::json!({
            "destination": "/data", "type": "bind", "source": source,
            "options": ["rbind", "rprivate", "rw"],
        });
        let text = serde_json::json!({ "ociVersion": "1.1.0", "mounts": [mount] }).to_string();
        proto::host::publish::publish(
            &config,
            text.as_bytes(),
            0o600,
            proto::host::publish::Existing::Keep,
        )?;
        let program = stand.program("guest")?;
        let mut command = tokio::process::Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]).arg(program.as_std().get_program());
        let runtime = format!("{runtime:?}").to_lowercase();
        command
            .args(["stand-in", "--runtime", &runtime, "--root"])
            .arg(root)
            .arg("--config")
            .arg(config);
        command.arg("--at").arg(stand.dir().join(format!("guest-{id}")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("unshare")?;
        let stdin = child.stdin.take().context("no stdin")?;
        let mut lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        let found = lines.next_line().await?.context("the guest ended")?;
        Ok(Self { child, stdin, lines, found })
    }

    /// Sends it a command, and returns its answer.
    ///
    /// # Errors
    /// It could not.
    pub async fn tell(&mut self, line: &str) -> anyhow::Result<String> {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await?;
        let said = self.lines.next_line().await?.context("the guest ended")?;
        match said.strip_prefix("ok") {
            Some(said) => Ok(said.trim_start().to_owned()),
            None => bail!("{line}: {said}"),
        }
    }

    /// Stops the VM in order: it unmounts.
    ///
    /// # Errors
    /// It does not.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.stdin);
        let status = tokio::time::timeout(harness::wait::STOP, self.child.wait()).await??;
        ensure!(status.success(), "the guest ended with {status}");
        Ok(())
    }

    /// Pulls the VM's plug.
    ///
    /// # Errors
    /// The system's.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}
