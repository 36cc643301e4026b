//! Tracks the live container that has a direct volume, and refuses a second one.
//!
//! Kata's runtime-rs attaches a device once, and forgets it when one of the containers that have it
//! ends. The next start of that container attaches the device again, and one file system is mounted
//! twice, writable.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::api::Container;
use super::guard::NotAdmitted;
use crate::records::published::Published;

/// The container that has a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    id: String,
    name: String,
}

/// The containers that have volumes, by the volume's target, which is one pod's.
#[derive(Clone, Debug, Default)]
pub struct Uses(Arc<Mutex<BTreeMap<PathBuf, Use>>>);

impl Uses {
    /// Notes a container that is about to be created in a sandbox of runtime-rs, with all volumes
    /// of the node. An earlier run of the same container does not count. Volumes that are published
    /// no more are forgotten.
    ///
    /// # Errors
    /// It mounts a volume twice, or another live container has one.
    pub fn admit(&self, container: &Container, published: &[Published]) -> Result<(), NotAdmitted> {
        let mut uses = self.0.lock();
        uses.retain(|target, _| published.iter().any(|volume| volume.target == *target));
        let mut wanted: Vec<&Published> = Vec::new();
        for mount in &container.mounts {
            let source = Path::new(&mount.source);
            let is_at =
                |volume: &&Published| volume.target == source || volume.target_as_given == source;
            let Some(volume) = published.iter().find(is_at) else { continue };
            let id = volume.volume_id.clone();
            if wanted.iter().any(|there| there.target == volume.target) {
                return Err(NotAdmitted::Twice { volume: id });
            }
            match uses.get(&volume.target) {
                Some(other) if other.name != container.name => {
                    return Err(NotAdmitted::Shared { volume: id, other: other.name.clone() });
                }
                _ => wanted.push(volume),
            }
        }
        for volume in wanted {
            let this = Use { id: container.id.clone(), name: container.name.clone() };
            uses.insert(volume.target.clone(), this);
        }
        Ok(())
    }

    /// Forgets a container that has ended, or was not made: the guest has unmounted its volumes.
    pub fn ended(&self, container: &str) {
        self.0.lock().retain(|_, there| there.id != container);
    }

    /// Forgets all containers, because a runtime is about to say which ones run.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nri::api::Mount;
    use crate::records::published::tests::record;

    fn container(name: &str, id: &str, mounts: usize) -> Container {
        let mount = Mount { source: "/pods/p/mount".into(), ..Mount::default() };
        let mounts = vec![mount; mounts];
        Container { id: id.into(), name: name.into(), mounts, ..Container::default() }
    }

    #[test]
    fn one_live_container_has_a_volume() {
        let published = [record("v")];
        let uses = Uses::default();
        let admit = |name: &str, id: &str| uses.admit(&container(name, id, 1), &published);
        let by =
            |other: &str| Err(NotAdmitted::Shared { volume: "v".into(), other: other.to_owned() });
        admit("init", "1").unwrap();
        assert_eq!(admit("app", "2"), by("init"));
        uses.ended("1");
        admit("app", "2").unwrap();
        // Its own earlier run.
        admit("app", "3").unwrap();
        assert_eq!(admit("sidecar", "4"), by("app"));
        // What ended was the earlier one.
        uses.ended("2");
        assert_eq!(admit("debugger", "5"), by("app"));
        uses.admit(&container("beside", "6", 0), &published).unwrap();
        uses.ended("3");
        admit("sidecar", "7").unwrap();
        uses.clear();
        admit("app", "8").unwrap();
        uses.admit(&container("other", "9", 1), &[]).unwrap();
        admit("sidecar", "10").unwrap();
    }

    #[test]
    fn a_container_mounts_a_volume_once() {
        let twice = Uses::default().admit(&container("app", "1", 2), &[record("v")]);
        assert_eq!(twice, Err(NotAdmitted::Twice { volume: "v".into() }));
    }
}
