//! Runs in a mount namespace of its own. The devices are mounted over the mount sources, so that
//! runc binds their file systems into the container. The container's namespace is a copy of this
//! one, which ends with `runc create`.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

use super::bundle::{BundleVolume, Container};
use super::call::Create;
use super::host::{ENTRIES, runc};
use super::machine;
use crate::agent::Group;

/// Mounts what a container has of direct volumes, and becomes runc.
///
/// # Errors
/// Something cannot be mounted.
pub(super) fn run(args: &[OsString], create: Option<&Create>) -> anyhow::Result<ExitCode> {
    let create = create.context("this is only for what creates a container")?;
    let mut container = Container::read(&create.bundle, Path::new(ENTRIES))?;
    machine::with_disks(&mut container, &create.id)?;
    for volume in container.volumes {
        mount(&volume)
            .with_context(|| format!("the direct volume at {}", volume.destination.display()))?;
    }
    runc(args)
}

fn mount(volume: &BundleVolume) -> anyhow::Result<()> {
    let BundleVolume { info, device, source, .. } = volume;
    let mut command = Command::new("mount");
    command.args(["-t", info.fstype.as_deref().unwrap_or_default()]);
    if !info.options.is_empty() {
        command.args(["-o", &info.options.join(",")]);
    }
    let done = command.arg(device).arg(source).output().context("cannot start mount")?;
    ensure!(done.status.success(), "mount: {}", String::from_utf8_lossy(&done.stderr).trim());
    let group = Group::of(&info.metadata)?;
    let is_read_only = info.options.iter().any(|option| option == "ro");
    let given = group.map_or(Ok(()), |group| group.gets(source, is_read_only));
    given.with_context(|| format!("{group:?}"))
}
