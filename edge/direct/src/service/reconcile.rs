//! Brings runtime entries in line with the records when csi-edge starts.
//!
//! A lost entry is published again; an entry whose device became another volume's is removed.
//! Nothing is formatted and no driver is called: the kubelet's next call does that.

use std::path::Path;

use proto::csi::status::ToStatus;
use proto::host::chain;
use tracing::{info, warn};

use crate::lease::exclusive::Leases;
use crate::records::published;
use crate::records::published::{PublicationState, Published};
use crate::volume::attach;
use crate::volume::node::Node;
use crate::volume::verify::{DeviceMatch, verify};

/// Looks at each record once.
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
    for record in records {
        match record {
            Ok(record) => reconcile_volume(node, leases, &record).await,
            Err(error) => {
                warn!(error = chain(&error), "a volume that is handed over is not known");
            }
        }
    }
}

async fn reconcile_volume(node: &Node, leases: &Leases, record: &Published) {
    let driver = &record.driver;
    let volume = &record.volume_id;
    // An unfinished publication belongs to nobody, whatever its runtime was told before.
    let device = match record.state {
        PublicationState::Published => verify(node, record).await,
        PublicationState::Begun => DeviceMatch::Another,
    };
    match device {
        DeviceMatch::Same if leases.is_fenced(record) => {
            warn!(
                driver,
                volume, "was taken from this node, so its runtime is not told of it again"
            );
        }
        DeviceMatch::Same => match attach::show_again(node, record) {
            Ok(()) => info!(driver, volume, "is handed over directly"),
            Err(error) => {
                warn!(driver, volume, error = error.chain(), "not shown to its runtime");
            }
        },
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
    match node.root.remove(&record.target, driver, volume) {
        Ok(()) => {
            info!(driver, volume, "its device is not there; the next NodePublishVolume brings it")
        }
        Err(error) => {
            let error = chain(&error);
            warn!(
                driver,
                volume, error, "its device is not there, and the runtime is still told of it"
            );
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
    use crate::records::journal::{Content, Journal};
    use crate::records::published::tests::record;
    use proto::host::publish::{Existing, publish};

    #[test]
    fn only_what_was_never_whole_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        record("v").keep(dir.path()).unwrap();
        let journal = Journal::of(dir.path(), "d.example", "v");
        journal.write(Content::Ready { uuid: "u".into() }).unwrap();
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
