//! Runs in a mount namespace of its own. The devices are mounted over the mount sources, so that
//! runc binds their file systems into the container. The container's namespace is a copy of this
//! one, which ends with `runc create`.

use std::ffi::OsString;
use std::fs::{Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

use super::bundle::{Container, Volume};
use super::call::Create;
use super::host::{ENTRIES, runc};

/// The permissions that a group gets on files and on directories.
const FILES: u32 = 0o660;
const DIRECTORIES: u32 = 0o2770;

/// Mounts what a container has of direct volumes, and becomes runc.
///
/// # Errors
/// Something cannot be mounted.
pub(super) fn run(args: &[OsString], create: Option<&Create>) -> anyhow::Result<ExitCode> {
    let create = create.context("this is only for what creates a container")?;
    for volume in Container::read(&create.bundle, Path::new(ENTRIES))?.volumes {
        mount(&volume)
            .with_context(|| format!("the direct volume at {}", volume.destination.display()))?;
    }
    runc(args)
}

fn mount(volume: &Volume) -> anyhow::Result<()> {
    let Volume { info, device, source, .. } = volume;
    let mut command = Command::new("mount");
    command.args(["-t", info.fstype.as_deref().unwrap_or_default()]);
    if !info.options.is_empty() {
        command.args(["-o", &info.options.join(",")]);
    }
    let done = command.arg(device).arg(source).output().context("cannot start mount")?;
    ensure!(done.status.success(), "mount: {}", String::from_utf8_lossy(&done.stderr).trim());
    let Some(group) = info.metadata.get("fsGroup") else { return Ok(()) };
    let group = group.parse().with_context(|| format!("fsGroup {group}"))?;
    let policy = info.metadata.get("fsGroupChangePolicy").map(String::as_str);
    let root = std::fs::metadata(source)?;
    if policy == Some("OnRootMismatch")
        && root.gid() == group
        && given(&root) == root.permissions().mode()
    {
        return Ok(());
    }
    give(source, group).with_context(|| format!("fsGroup {group}"))
}

/// The mode of a file that its group may use.
fn given(meta: &Metadata) -> u32 {
    meta.permissions().mode() | if meta.is_dir() { DIRECTORIES } else { FILES }
}

/// Gives a group all that is here, as Kata's agent does.
fn give(path: &Path, group: u32) -> std::io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    lchown(path, None, Some(group))?;
    if meta.is_symlink() {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(given(&meta)))?;
    if meta.is_dir() {
        for entry in std::fs::read_dir(path)? {
            give(&entry?.path(), group)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_gets_all_that_is_in_a_directory_and_nothing_beyond_it() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let beyond = tempfile::NamedTempFile::new()?;
        std::fs::create_dir(dir.path().join("below"))?;
        std::fs::File::create(dir.path().join("below/file"))?
            .set_permissions(Permissions::from_mode(0o600))?;
        std::os::unix::fs::symlink(beyond.path(), dir.path().join("link"))?;
        let before = beyond.path().metadata()?.permissions().mode();
        // The caller's own group, because another group needs root.
        let group = rustix::process::getegid().as_raw();
        give(dir.path(), group)?;
        let mode = |name: &str| {
            dir.path().join(name).metadata().map(|meta| meta.permissions().mode() & 0o7777)
        };
        assert_eq!((mode("below")? & DIRECTORIES, mode("below/file")?), (DIRECTORIES, FILES));
        assert_eq!(beyond.path().metadata()?.permissions().mode(), before);
        Ok(())
    }
}
