//! Tracks the containers that use a direct volume, read-only or not, and refuses to mix the two.
//!
//! Kata's runtime-rs adds `ro` to the device's mount for a container with `readOnly`. The agent of
//! a guest that has the device mounted otherwise answers EBUSY, and that container never starts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::api::{Container, Mount};
use super::guard::NotAdmitted;
use crate::records::published::Published;

/// The use of a volume by one container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    container: String,
    read_only: bool,
}

/// The containers that use volumes, by the volume's target and the container's name. A target is
/// one pod's.
#[derive(Clone, Debug, Default)]
pub struct Uses(Arc<Mutex<BTreeMap<PathBuf, BTreeMap<String, Use>>>>);

impl Uses {
    /// Notes a container that is about to be created in a sandbox of runtime-rs, with the volumes
    /// of its pod. Volumes that are published no more are forgotten.
    ///
    /// # Errors
    /// Another of its mounts, or a running container, uses a volume in the other way.
    pub fn admit(&self, container: &Container, published: &[Published]) -> Result<(), NotAdmitted> {
        let mut uses = self.0.lock();
        uses.retain(|target, _| published.iter().any(|volume| volume.target == *target));
        let wanted = wanted(container, published)?;
        for (volume, read_only) in &wanted {
            let others = uses.get(&volume.target).into_iter().flatten();
            let mut others = others.filter(|(name, _)| **name != container.name);
            if let Some((other, _)) = others.find(|(_, other)| other.read_only != *read_only) {
                return Err(mixed(volume, other));
            }
        }
        for (volume, read_only) in wanted {
            let this = Use { container: container.id.clone(), read_only };
            uses.entry(volume.target.clone()).or_default().insert(container.name.clone(), this);
        }
        Ok(())
    }

    /// Forgets a container that has ended: the guest has unmounted what it alone used.
    pub fn ended(&self, container: &str) {
        let mut uses = self.0.lock();
        for of_volume in uses.values_mut() {
            of_volume.retain(|_, there| there.container != container);
        }
    }
}

/// The volumes of a container; true if it only reads one.
fn wanted<'a>(
    container: &Container,
    published: &'a [Published],
) -> Result<Vec<(&'a Published, bool)>, NotAdmitted> {
    let mut wanted: Vec<(&Published, bool)> = Vec::new();
    for mount in &container.mounts {
        let source = Path::new(&mount.source);
        let is_at =
            |volume: &&Published| volume.target == source || volume.target_as_given == source;
        let Some(volume) = published.iter().find(is_at) else { continue };
        let read_only = is_read_only(mount) || volume.options.iter().any(|option| option == "ro");
        match wanted.iter().find(|(there, _)| there.target == volume.target) {
            Some((_, other)) if *other != read_only => return Err(mixed(volume, &container.name)),
            Some(_) => {}
            None => wanted.push((volume, read_only)),
        }
    }
    Ok(wanted)
}

fn is_read_only(mount: &Mount) -> bool {
    mount.options.iter().any(|option| option == "ro")
}

fn mixed(volume: &Published, other: &str) -> NotAdmitted {
    NotAdmitted::Mixed { volume: volume.volume_id.clone(), other: other.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::published::tests::record;

    fn container(name: &str, id: &str, modes: &[&str]) -> Container {
        let mount = |mode: &&str| Mount {
            source: "/pods/p/mount".into(),
            options: vec!["rbind".into(), (*mode).into()],
            ..Mount::default()
        };
        let mounts = modes.iter().map(mount).collect();
        Container { id: id.into(), name: name.into(), mounts, ..Container::default() }
    }

    #[test]
    fn containers_of_a_pod_use_a_volume_in_one_way() {
        let published = [record("v")];
        let uses = Uses::default();
        uses.admit(&container("init", "1", &["ro"]), &published).unwrap();
        let with = |other: &str| Err(mixed(&published[0], other));
        assert_eq!(uses.admit(&container("app", "2", &["rw"]), &published), with("init"));
        uses.ended("1");
        uses.admit(&container("app", "2", &["rw"]), &published).unwrap();
        uses.admit(&container("app", "3", &["rw"]), &published).unwrap();
        uses.admit(&container("beside", "4", &["rw"]), &published).unwrap();
        assert_eq!(uses.admit(&container("reads", "5", &["ro"]), &published), with("app"));
        // What ended was an earlier container of that name.
        uses.ended("2");
        assert_eq!(uses.admit(&container("reads", "5", &["ro"]), &published), with("app"));
        uses.admit(&container("other", "6", &["ro"]), &[]).unwrap();
        uses.admit(&container("reads", "5", &["ro"]), &published).unwrap();
    }

    #[test]
    fn one_container_uses_it_in_one_way_and_a_read_only_volume_has_one_way() {
        let mut volume = record("v");
        let both = container("app", "1", &["ro", "rw"]);
        let refused = Uses::default().admit(&both, std::slice::from_ref(&volume));
        assert_eq!(refused, Err(mixed(&volume, "app")));
        let twice = container("app", "1", &["ro", "ro"]);
        Uses::default().admit(&twice, std::slice::from_ref(&volume)).unwrap();
        volume.options.push("ro".into());
        Uses::default().admit(&both, &[volume]).unwrap();
    }
}
