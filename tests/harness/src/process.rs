//! A child process with its log in a file and its lines to wait for. It never outlives its handle.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::wait::until;

/// How late csi-cloud and csi-edge write a line of their logs, at most.
const LATE: Duration = Duration::from_millis(10);
/// How much of a log an error shows, in bytes.
const TAIL: usize = 3000;

/// A running program.
pub struct Process {
    name: String,
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Process {
    /// Starts a program. Its stderr goes to `NAME.log` in `logs`, after what is there.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(name: &str, mut command: Command, logs: &Path) -> anyhow::Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let stderr = std::fs::File::options().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
        let stdout = child.stdout.take().with_context(|| format!("{name} has no stdout"))?;
        Ok(Self { name: name.to_owned(), child, stdout: BufReader::new(stdout).lines(), log })
    }

    /// Waits for a line on stdout with this beginning, and returns the rest of it.
    ///
    /// # Errors
    /// The program ended, or the time is over; the error holds the end of its log.
    pub async fn line_starting(&mut self, prefix: &str, limit: Duration) -> anyhow::Result<String> {
        let reading = async {
            while let Some(line) = self.stdout.next_line().await? {
                if let Some(rest) = line.strip_prefix(prefix) {
                    return Ok(rest.to_owned());
                }
            }
            bail!("it ended")
        };
        let read = tokio::time::timeout(limit, reading).await;
        read.unwrap_or_else(|_| bail!("not within {limit:?}")).with_context(|| {
            format!("{} did not print {prefix:?}; its log ends:\n{}", self.name, self.log_tail())
        })
    }

    /// The rest of its stdout.
    ///
    /// # Errors
    /// It cannot be read, or the time is over.
    pub async fn rest(&mut self, limit: Duration) -> anyhow::Result<Vec<String>> {
        let reading = async {
            let mut lines = Vec::new();
            while let Some(line) = self.stdout.next_line().await? {
                lines.push(line);
            }
            Ok(lines)
        };
        tokio::time::timeout(limit, reading).await.context("its stdout does not end")?
    }

    /// The whole log of what it has done so far.
    pub async fn settled_log(&self) -> String {
        tokio::time::sleep(LATE * 3).await;
        String::from_utf8_lossy(&self.log()).into_owned()
    }

    /// What of its log is written.
    pub fn log(&self) -> Vec<u8> {
        std::fs::read(&self.log).unwrap_or_default()
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let tail = log.get(log.len().saturating_sub(TAIL)..).unwrap_or_default();
        String::from_utf8_lossy(tail).into_owned()
    }

    /// Waits until the end of its log has this text.
    ///
    /// # Errors
    /// It has not in time; the error has the end of the log.
    pub async fn logged(&self, what: &str) -> anyhow::Result<()> {
        until(what, || async {
            let log = self.log_tail();
            ensure!(log.contains(what), "{} has logged:\n{log}", self.name);
            Ok(())
        })
        .await
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The process has ended already.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} has ended", self.name))?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Asks it to end with SIGTERM and waits for that.
    ///
    /// # Errors
    /// It does not end in time (then it is killed), or ends with another code than 0.
    pub async fn stop(mut self, limit: Duration) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status = self.ended(limit).await?;
        if !status.success() {
            bail!("{} ended with {status}; its log ends:\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// Kills it with SIGKILL and waits for that.
    ///
    /// # Errors
    /// The system's.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("cannot kill {}", self.name))
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// The system's.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits for its end; kills it when the time is over.
    ///
    /// # Errors
    /// The time was over.
    pub async fn ended(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        if let Ok(status) = tokio::time::timeout(limit, self.child.wait()).await {
            return Ok(status?);
        }
        let _ = self.child.kill().await;
        bail!(
            "{} did not end within {limit:?} and was killed; its log ends:\n{}",
            self.name,
            self.log_tail()
        )
    }
}
