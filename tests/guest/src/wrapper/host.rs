//! The host's side of the wrapper and its shims: paths, arguments, and runc.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;

/// The OCI runtime that makes the containers.
const RUNC: &str = "/usr/sbin/runc";
/// Where it looks for direct volumes. The path is fixed, as in the runtimes that it stands for.
pub const ENTRIES: &str = "/run/kata-containers/shared/direct-volumes";
/// Where it has a directory for each sandbox, with the socket of its shim: those of Kata's Go
/// runtime.
pub const SANDBOXES: &str = "/run/vc/sbs";
/// The same of Kata's runtime-rs.
pub(super) const SANDBOXES_RS: &str = "/run/kata";
/// The first argument when it has started itself as the shim of a sandbox, whose directory is the
/// other one.
pub(super) const SERVE: &str = "serve";

/// Becomes runc.
pub(super) fn runc(args: &[OsString]) -> anyhow::Result<ExitCode> {
    Err(Command::new(RUNC).args(args).exec()).with_context(|| format!("cannot become {RUNC}"))
}
