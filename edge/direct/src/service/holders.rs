//! Looks at intervals who has the devices of direct volumes open, and withholds those that a guest
//! without a sandbox has, or two guests.
//!
//! It is later than a kubelet's first restart of a pod: ext4's own protection and the NRI plugin
//! are what refuse a second guest. This is what tells of the first one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proto::csi::direct::DeviceKind;
use proto::csi::status::ToStatus;
use proto::host::chain;
use proto::names::DriverName;
use tracing::{debug, warn};

use super::state::Service;
use crate::records::published;
use crate::records::published::{PublicationState, Published};
use crate::runtimes::VolumeSandbox;
use crate::volume::hold;

/// The processes that had a device open, by their ids.
type Processes = BTreeMap<u32, String>;

/// The processes that had a volume's device open at the last look, by the volume's target.
#[derive(Default)]
pub(super) struct LastLook(BTreeMap<PathBuf, Processes>);

/// Looks once. A process that has a device open for a moment, such as udev, does not count: it has
/// to be there twice.
pub(super) async fn look(service: &Service, last: &mut LastLook) {
    let Some(state) = &service.node.state else { return };
    let records = published::each(state).unwrap_or_default();
    let mut records: Vec<_> = records.into_iter().flatten().filter(is_handed_over).collect();
    records.retain(|record| service.node.host.is_boot(&record.boot));
    if records.is_empty() {
        last.0.clear();
        return;
    }
    let host = service.node.host.clone();
    let seen = match tokio::task::spawn_blocking(move || host.holders()).await {
        Ok(Ok(seen)) => seen,
        Ok(Err(error)) => {
            debug!(error = chain(&error), "it is not known who has devices open");
            return;
        }
        Err(_) => return,
    };
    let before = std::mem::take(&mut last.0);
    for record in records {
        let now = seen.get(&record.number).cloned().unwrap_or_default();
        let was = before.get(&record.target);
        let mut both = now.clone();
        both.retain(|id, name| was.is_some_and(|was| was.get(id) == Some(name)));
        last.0.insert(record.target.clone(), now);
        settle(service, &record, &both).await;
    }
}

/// True if a runtime is told of a block device.
fn is_handed_over(record: &Published) -> bool {
    record.kind == DeviceKind::Block
        && record.state == PublicationState::Published
        && !record.unpublishing
        && !record.custody.withdrawing
}

/// Withholds a volume, or ends that, by the processes that have its device open.
async fn settle(service: &Service, record: &Published, processes: &Processes) {
    let why = match &record.custody.withheld {
        Some(_) => None,
        None => reason(service, record, processes).await,
    };
    if why.is_none() && record.custody.withheld.is_none() {
        return;
    }
    let Ok(driver) = record.driver.parse::<DriverName>() else { return };
    // A running operation changes the record.
    let locked = service.locks.try_lock(&driver, &record.volume_id, "looking who has it");
    let Ok(_lock) = locked else { return };
    let Some(state) = &service.node.state else { return };
    let there = published::of(state, &record.driver, &record.volume_id).unwrap_or_default();
    if !there.contains(record) || service.leases.is_fenced(record) {
        return;
    }
    let volume = &record.volume_id;
    match why {
        Some(why) => {
            if let Err(error) = hold::withhold(&service.node, record, why) {
                warn!(%driver, volume, error = error.chain(), "not withheld yet");
            }
        }
        None => {
            if let Err(error) = hold::end(&service.node, record).await {
                debug!(%driver, volume, error = error.chain(), "still withheld");
            }
        }
    }
}

/// Why a volume is to be withheld, if it is.
async fn reason(service: &Service, record: &Published, processes: &Processes) -> Option<String> {
    let mut names = processes.values();
    let (first, second) = (names.next()?, names.next());
    if let Some(second) = second {
        return Some(format!(
            "processes {first} and {second} have its device open at once; {}, and delete the pod",
            hold::remedy(second)
        ));
    }
    match service.runtimes.holder(record).await {
        // A runtime that records no sandbox, such as runtime-rs without the NRI plugin, is not
        // known to have gone.
        Ok(VolumeSandbox::Nobody { stale }) if !stale.is_empty() => Some(format!(
            "process {first} has its device open, and no sandbox that it was given to is alive \
             ({}): it is a VM whose shim has ended; {}",
            stale.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            hold::remedy(first)
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::device::host;
    use crate::device::host::tests::{block_device, with_open};
    use crate::records::published::tests::record;
    use crate::service::direct::Cloud;
    use crate::service::direct::tests::{checked, service_of};
    use crate::volume::attach;

    #[tokio::test]
    async fn a_device_that_two_guests_have_or_one_without_a_shim_is_withheld() {
        let Some(device) = block_device() else { return };
        let (proc, host) = with_open(&device);
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let service = service_of(checked(&root, host), Cloud::default());
        let state = service.node.state.clone().unwrap();
        let number = host::number(&device).unwrap();
        let target = root.join("mount");
        let private_path = device.clone();
        let volume = Published { target, private_path, device, number, ..record("v") };
        volume.keep(&state).unwrap();
        attach::show_again(&service.node, &volume).unwrap();
        let withheld = || published::all(&state).unwrap().pop().unwrap().custody.withheld;
        let mut last = LastLook::default();
        let mut looks = async || {
            for _ in 0..2 {
                look(&service, &mut last).await;
            }
            withheld()
        };
        assert_eq!(looks().await, None, "no sandbox is recorded, as of runtime-rs");
        File::create(service.node.root.entry(&volume.target).unwrap().join("s-1")).unwrap();
        let why = looks().await.unwrap();
        assert!(why.contains("process 12 ()") && why.contains("(s-1)"), "{why}");
        assert!(why.contains("`kill 12`"), "{why}");
        assert_eq!(looks().await, Some(why), "it ends when nobody has the device open");
        let open = proc.path().join("12/fd/3");
        let closed = proc.path().join("closed");
        std::fs::rename(&open, &closed).unwrap();
        assert_eq!(looks().await, None);
        // Two that have it for longer than a moment.
        std::fs::rename(&closed, &open).unwrap();
        std::fs::remove_file(service.node.root.entry(&volume.target).unwrap().join("s-1")).unwrap();
        std::fs::create_dir_all(proc.path().join("13/fd")).unwrap();
        symlink(&volume.device, proc.path().join("13/fd/7")).unwrap();
        look(&service, &mut last).await;
        assert_eq!(withheld(), None);
        look(&service, &mut last).await;
        let why = withheld().unwrap();
        assert!(why.contains("processes 12 () and 13 ()"), "{why}");
    }
}
