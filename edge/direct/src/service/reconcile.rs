//! Brings runtime entries in line with the records when csi-edge starts.
//!
//! A lost entry is published again; an entry whose device became another volume's is removed.
//! Nothing is formatted and no driver is called: the kubelet's next call does that.

use std::path::Path;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use proto::csi::status::ToStatus;
use proto::host::chain;
use tracing::{info, warn};

use crate::lease::exclusive::Leases;
use crate::records::admitted;
use crate::records::published;
use crate::records::published::{PublicationState, Published};
use crate::volume::attach;
use crate::volume::hold;
use crate::volume::node::Node;
use crate::volume::verify::{DeviceMatch, verify};

/// The time limit for a look at one device, which may hang and never answer. csi-edge serves
/// nothing until all looks have ended.
const LOOK: Duration = Duration::from_secs(10);
/// The number of devices looked at at the same time.
const AT_ONCE: usize = 16;

/// Looks at each record once. What cannot be found out in time is left as it is.
pub(crate) async fn reconcile(node: &Node, leases: &Leases) {
    let Some(state) = &node.state else { return };
    tidy(&state.join("direct"));
    node.root.tidy();
    let records = match published::each(state) {
        Ok(records) => records,
        Err(error) => {
            let error = chain(&error);
            warn!(error, "it is not known what is handed over directly; no such volume is touched");
            return;
        }
    };
    // The sandbox of a record that cannot be read stays.
    let targets = records.iter().map(|record| record.as_ref().map(|it| it.target.as_path()));
    if let Ok(targets) = targets.collect::<Result<Vec<_>, _>>()
        && let Err(error) = admitted::tidy(state, &targets)
    {
        warn!(%error, "sandboxes of unpublished volumes are left in direct/admitted");
    }
    let looked = stream::iter(records).for_each_concurrent(AT_ONCE, |record| async {
        match record {
            Ok(record) => reconcile_volume(node, leases, &record).await,
            Err(error) => {
                warn!(error = chain(&error), "a volume that is handed over is not known");
            }
        }
    });
    looked.await;
}

async fn reconcile_volume(node: &Node, leases: &Leases, record: &Published) {
    let driver = &record.driver;
    let volume = &record.volume_id;
    // An unfinished publication belongs to nobody, whatever its runtime was told before. Neither
    // does one that is being taken back.
    let device = match record.state {
        PublicationState::Published if !record.unpublishing && !record.custody.withdrawing => {
            let late = |_| DeviceMatch::Unknown("its device does not answer".into());
            tokio::time::timeout(LOOK, verify(node, record)).await.unwrap_or_else(late)
        }
        PublicationState::Published | PublicationState::Begun => DeviceMatch::Another,
    };
    match device {
        DeviceMatch::Same if leases.is_fenced(record) => {
            warn!(
                driver,
                volume, "was taken from this node, so its runtime is not told of it again"
            );
        }
        DeviceMatch::Same => {
            let reason = tokio::time::timeout(LOOK, hold::reason_at_start(node, record)).await;
            let late = "it is not known who has its device open: no answer in time";
            let shown = match reason.unwrap_or_else(|_| Some(late.to_owned())) {
                Some(why) => hold::withhold(node, record, why),
                None => attach::show_again(node, record),
            };
            match shown {
                Ok(()) => info!(driver, volume, "is handed over directly"),
                Err(error) => {
                    warn!(driver, volume, error = error.chain(), "not shown to its runtime");
                }
            }
        }
        // Its guest may well run. Without the entry it would get the host's directory when it
        // restarts its container.
        DeviceMatch::Unknown(why) => {
            let error = chain(why.as_ref());
            warn!(driver, volume, error, "it is not known whether its device is still its own");
        }
        DeviceMatch::Another => remove_entry(node, record),
    }
}

/// Keeps a runtime from starting a container with another volume's device.
fn remove_entry(node: &Node, record: &Published) {
    let driver = &record.driver;
    let volume = &record.volume_id;
    let why = if record.unpublishing {
        "its driver was asked to take it back"
    } else if record.custody.withdrawing {
        "it is being unpublished"
    } else {
        "its device is not there"
    };
    match node.root.remove(&record.target, driver, volume) {
        Ok(()) => info!(driver, volume, why, "not handed over; the next NodePublishVolume does it"),
        Err(error) => {
            let error = chain(&error);
            warn!(driver, volume, why, error, "its runtime is still told of it");
        }
    }
}

/// Removes files whose writing a crash or a power cut interrupted; nobody reads them yet.
fn tidy(directory: &Path) {
    let below = ["published", "volumes", "owners"];
    let below = below.map(|name| std::fs::read_dir(directory.join(name)));
    for entry in below.into_iter().flatten().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(".new") {
            // The next start tries again.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::host::tests::{Hanging, with_open};
    use crate::records::journal::{Content, Journal};
    use crate::records::published::Custody;
    use crate::records::published::tests::record;
    use crate::runtimes::Roots;
    use crate::runtimes::mount_info::MountInfo;
    use crate::service::direct::tests::{checked, service, service_of};
    use crate::service::direct::{Cloud, Settings};
    use futures_util::FutureExt;
    use proto::csi::direct::DeviceKind;
    use proto::host::publish::{Existing, publish};
    use std::fs::File;

    #[tokio::test(start_paused = true)]
    async fn devices_that_hang_are_left_as_they_are_and_keep_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("device");
        let _hanging = Hanging::at(&device);
        let settings = Settings { state: Some(dir.path().join("state")), ..Settings::default() };
        let roots = Roots { entries: dir.path().join("entries"), ..Roots::default() };
        let service = service_of(Settings { roots, ..settings }, Cloud::default());
        let node = &service.node;
        let names = ["v", "w", "x"];
        for name in names {
            let boot = node.host.boot();
            let device = device.clone();
            let target = dir.path().join(name);
            let volume = Published { boot, device, target, ..record(name) };
            volume.keep(node.state.as_deref().unwrap()).unwrap();
            node.root.publish(&volume.target, &MountInfo::of(&volume)).unwrap();
        }
        let mut reconciled = std::pin::pin!(reconcile(node, &service.leases));
        assert!(reconciled.as_mut().now_or_never().is_none());
        tokio::time::advance(LOOK).await;
        assert!(reconciled.as_mut().now_or_never().is_some(), "all at the same time");
        let entries = std::fs::read_dir(dir.path().join("entries")).unwrap().count();
        assert_eq!(entries, names.len());
    }

    #[tokio::test]
    async fn what_a_driver_was_asked_to_take_back_is_shown_to_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (_proc, host) = with_open(&root);
        let service = service_of(checked(&root, host), Cloud::default());
        let node = &service.node;
        let target = root.join("mount");
        let entry = node.root.entry(&target).unwrap();
        let device = root.join("socket");
        File::create(&device).unwrap();
        let kind = DeviceKind::Spdk;
        let volume = Published { target, device, kind, ..record("v") };
        for (unpublishing, withdrawing) in [(true, false), (false, true), (false, false)] {
            let custody = Custody { withdrawing, ..Custody::default() };
            let volume = Published { unpublishing, custody, ..volume.clone() };
            volume.keep(node.state.as_deref().unwrap()).unwrap();
            reconcile(node, &service.leases).await;
            assert_eq!(entry.exists(), !unpublishing && !withdrawing);
            let kept = published::all(node.state.as_deref().unwrap()).unwrap();
            assert_eq!(kept, [volume]);
        }
    }

    #[tokio::test]
    async fn at_a_start_sandboxes_without_a_record_are_forgotten_unless_one_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(&dir);
        record("v").keep(dir.path()).unwrap();
        let gone = Path::new("/pods/gone/mount");
        let damaged = dir.path().join("direct/published/damaged.json");
        publish(&damaged, b"{", 0o600, Existing::Keep).unwrap();
        let admitted = |target: &Path| admitted::last(dir.path(), target).unwrap().is_some();
        for target in [&record("v").target, gone] {
            admitted::keep(dir.path(), target, "s-1").unwrap();
        }
        reconcile(&service.node, &service.leases).await;
        assert!(admitted(gone), "it may be the damaged record's");
        std::fs::remove_file(&damaged).unwrap();
        reconcile(&service.node, &service.leases).await;
        assert!(!admitted(gone) && admitted(&record("v").target));
    }

    #[test]
    fn only_what_was_never_whole_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        record("v").keep(dir.path()).unwrap();
        let journal = Journal::of(dir.path(), "d.example", "v");
        journal.write(Content::Ready { uuid: "u".into(), suspect: false }).unwrap();
        let direct = dir.path().join("direct");
        for name in ["published/.a.new", "volumes/.b.new"] {
            publish(&direct.join(name), b"{", 0o600, Existing::Keep).unwrap();
        }
        tidy(&direct);
        assert_eq!(published::all(dir.path()).unwrap().len(), 1);
        assert!(journal.read().unwrap().is_some());
        for name in ["published", "volumes"] {
            assert_eq!(std::fs::read_dir(direct.join(name)).unwrap().count(), 1);
        }
        tidy(Path::new("/does/not/exist"));
    }
}
