//! A mount namespace of its own, so that tests can mount without rights over the host and leave
//! nothing behind.
//!
//! It is made by `unshare(1)`, which becomes this program again: the system call is not safe to
//! make from Rust.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context as _, bail};

/// The option for private mounts, which the second start does not have.
pub const OPTION: &str = "--private-mounts";

/// Starts this program again in a mount namespace, as root inside of it; returns only if that is
/// not possible.
///
/// # Errors
/// Namespaces are not allowed here, or `unshare` is not installed.
pub fn restart() -> anyhow::Result<()> {
    let mut options = vec!["--mount", "--propagation", "private"];
    if !rustix::process::geteuid().is_root() {
        options.extend(["--user", "--map-root-user"]);
    }
    // Tried first, because after the change of program its message would stand alone.
    let tried = Command::new("unshare").args(&options).arg("true").output();
    let tried = tried.context("cannot run unshare, which --private-mounts needs")?;
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr);
        bail!("{OPTION}: this system does not allow a mount namespace here: {}", said.trim());
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let args = std::env::args_os().skip(1).filter(|arg| arg != OPTION);
    let error = Command::new("unshare").args(&options).arg("--").arg(program).args(args).exec();
    Err(error).context("cannot become unshare")
}
