//! What is handed over, looked at when csi-edge starts: what the runtime was told is there again after it was lost,
//! and is gone where a device has become another's.
//!
//! Nothing is formatted, and the driver is not asked, here: that is for the kubelet's next call.

use std::path::Path;

use tracing::{info, warn};

use super::Direct;
use super::published;
use super::published::{Published, State};
use super::standing::Standing;

impl Direct {
    /// Looks at each record once.
    pub async fn reconcile(&self) {
        let Some(state) = &self.state else { return };
        tidy(&state.join("direct"));
        self.root.tidy();
        let records = match published::each(state) {
            Ok(records) => records,
            Err(error) => {
                let error = proto::error::chain(&error);
                warn!(error, "it is not known what is handed over directly; no such volume is touched");
                return;
            }
        };
        for record in records {
            match record {
                Ok(record) => self.look_at(&record).await,
                Err(error) => {
                    warn!(error = proto::error::chain(&error), "a volume that is handed over is not known");
                }
            }
        }
    }

    async fn look_at(&self, record: &Published) {
        let (driver, volume) = (&record.driver, &record.volume_id);
        // What was only begun is nobody's, whatever was told of it before.
        let standing = match record.state {
            State::Published => self.standing(record).await,
            State::Begun => Standing::Another,
        };
        match standing {
            Standing::Same if self.is_fenced(record) => {
                warn!(driver, volume, "was taken from this node, so its runtime is not told of it again");
            }
            Standing::Same => match self.show(record) {
                Ok(()) => info!(driver, volume, "is handed over directly"),
                Err(error) => warn!(driver, volume, error = error.chain(), "not shown to its runtime"),
            },
            // Its guest may well run, and would find an empty directory when it starts its container again.
            Standing::Unknown(why) => {
                let error = proto::error::chain(why.as_ref());
                warn!(driver, volume, error, "it is not known whether its device is still its own");
            }
            Standing::Another => self.tell_no_more(record),
        }
    }

    /// A runtime that started a container now would give it somebody else's device.
    fn tell_no_more(&self, record: &Published) {
        let (driver, volume) = (&record.driver, &record.volume_id);
        match self.root.remove(&record.target, driver, volume) {
            Ok(()) => info!(driver, volume, "its device is not there; the next NodePublishVolume brings it"),
            Err(error) => {
                let error = proto::error::chain(&error);
                warn!(driver, volume, error, "its device is not there, and the runtime is still told of it");
            }
        }
    }
}

/// Removes what was being written when csi-edge, or the power, went: it has no name yet that anybody reads.
fn tidy(directory: &Path) {
    let below = ["published", "volumes", "owners"].map(|name| std::fs::read_dir(directory.join(name)));
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
    use super::super::journal::{Content, Journal};
    use super::super::published::tests::record;
    use super::*;
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
