//! Admits one sandbox to a direct volume, and another one only when nobody has the device.
//!
//! Kata's runtime-rs leaves its VM alive when its shim dies, and the kubelet makes a new sandbox
//! for the same pod. What is not known is a refusal.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use proto::csi::direct::DeviceKind;
use proto::host::chain;
use rustix::fs::FileType;

use crate::device::host::Host;
use crate::records::admitted;
use crate::records::published::Published;
use crate::runtimes::sandbox::Sandbox;

/// Admits a sandbox to a volume, durably.
///
/// # Errors
/// Why it does not get the volume, after the words "the direct volume at TARGET".
pub(super) fn admit(
    host: &Host,
    state: &Path,
    volume: &Published,
    sandbox: &Sandbox,
) -> Result<(), String> {
    let last = admitted::last(state, &volume.target);
    let last = last.map_err(|error| format!("has a sandbox that is not known: {error}"))?;
    match last {
        Some(last) if last == sandbox.as_str() => return Ok(()),
        Some(last) if volume.kind == DeviceKind::Spdk => {
            return Err(format!(
                "was given to sandbox {last}, and nobody knows who is connected to an SPDK \
                 socket; delete the pod"
            ));
        }
        _ => is_closed(host, volume)?,
    }
    admitted::keep(state, &volume.target, sandbox.as_str())
        .map_err(|error| format!("cannot have its sandbox recorded: {error}"))
}

/// Notes a sandbox that runs already, as when the plugin comes later. One that was admitted before
/// stays.
pub(super) fn note(state: &Path, volume: &Published, sandbox: &str) -> io::Result<()> {
    match admitted::last(state, &volume.target)? {
        Some(_) => Ok(()),
        None => admitted::keep(state, &volume.target, sandbox),
    }
}

fn is_closed(host: &Host, volume: &Published) -> Result<(), String> {
    let device = &volume.device;
    let closed = match volume.kind {
        DeviceKind::Block => host.is_closed(FileType::BlockDevice, volume.number, device),
        DeviceKind::Vfio => match std::fs::metadata(device) {
            Ok(meta) => host.is_closed(FileType::CharacterDevice, meta.rdev(), device),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => return Err(format!("has a device that cannot be looked at: {error}")),
        },
        DeviceKind::Spdk => Ok(()),
    };
    closed.map_err(|error| {
        format!(
            "may be with another VM: {}; `csi-edge direct list` says which and what ends it",
            chain(&error)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::host;
    use crate::device::host::tests::{block_device, with_open};
    use crate::records::published::tests::record;

    #[test]
    fn a_second_sandbox_is_admitted_when_nobody_has_the_device() {
        let Some(device) = block_device() else { return };
        let (proc, host) = with_open(&device);
        let dir = tempfile::tempdir().unwrap();
        let number = host::number(&device).unwrap();
        let volume = Published { device, number, ..record("v") };
        let admit =
            |sandbox: &str| admit(&host, dir.path(), &volume, &Sandbox::parse(sandbox).unwrap());
        let open = proc.path().join("12/fd/3");
        let closed = proc.path().join("closed");
        // The plugin was away when the first one came.
        assert!(admit("s-1").unwrap_err().contains("is open in process 12"));
        note(dir.path(), &volume, "s-1").unwrap();
        admit("s-1").unwrap();
        assert!(admit("s-2").unwrap_err().contains("is open in process 12"));
        std::fs::rename(&open, &closed).unwrap();
        admit("s-2").unwrap();
        std::fs::rename(&closed, &open).unwrap();
        note(dir.path(), &volume, "s-1").unwrap();
        admit("s-2").unwrap();
        assert!(admit("s-1").is_err());
        // A process that cannot be looked at may have it.
        std::fs::remove_dir_all(proc.path().join("12/fd")).unwrap();
        std::fs::File::create(proc.path().join("12/fd")).unwrap();
        assert!(admit("s-1").unwrap_err().contains("not known"));
    }

    #[test]
    fn a_socket_is_one_sandboxs_until_it_is_unpublished() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host { proc: dir.path().join("nowhere"), ..Host::default() };
        let volume = Published { kind: DeviceKind::Spdk, ..record("v") };
        let admit =
            |sandbox: &str| admit(&host, dir.path(), &volume, &Sandbox::parse(sandbox).unwrap());
        admit("s-1").unwrap();
        admit("s-1").unwrap();
        assert!(admit("s-2").unwrap_err().contains("s-1"));
        volume.forget(dir.path()).unwrap();
        admit("s-2").unwrap();
    }
}
