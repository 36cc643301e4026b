//! Runs the tools that read and make file systems, each for a bounded time and with its own language of errors.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;

/// What became of a tool.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It cannot be run.
    #[error("{tool} cannot be run; is it installed where csi-edge runs?")]
    NotRun {
        /// Its name.
        tool: &'static str,
        /// What the attempt met.
        #[source]
        source: std::io::Error,
    },
    /// It takes too long; it was killed.
    #[error("{tool} did not end within {within:?} and was killed")]
    TooSlow {
        /// Its name.
        tool: &'static str,
        /// The time it had.
        within: Duration,
    },
    /// It says no.
    #[error("{tool} ended with {code}: {text}")]
    Failed {
        /// Its name.
        tool: &'static str,
        /// Its exit code, or the signal that ended it.
        code: String,
        /// The end of what it text.
        text: String,
    },
}

/// For tools that read or write a little.
pub(super) const SHORT: Duration = Duration::from_secs(60);
/// For tools that go over a whole file system.
pub(super) const LONG: Duration = Duration::from_secs(30 * 60);

/// Runs a tool on a device to its end; the device is its last argument.
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
    // The sense of an answer must not depend on a language.
    command.env("LC_ALL", "C").args(args).arg(device).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(within, command.output()).await;
    let output = output.map_err(|_| ToolError::TooSlow { tool, within })?;
    output.map_err(|source| ToolError::NotRun { tool, source })
}

/// The same, for a tool whose exit code must be 0.
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

/// What a tool that ended badly text.
pub(super) fn failed(tool: &'static str, output: &Output) -> ToolError {
    let text = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = lines.get(lines.len().saturating_sub(3)..).unwrap_or_default().join("; ");
    ToolError::Failed { tool, code: output.status.to_string(), text }
}
