//! The volumes that a kubelet has mounted by itself, from its own notes and the mount table.
//!
//! It looks beside the volumes and never into one, so a volume that hangs holds nobody. What is
//! read is bounded, and a damaged note hides no other volume.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use proto::host::files;
use proto::host::mountinfo::{Propagation, mount};
use serde::Deserialize;

/// The most directories that are read.
const MOST: usize = 10_000;
/// Where a pod's directory has its volumes of CSI drivers.
const VOLUMES: &str = "volumes/kubernetes.io~csi";
/// The kubelet's note of a volume.
const NOTE: &str = "vol_data.json";
/// Where the volume is mounted, beside the note.
const MOUNT: &str = "mount";

/// A volume in a pod's directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OrdinaryVolume {
    /// The uid of its pod; empty if it is not known.
    pub(super) pod_uid: String,
    /// Its driver's name and its id, or why they are not known.
    pub(super) note: Result<Note, String>,
    /// Where a pod has it.
    pub(super) target: PathBuf,
    /// Whether it is mounted there; none if that cannot be seen.
    pub(super) is_mounted: Option<bool>,
}

/// What the kubelet noted of a volume.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Note {
    /// Its driver's name.
    #[serde(rename = "driverName")]
    pub(super) driver: String,
    /// Its id.
    #[serde(rename = "volumeHandle")]
    pub(super) volume: String,
}

/// The volumes below these directories of kubelets, by the text of `/proc/self/mountinfo`.
pub(super) fn all(kubelets: &[PathBuf], mountinfo: &str) -> Vec<OrdinaryVolume> {
    looked_at(kubelets, mountinfo, MOST)
}

fn looked_at(kubelets: &[PathBuf], mountinfo: &str, most: usize) -> Vec<OrdinaryVolume> {
    let mounts = Mounts::read(mountinfo);
    let mut look = Look { mounts, volumes: Vec::new(), left: most };
    for kubelet in kubelets {
        // The mount table has no symlinks.
        let kubelet = kubelet.canonicalize().unwrap_or_else(|_| kubelet.clone());
        look.kubelet(&kubelet);
    }
    look.volumes
}

/// What was found, and how many directories may still be read.
struct Look {
    mounts: Mounts,
    volumes: Vec<OrdinaryVolume>,
    left: usize,
}

impl Look {
    fn kubelet(&mut self, kubelet: &Path) {
        for pod in self.directories("", &kubelet.join("pods")) {
            let uid = pod.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for volume in self.directories(&uid, &pod.join(VOLUMES)) {
                self.volume(&uid, &volume);
            }
        }
    }

    fn volume(&mut self, pod_uid: &str, directory: &Path) {
        let note = files::read(&directory.join(NOTE)).map_err(|error| error.to_string());
        let note = note.and_then(|text| {
            serde_json::from_slice(&text).map_err(|error| format!("it is damaged: {error}"))
        });
        let target = directory.join(MOUNT);
        self.volumes.push(OrdinaryVolume {
            pod_uid: pod_uid.to_owned(),
            note: note.map_err(|why| format!("the kubelet's {NOTE} cannot be used: {why}")),
            is_mounted: self.mounts.has(&target),
            target,
        });
    }

    /// The directories in a directory, in order; none if it is not there. What cannot be read is
    /// shown in their place.
    fn directories(&mut self, pod_uid: &str, directory: &Path) -> Vec<PathBuf> {
        let Some(left) = self.left.checked_sub(1) else { return Vec::new() };
        self.left = left;
        let mut found = Vec::new();
        let read = std::fs::read_dir(directory).and_then(|entries| {
            for entry in entries {
                let entry = entry?;
                if !entry.file_type()?.is_dir() {
                    continue;
                }
                if found.len() >= self.left {
                    return Err(io::Error::other(format!("more than {MOST} directories")));
                }
                found.push(entry.path());
            }
            Ok(())
        });
        match read {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.volumes.push(OrdinaryVolume {
                    pod_uid: pod_uid.to_owned(),
                    note: Err(format!("not all of this directory is read: {error}")),
                    target: directory.to_owned(),
                    is_mounted: None,
                });
            }
            Ok(()) | Err(_) => {}
        }
        found.sort();
        found
    }
}

/// The mount points that this process sees.
struct Mounts {
    points: BTreeSet<PathBuf>,
    /// Those that get no mounts from elsewhere.
    private: BTreeSet<PathBuf>,
}

impl Mounts {
    /// Reads the text of `/proc/self/mountinfo` (proc(5)).
    fn read(mountinfo: &str) -> Self {
        let mut mounts = Self { points: BTreeSet::new(), private: BTreeSet::new() };
        for line in mountinfo.lines() {
            let Some((point, propagation)) = mount(line) else { continue };
            // Of two at the same place, the later one covers the other.
            match propagation {
                Propagation::Shared | Propagation::FromHost => {
                    mounts.private.remove(&point);
                }
                Propagation::Private => {
                    mounts.private.insert(point.clone());
                }
            }
            mounts.points.insert(point);
        }
        mounts
    }

    /// Whether something is mounted at this path. What the host mounts below a private mount is
    /// not seen here.
    fn has(&self, path: &Path) -> Option<bool> {
        if self.points.contains(path) {
            return Some(true);
        }
        let above = path.ancestors().find(|above| self.points.contains(*above))?;
        (!self.private.contains(above)).then_some(false)
    }
}

#[cfg(test)]
mod tests {
    use proto::host::publish::{Existing, publish};
    use tempfile::TempDir;

    use super::*;

    /// A kubelet's directory.
    struct Kubelet(TempDir);

    impl Kubelet {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self) -> PathBuf {
            self.0.path().canonicalize().unwrap()
        }

        fn target(&self, pod: &str, volume: &str) -> PathBuf {
            self.path().join(format!("pods/{pod}/{VOLUMES}/{volume}/mount"))
        }

        fn add(&self, pod: &str, volume: &str, note: &str) -> PathBuf {
            let target = self.target(pod, volume);
            std::fs::create_dir_all(&target).unwrap();
            let path = target.parent().unwrap().join(NOTE);
            publish(&path, note.as_bytes(), 0o600, Existing::Keep).unwrap();
            target
        }

        /// A mount table with a root like this, and a mount at each of these.
        fn table(root: &str, targets: &[&Path]) -> String {
            let mut text = format!("1 0 8:1 / / rw {root}- ext4 /dev/a rw\n");
            for target in targets {
                let target = target.display().to_string().replace(' ', "\\040");
                text += &format!("2 1 8:2 / {target} rw shared:2 - ext4 /dev/b rw\n");
            }
            text
        }

        fn look(&self, table: &str, most: usize) -> Vec<OrdinaryVolume> {
            looked_at(&[self.path()], table, most)
        }
    }

    const SHARED: &str = "shared:1 ";

    fn note(volume: &str) -> String {
        format!(
            "{{\"driverName\":\"d.example\",\"volumeHandle\":\"{volume}\",\"specVolID\":\"pv\"}}"
        )
    }

    fn volume_of(volume: &OrdinaryVolume) -> Option<&str> {
        volume.note.as_ref().ok().map(|note| note.volume.as_str())
    }

    #[test]
    fn what_a_kubelet_noted_is_shown_with_whether_it_is_mounted() {
        let kubelet = Kubelet::new();
        assert_eq!(kubelet.look(&Kubelet::table(SHARED, &[]), 9), [], "there is no pods directory");
        let here = kubelet.add("uid-1", "pv a", &note("vol-1"));
        kubelet.add("uid-2", "pv", &note("vol-2"));
        let other = kubelet.path().join("pods/uid-3/volumes/kubernetes.io~secret/s");
        std::fs::create_dir_all(other).unwrap();
        let found = kubelet.look(&Kubelet::table(SHARED, &[&here]), 9);
        let [first, second] = found.as_slice() else { panic!("{found:?}") };
        let driver = first.note.as_ref().unwrap().driver.as_str();
        assert_eq!((driver, volume_of(first)), ("d.example", Some("vol-1")));
        assert_eq!((first.pod_uid.as_str(), first.is_mounted), ("uid-1", Some(true)));
        assert_eq!(first.target, here);
        assert_eq!((volume_of(second), second.is_mounted), (Some("vol-2"), Some(false)));
    }

    #[test]
    fn what_the_host_mounts_is_not_known_where_it_is_not_seen() {
        let kubelet = Kubelet::new();
        let here = kubelet.add("uid-1", "pv", &note("vol-1"));
        kubelet.add("uid-2", "pv", &note("vol-2"));
        let mounted = |table: &str| -> Vec<_> {
            kubelet.look(table, 9).iter().map(|volume| volume.is_mounted).collect()
        };
        assert_eq!(mounted(&Kubelet::table("", &[&here])), [Some(true), None]);
        assert_eq!(mounted(""), [None, None]);
    }

    #[test]
    fn a_damaged_note_hides_no_other() {
        let kubelet = Kubelet::new();
        for (index, damaged) in ["", "{", "{\"driverName\":\"d.example\"}"].iter().enumerate() {
            kubelet.add(&format!("uid-{index}"), "pv", damaged);
        }
        std::fs::create_dir_all(kubelet.target("uid-3", "pv")).unwrap();
        kubelet.add("uid-4", "pv", &note("vol"));
        let found = kubelet.look(&Kubelet::table(SHARED, &[]), 99);
        let volumes: Vec<_> = found.iter().map(volume_of).collect();
        assert_eq!(volumes, [None, None, None, None, Some("vol")]);
        for damaged in &found[..4] {
            let why = damaged.note.as_ref().unwrap_err();
            assert!(why.contains(NOTE) && !damaged.pod_uid.is_empty(), "{why}");
        }
    }

    #[test]
    fn only_so_many_directories_are_read_and_that_is_shown() {
        let kubelet = Kubelet::new();
        for pod in 0..5 {
            kubelet.add(&format!("uid-{pod}"), "pv", &note("vol"));
        }
        let found = kubelet.look(&Kubelet::table(SHARED, &[]), 4);
        let (shown, cut): (Vec<_>, Vec<_>) = found.iter().partition(|found| found.note.is_ok());
        assert!(shown.len() < 5);
        let why = cut.first().unwrap().note.as_ref().unwrap_err();
        assert!(why.contains("more than"), "{why}");
        assert_eq!(kubelet.look(&Kubelet::table(SHARED, &[]), 100).len(), 5);
    }
}
