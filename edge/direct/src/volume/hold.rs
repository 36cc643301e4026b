//! Keeps a device from the runtimes while a guest that nobody looks after may have it.
//!
//! Kata's runtime-rs leaves its VM alive when its shim dies. The kubelet then makes a new sandbox
//! for the same pod without any call to csi-edge. So the entry must not name the device until a
//! whole look at the host's processes finds nobody who has it open. csi-edge ends no process.

use std::io;
use std::path::Path;

use proto::csi::direct::DeviceKind;
use proto::host::chain;
use tracing::{error, info};

use super::attach;
use super::node::Node;
use super::release;
use super::release::Absent;
use crate::device::host::DeviceError;
use crate::error::{Error, not_yet};
use crate::records::admitted;
use crate::records::journal::Journal;
use crate::records::published::{Custody, Published};
use crate::runtimes::sandbox;

/// The custody of a volume from the beginning of its NodeUnpublishVolume: the ids of the sandboxes
/// in its entry are kept, because the entry goes and the guest may run.
pub(crate) fn withdrawing(node: &Node, record: &Published) -> Custody {
    let mut custody = Custody { withdrawing: true, ..record.custody.clone() };
    for sandbox in in_entry(node, &record.target) {
        if !custody.sandboxes.contains(&sandbox) {
            custody.sandboxes.push(sandbox);
        }
    }
    custody
}

/// The sandboxes that the entry of a target names.
fn in_entry(node: &Node, target: &Path) -> Vec<String> {
    let recorded = node.root.entry(target).ok().and_then(|entry| sandbox::recorded(&entry).ok());
    recorded.unwrap_or_default().iter().map(ToString::to_string).collect()
}

/// Withholds a volume's device: first durably, then in its entry. The next check of its file system
/// reads all of it.
///
/// # Errors
/// The record or the entry cannot be written.
pub(crate) fn withhold(node: &Node, record: &Published, why: String) -> Result<(), Error> {
    let Published { volume_id: volume, driver, .. } = record;
    error!(driver, volume, why, "withheld: no guest gets its device until nobody has it open");
    let state = node.state(volume)?;
    let not_done = not_yet::<io::Error>(volume, "withheld");
    Journal::of(state, driver, volume).suspect().map_err(&not_done)?;
    let custody = Custody { withheld: Some(why), ..record.custody.clone() };
    let held = Published { custody, ..record.clone() };
    held.keep(state).map_err(&not_done)?;
    attach::show_again(node, &held)
}

/// Hands a withheld volume to its runtime again, if nobody has its device open.
///
/// # Errors
/// Somebody has it open, that is not known, or the record or the entry cannot be written.
pub(crate) async fn end(node: &Node, record: &Published) -> Result<(), Error> {
    let Published { volume_id: volume, driver, .. } = record;
    let released = release::check_released(node, record, Absent::Lost).await;
    released.map_err(not_yet(volume, "released"))?;
    let custody = Custody { withheld: None, ..record.custody.clone() };
    let free = Published { custody, ..record.clone() };
    free.keep(node.state(volume)?).map_err(not_yet::<io::Error>(volume, "released"))?;
    info!(driver, volume, "nobody has its device open any more: handed over again");
    attach::show_again(node, &free)
}

/// Why a volume is to be withheld when csi-edge starts: a guest has its device that no sandbox
/// accounts for, or this is not known. `None` if it need not be.
pub(crate) async fn reason_at_start(node: &Node, record: &Published) -> Option<String> {
    // Nobody knows who is connected to SPDK's socket.
    if record.kind == DeviceKind::Spdk || record.custody.withheld.is_some() {
        return None;
    }
    let is_known = !record.custody.sandboxes.is_empty()
        || !in_entry(node, &record.target).is_empty()
        || is_admitted(node, &record.target);
    let released = if is_known {
        release::check_released(node, record, Absent::Lost).await
    } else {
        // udev may have it open for a moment.
        release::wait_released(node, record, Absent::Lost).await
    };
    match released {
        Ok(()) => None,
        Err(DeviceError::Held { .. } | DeviceError::InUse(_) | DeviceError::Looped { .. })
            if is_known =>
        {
            None
        }
        Err(DeviceError::Held { process, .. }) => Some(format!(
            "process {process} has its device open, and no sandbox is recorded that it was given \
             to; {}",
            remedy(&process)
        )),
        Err(error) => Some(format!("{}; no sandbox is known to have it", chain(&error))),
    }
}

fn is_admitted(node: &Node, target: &Path) -> bool {
    let state = node.state.as_deref();
    state.is_some_and(|state| admitted::last(state, target).is_ok_and(|last| last.is_some()))
}

/// The next step about a process that keeps a device open, for an operator.
pub(crate) fn remedy(process: &str) -> String {
    let id = process.split(' ').next().unwrap_or_default();
    format!("if no pod's container runs in it, end it with `kill {id}`")
}

#[cfg(test)]
mod tests {
    use proto::host::publish::{Existing, publish};

    use super::*;
    use crate::device::host;
    use crate::device::host::Host;
    use crate::device::host::tests::{block_device, with_open};
    use crate::records::published;
    use crate::records::published::tests::record;
    use crate::runtimes::entry;
    use crate::runtimes::entry::EntryState;
    use crate::runtimes::mount_info::{DRIVER, FILE, Root, VOLUME};
    use crate::runtimes::prerequisites::Checks;
    use crate::runtimes::{PATIENCE, Roots, Runtimes, VolumeSandbox};

    /// A node whose process 12 has a volume's device open, and the volume.
    fn open() -> Option<(tempfile::TempDir, tempfile::TempDir, Node, Published)> {
        let device = block_device()?;
        let (proc, host) = with_open(&device);
        let dir = tempfile::tempdir().unwrap();
        let checks = Checks { root: dir.path().join("host"), required: false };
        let configuration = checks.root.join("etc/kata-containers/configuration.toml");
        std::fs::create_dir_all(configuration.parent().unwrap()).unwrap();
        let text = b"[hypervisor.qemu]\ndisable_block_device_use = false\n";
        publish(&configuration, text, 0o600, Existing::Keep).unwrap();
        let root = Root::new(dir.path().join("run/entries"));
        let node = Node::new(Some(dir.path().join("state")), host, root).with_checks(checks);
        let metadata = [(DRIVER, "d.example"), (VOLUME, "v")];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let number = host::number(&device).unwrap();
        let target = dir.path().canonicalize().unwrap().join("mount");
        let private_path = device.clone();
        let volume = Published { target, private_path, device, number, metadata, ..record("v") };
        volume.keep(node.state.as_deref().unwrap()).unwrap();
        attach::show_again(&node, &volume).unwrap();
        Some((dir, proc, node, volume))
    }

    fn kept(node: &Node) -> Published {
        published::all(node.state.as_deref().unwrap()).unwrap().pop().unwrap()
    }

    #[tokio::test]
    async fn what_is_withheld_names_no_device_until_nobody_has_it_open() {
        let Some((_dir, proc, node, volume)) = open() else { return };
        withhold(&node, &volume, "process 12 has it".into()).unwrap();
        let file = node.root.entry(&volume.target).unwrap().join(FILE);
        let text = || std::fs::read_to_string(&file).unwrap();
        let device = volume.device.to_str().unwrap();
        assert!(!text().contains(device) && text().contains("process 12 has it"), "{}", text());
        let is_same = || {
            let state = entry::compare(&node.root, &kept(&node));
            state.unwrap() == EntryState::Same
        };
        // As a repeated publication and a start have it.
        attach::show_again(&node, &kept(&node)).unwrap();
        assert!(is_same() && !text().contains(device));
        assert!(end(&node, &kept(&node)).await.is_err());
        assert!(is_same() && !text().contains(device));
        std::fs::remove_file(proc.path().join("12/fd/3")).unwrap();
        end(&node, &kept(&node)).await.unwrap();
        assert!(is_same() && text().contains(device));
        assert_eq!(kept(&node), volume);
    }

    #[tokio::test]
    async fn the_guest_of_a_volume_that_is_being_unpublished_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let entries = dir.path().join("run/entries");
        let kata_go = dir.path().join("sbs");
        let node = Node::new(None, Host::default(), Root::new(entries.clone()));
        let runtimes = Runtimes::new(Roots { entries, kata_go, ..Roots::default() }, PATIENCE);
        let metadata = [(DRIVER, "d.example"), (VOLUME, "v")];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let volume = Published { metadata, ..record("v") };
        entry::restore(&node.root, &volume).unwrap();
        std::fs::File::create(node.root.entry(&volume.target).unwrap().join("s-1")).unwrap();
        std::fs::create_dir_all(dir.path().join("sbs/s-1")).unwrap();
        let socket = dir.path().join("sbs/s-1/shim-monitor.sock");
        let _shim = std::os::unix::net::UnixListener::bind(socket).unwrap();
        let begun = Published { custody: withdrawing(&node, &volume), ..volume.clone() };
        node.root.remove(&volume.target, "d.example", "v").unwrap();
        let holder = runtimes.holder(&volume).await.unwrap();
        assert!(matches!(holder, VolumeSandbox::NotHandedOver));
        let holder = runtimes.holder(&begun).await.unwrap();
        assert!(matches!(holder, VolumeSandbox::Live { sandbox, .. } if sandbox.as_str() == "s-1"));
        // NodeUnpublishVolume again.
        assert_eq!(withdrawing(&node, &begun), begun.custody);
    }

    #[tokio::test(start_paused = true)]
    async fn at_a_start_an_open_device_needs_a_sandbox_that_it_was_given_to() {
        let Some((_dir, proc, node, volume)) = open() else { return };
        let why = reason_at_start(&node, &volume).await.unwrap();
        assert!(why.contains("process 12") && why.contains("`kill 12`"), "{why}");
        let state = node.state.as_deref().unwrap();
        admitted::keep(state, &volume.target, "s-1").unwrap();
        assert_eq!(reason_at_start(&node, &volume).await, None);
        admitted::forget(state, &volume.target).unwrap();
        let sandbox = node.root.entry(&volume.target).unwrap().join("s-2");
        std::fs::File::create(&sandbox).unwrap();
        assert_eq!(reason_at_start(&node, &volume).await, None);
        // While it is unpublished, the record has the ids.
        let custody = withdrawing(&node, &volume);
        assert_eq!(custody.sandboxes, ["s-2"]);
        std::fs::remove_file(&sandbox).unwrap();
        let begun = Published { custody, ..volume.clone() };
        assert_eq!(reason_at_start(&node, &begun).await, None);
        // Nobody knows who has it.
        std::fs::remove_dir_all(proc.path().join("12/fd")).unwrap();
        std::fs::File::create(proc.path().join("12/fd")).unwrap();
        let why = reason_at_start(&node, &begun).await.unwrap();
        assert!(why.contains("it is not known who has a device open"), "{why}");
        std::fs::remove_dir_all(proc.path().join("12")).unwrap();
        assert_eq!(reason_at_start(&node, &volume).await, None);
    }
}
