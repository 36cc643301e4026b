//! Runs the tools that read and make file systems, each with a time limit and one error for its
//! failure.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;

/// The reason why a tool gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It cannot be run.
    #[error("{tool} cannot be run; is it installed where csi-edge runs?")]
    NotRun {
        /// The tool's name.
        tool: &'static str,
        /// The error of the attempt.
        #[source]
        source: io::Error,
    },
    /// It takes too long; it was killed.
    #[error("{tool} did not end within {within:?} and was killed")]
    TooSlow {
        /// Its name.
        tool: &'static str,
        /// The time it had.
        within: Duration,
    },
    /// It ended with a failure.
    #[error("{tool} ended with {code}: {text}")]
    Failed {
        /// Its name.
        tool: &'static str,
        /// Its exit code, or the signal that ended it.
        code: String,
        /// The end of its output.
        text: String,
    },
}

/// The time limit of tools that read or write a little.
pub(super) const SHORT: Duration = Duration::from_secs(60);
/// The time limit of tools that read a whole file system.
pub(super) const LONG: Duration = Duration::from_secs(30 * 60);

/// Runs a tool on a device to its end; the device is its last argument.
///
/// # Errors
/// The tool cannot be run, or does not end in time.
pub(super) async fn run<I>(
    tool: &'static str,
    args: I,
    device: &Path,
    within: Duration,
) -> Result<Output, ToolError>
where
    I: IntoIterator<Item: AsRef<OsStr>>,
{
    let mut command = Command::new(tool);
    // The output must not depend on a language.
    command.env("LC_ALL", "C").args(args).arg(device).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(within, command.output()).await;
    let output = output.map_err(|_| ToolError::TooSlow { tool, within })?;
    output.map_err(|source| ToolError::NotRun { tool, source })
}

/// Runs a tool whose exit code must be 0.
///
/// # Errors
/// As for [`run`], or the exit code is another.
pub(super) async fn succeed<I>(
    tool: &'static str,
    args: I,
    device: &Path,
    within: Duration,
) -> Result<(), ToolError>
where
    I: IntoIterator<Item: AsRef<OsStr>>,
{
    let output = run(tool, args, device, within).await?;
    if output.status.success() { Ok(()) } else { Err(failed(tool, &output)) }
}

/// Has all that was written to a device on its disk.
///
/// # Errors
/// The device cannot be opened or synced.
pub(super) async fn sync(device: &Path) -> io::Result<()> {
    let path = device.to_owned();
    let synced =
        tokio::task::spawn_blocking(move || File::options().write(true).open(path)?.sync_all());
    synced.await.map_err(io::Error::from).flatten()
}

/// The error of a tool that failed.
pub(super) fn failed(tool: &'static str, output: &Output) -> ToolError {
    let text = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    ToolError::Failed { tool, code: output.status.to_string(), text: said(text, 3) }
}

/// The last lines of an output, as one.
pub(super) fn said(text: &[u8], most: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.get(lines.len().saturating_sub(most)..).unwrap_or_default().join("; ")
}
