//! A directory of a file server, mounted by sshfs: SFTP over TCP and FUSE, which every kernel has.
//!
//! sshfs is a process of its own. It outlives a driver that is killed, as the mounts of pods must,
//! and ends with the node's processes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::mounts;

/// What one node writes another one must see at once; a new connection replaces a lost one.
const OPTIONS: &str = "allow_other,reconnect,dir_cache=no,attr_timeout=0,entry_timeout=0,\
                       negative_timeout=0";

/// Mounts a server's directory, `ADDRESS:PORT/DIRECTORY`, unless a driver before us has.
///
/// # Errors
/// `server` is not of that form, sshfs is not installed, or the server does not answer.
pub fn mount(server: &str, at: &Path) -> anyhow::Result<()> {
    let parts = server.find('/').map(|at| server.split_at(at));
    let (address, dir) = parts.with_context(|| format!("{server} has no directory"))?;
    let parts = address.rsplit_once(':');
    let (host, port) = parts.with_context(|| format!("{server} has no port"))?;
    std::fs::create_dir_all(at).with_context(|| format!("cannot make {}", at.display()))?;
    if mounts::is_mount(at) {
        return Ok(());
    }
    let mut command = Command::new("sshfs");
    command.arg(format!("{host}:{dir}")).arg(at);
    command.args(["-o", &format!("directport={port},{OPTIONS}")]);
    let done = command.output().context("cannot run sshfs; it is in Debian's package sshfs")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "cannot mount {server} at {}: {said}", at.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_an_address_a_port_and_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        for (bad, why) in [("127.0.0.1:22", "no directory"), ("127.0.0.1/srv", "no port")] {
            let error = mount(bad, dir.path()).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
