//! Records of the volumes on this node: where each is staged and published, and the growth that
//! its node still owes. One file per volume, which appears and goes whole.
//!
//! A record without an owed growth only helps: without it a volume counts as not staged. A damaged
//! record hinders its own volume only, and counts as an owed growth of unknown size. It uses no
//! other room.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use proto::control::base64::Base64;
use proto::host::chain;
use proto::host::files;
use proto::host::publish::{Existing, publish};
use proto::names::DriverName;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

/// The directory of the records in the state directory.
const DIRECTORY: &str = "node-volumes";
/// So many records can be written at the same time.
const TURNS: usize = 32;

/// The growth of a volume on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Growth {
    /// The controller's half was about to begin, and its outcome is not known.
    Begun,
    /// The controller's half is done, and the node's half is not.
    Due {
        /// The size, in bytes; 0 if it is not known.
        bytes: i64,
    },
}

/// The paths at which a call found or put a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// The path where it is staged; empty without one.
    pub staging: String,
    /// The paths where it is published.
    pub targets: BTreeSet<String>,
    /// The capability that it is used with, as the caller gave it.
    pub capability: Option<Base64>,
}

impl Places {
    /// Adds the places to which another call has put the volume.
    pub(crate) fn put(&mut self, other: &Self) {
        self.targets.extend(other.targets.iter().cloned());
        self.capability.clone_from(&other.capability);
        if !other.staging.is_empty() {
            self.staging.clone_from(&other.staging);
        }
    }

    /// True if the volume is staged or published at this path.
    pub(crate) fn have(&self, path: &str) -> bool {
        self.staging == path || self.targets.contains(path)
    }

    /// A path at which the volume is available; none if it is at none.
    pub fn path(&self) -> Option<&str> {
        let staging = Some(self.staging.as_str()).filter(|path| !path.is_empty());
        self.targets.first().map(String::as_str).or(staging)
    }
}

/// A volume on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeVolume {
    /// The driver's CSI name.
    pub driver: DriverName,
    /// The volume's id.
    pub volume_id: String,
    /// The boot in which it was staged and published; a new boot ends both.
    pub boot: String,
    /// Its paths in that boot.
    pub places: Places,
    /// The growth that has begun or is owed.
    pub growth: Option<Growth>,
}

impl NodeVolume {
    fn is_empty(&self) -> bool {
        self.growth.is_none() && self.places.path().is_none()
    }

    /// The size of the owed growth, in bytes; none if none is owed.
    pub fn due(&self) -> Option<i64> {
        match self.growth {
            Some(Growth::Due { bytes }) => Some(bytes),
            Some(Growth::Begun) | None => None,
        }
    }

    /// Logs what is left of its growth, if anything is.
    pub(crate) fn log_growth(&self) {
        let driver = &self.driver;
        let volume = &self.volume_id;
        match self.growth {
            Some(Growth::Begun) => info!(
                %driver, volume,
                "its expansion was begun, and its outcome is not known here; the next \
                 ControllerExpandVolume goes on"
            ),
            Some(Growth::Due { bytes }) => info!(
                %driver, volume, bytes,
                "has grown, but not on this node; it does when it is next staged or published"
            ),
            None => {}
        }
    }
}

/// All volumes of this node.
pub struct NodeVolumes {
    directory: PathBuf,
    /// The id of this boot; empty if it is not known.
    boot: String,
    known: Mutex<HashMap<String, NodeVolume>>,
    /// Who changes a record holds one of these, by the record's name.
    turns: [tokio::sync::Mutex<()>; TURNS],
    /// The names of records that cannot be read.
    damaged: Mutex<BTreeSet<String>>,
    /// The reason why none of the records could be read.
    unreadable: Option<String>,
}

impl NodeVolumes {
    /// Reads the records below a state directory. Records of a past boot are forgotten, unless a
    /// growth is owed.
    pub fn open(state: &Path, boot: &str) -> Self {
        let directory = state.join(DIRECTORY);
        let mut volumes = Self {
            directory,
            boot: boot.to_owned(),
            known: Mutex::default(),
            turns: Default::default(),
            damaged: Mutex::default(),
            unreadable: None,
        };
        if let Err(error) = volumes.read_all() {
            let directory = volumes.directory.display();
            warn!(
                %directory, %error,
                "it is not known which volumes must grow here; no volume is expanded until this \
                 directory can be read and csi-edge is started again"
            );
            volumes.unreadable = Some(format!("{directory} cannot be read ({error})"));
        }
        volumes
    }

    fn read_all(&self) -> io::Result<()> {
        let entries = match std::fs::read_dir(&self.directory) {
            // It is made with the first record.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with('.') && name.ends_with(".new") {
                // It was being written at a crash. The next start tries again.
                let _ = std::fs::remove_file(&path);
            }
            let Some(key) = name.strip_suffix(".json") else { continue };
            match read(&path, key) {
                Ok(volume) => self.take(key, volume),
                Err(error) => {
                    let path = path.display();
                    let error = chain(&error);
                    warn!(
                        %path, error,
                        "the record of a volume cannot be read; that volume is expanded when it \
                         is next staged or published"
                    );
                    self.damaged().insert(key.to_owned());
                }
            }
        }
        Ok(())
    }

    /// Takes a record that was read at the start.
    fn take(&self, key: &str, mut volume: NodeVolume) {
        if !self.is_this_boot(&volume.boot) {
            volume.places = Places::default();
        }
        if volume.is_empty() {
            // The next start tries again.
            let _ = std::fs::remove_file(self.path(key));
            return;
        }
        self.known().insert(key.to_owned(), volume);
    }

    fn is_this_boot(&self, boot: &str) -> bool {
        !boot.is_empty() && boot == self.boot
    }

    /// Whether the records could be read at the start; otherwise why not.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn check(&self) -> Result<(), String> {
        self.unreadable.clone().map_or(Ok(()), Err)
    }

    /// The record of a volume.
    pub fn of(&self, driver: &DriverName, volume_id: &str) -> NodeVolume {
        let key = key(driver, volume_id);
        let nothing = || NodeVolume {
            driver: driver.clone(),
            volume_id: volume_id.to_owned(),
            boot: self.boot.clone(),
            places: Places::default(),
            growth: self.damaged().contains(&key).then_some(Growth::Due { bytes: 0 }),
        };
        self.known().get(&key).cloned().unwrap_or_else(nothing)
    }

    /// Changes a volume's record durably. Two changes of one volume follow each other.
    ///
    /// # Errors
    /// The file system's; nothing is changed then.
    pub async fn change(
        &self,
        driver: &DriverName,
        volume_id: &str,
        change: impl FnOnce(&mut NodeVolume),
    ) -> io::Result<()> {
        let key = key(driver, volume_id);
        let _turn = self.turn(&key).lock().await;
        let mut volume = self.of(driver, volume_id);
        change(&mut volume);
        self.write(key, volume).await
    }

    /// Changes a volume's record. One that cannot be written counts until csi-edge ends.
    pub async fn note(
        &self,
        driver: &DriverName,
        volume_id: &str,
        change: impl FnOnce(&mut NodeVolume),
    ) {
        let key = key(driver, volume_id);
        let _turn = self.turn(&key).lock().await;
        let before = self.of(driver, volume_id);
        let mut volume = NodeVolume { boot: self.boot.clone(), ..before.clone() };
        change(&mut volume);
        if before == volume {
            return;
        }
        let Err(error) = self.write(key.clone(), volume.clone()).await else { return };
        let directory = self.directory.display();
        warn!(
            %driver, volume = volume_id, %directory, %error,
            "what is known of a volume here cannot be kept; after a restart it grows when it is \
             next staged or published"
        );
        self.replace(key, volume);
    }

    /// The lock of a volume's record, which may be another volume's too.
    fn turn(&self, key: &str) -> &tokio::sync::Mutex<()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let turn = usize::try_from(hasher.finish() % TURNS as u64).unwrap_or_default();
        // The remainder is less than the number of locks.
        self.turns.get(turn).unwrap_or(&self.turns[0])
    }

    async fn write(&self, key: String, volume: NodeVolume) -> io::Result<()> {
        let write = write(self.path(&key), &volume)?;
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)??;
        self.replace(key, volume);
        Ok(())
    }

    fn replace(&self, key: String, volume: NodeVolume) {
        self.damaged().remove(&key);
        match volume.is_empty() {
            true => drop(self.known().remove(&key)),
            false => drop(self.known().insert(key, volume)),
        }
    }

    /// The volumes whose growth has begun, or is owed by the node.
    pub fn growing(&self) -> Vec<NodeVolume> {
        let known = self.known();
        let mut growing: Vec<_> =
            known.values().filter(|volume| volume.growth.is_some()).cloned().collect();
        growing.sort_by(|a, b| (&a.driver, &a.volume_id).cmp(&(&b.driver, &b.volume_id)));
        growing
    }

    /// True if nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.known().is_empty() && self.damaged().is_empty()
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(format!("{key}.json"))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, NodeVolume>> {
        self.known.lock()
    }

    fn damaged(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.damaged.lock()
    }
}

fn key(driver: &DriverName, volume_id: &str) -> String {
    files::name(&[driver.as_str().as_bytes(), volume_id.as_bytes()])
}

fn read(path: &Path, expected: &str) -> io::Result<NodeVolume> {
    let volume: NodeVolume =
        serde_json::from_slice(&files::read(path)?).map_err(io::Error::other)?;
    if key(&volume.driver, &volume.volume_id) != expected {
        return Err(io::Error::other("it is another volume's"));
    }
    Ok(volume)
}

/// The work that makes a record durable, or that removes an empty one.
fn write(
    path: PathBuf,
    volume: &NodeVolume,
) -> io::Result<impl FnOnce() -> io::Result<()> + Send + use<>> {
    let text = (!volume.is_empty()).then(|| serde_json::to_vec_pretty(volume)).transpose()?;
    Ok(move || {
        let parent = path.parent().unwrap_or_else(|| Path::new("/"));
        match text {
            Some(text) => {
                files::make_private(parent)?;
                publish(&path, &text, 0o600, Existing::Replace)
            }
            None => files::remove(&path),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    fn staged(path: &str) -> Places {
        let capability = Some(Base64(bytes::Bytes::from_static(b"\x08\x01")));
        Places { staging: path.into(), capability, ..Places::default() }
    }

    async fn stage(volumes: &NodeVolumes, id: &str) {
        volumes.note(&driver(), id, |volume| volume.places = staged("/s")).await;
    }

    async fn owe(volumes: &NodeVolumes, id: &str, growth: Option<Growth>) {
        volumes.change(&driver(), id, |volume| volume.growth = growth).await.unwrap();
    }

    #[tokio::test]
    async fn places_end_with_their_boot_and_owed_growth_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let open = |boot: &str| NodeVolumes::open(dir.path(), boot);
        let volumes = open("1");
        for id in ["v", "w"] {
            stage(&volumes, id).await;
        }
        owe(&volumes, "v", Some(Growth::Due { bytes: 7 })).await;
        let again = open("1");
        assert_eq!(again.of(&driver(), "v"), volumes.of(&driver(), "v"));
        assert_eq!(again.of(&driver(), "w").places, staged("/s"));
        let later = open("2");
        assert_eq!(later.of(&driver(), "v").places, Places::default());
        assert_eq!(later.growing().len(), 1);
        assert_eq!(std::fs::read_dir(dir.path().join(DIRECTORY)).unwrap().count(), 1);
        owe(&later, "v", None).await;
        assert!(later.is_empty() && open("2").is_empty());
        assert_eq!(std::fs::read_dir(dir.path().join(DIRECTORY)).unwrap().count(), 0);
        // Of a boot that the kernel does not name nothing is known later.
        let nameless = open("");
        stage(&nameless, "v").await;
        assert_eq!(open("").of(&driver(), "v").places, Places::default());
    }

    #[tokio::test]
    async fn a_growth_that_was_only_begun_is_listed_too() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = NodeVolumes::open(dir.path(), "1");
        stage(&volumes, "u").await;
        owe(&volumes, "w", Some(Growth::Due { bytes: 7 })).await;
        owe(&volumes, "v", Some(Growth::Begun)).await;
        for volumes in [&volumes, &NodeVolumes::open(dir.path(), "2")] {
            let growing = volumes.growing();
            let [v, w] = growing.as_slice() else { panic!("{growing:?}") };
            assert_eq!((v.volume_id.as_str(), v.growth), ("v", Some(Growth::Begun)));
            assert_eq!((w.volume_id.as_str(), w.due()), ("w", Some(7)));
            volumes.growing().iter().for_each(NodeVolume::log_growth);
        }
    }

    #[tokio::test]
    async fn two_publishes_at_once_leave_both_targets() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = NodeVolumes::open(dir.path(), "1");
        let publish = |target: &str| {
            let target = target.to_owned();
            let put = move |volume: &mut NodeVolume| {
                volume.places.targets.insert(target);
            };
            let volumes = &volumes;
            async move { volumes.note(&driver(), "v", put).await }
        };
        tokio::join!(publish("/a"), publish("/b"), publish("/c"));
        let targets = NodeVolumes::open(dir.path(), "1").of(&driver(), "v").places.targets;
        assert_eq!(targets, ["/a", "/b", "/c"].map(str::to_owned).into());
    }

    #[tokio::test]
    async fn a_damaged_record_is_an_owed_growth_of_its_volume_alone() {
        let dir = tempfile::tempdir().unwrap();
        let open = || NodeVolumes::open(dir.path(), "1");
        let volumes = open();
        for id in ["v", "w"] {
            stage(&volumes, id).await;
        }
        let path = volumes.path(&key(&driver(), "v"));
        publish(&path, b"{", 0o600, Existing::Replace).unwrap();
        publish(&path.with_file_name(".x.new"), b"{", 0o600, Existing::Keep).unwrap();
        let volumes = open();
        assert_eq!(volumes.of(&driver(), "v").due(), Some(0));
        assert_eq!(volumes.of(&driver(), "w").due(), None);
        assert_eq!(volumes.of(&driver(), "w").places, staged("/s"));
        owe(&volumes, "v", None).await;
        assert_eq!(volumes.of(&driver(), "v").due(), None);
        assert_eq!(std::fs::read_dir(dir.path().join(DIRECTORY)).unwrap().count(), 1);
        // A record under another volume's name is that volume's damage.
        std::fs::rename(volumes.path(&key(&driver(), "w")), &path).unwrap();
        assert_eq!(open().of(&driver(), "v").due(), Some(0));
    }

    #[tokio::test]
    async fn places_count_without_a_disk_and_growth_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = NodeVolumes::open(dir.path(), "1");
        let directory = dir.path().join(DIRECTORY);
        publish(&directory, b"", 0o600, Existing::Keep).unwrap();
        stage(&volumes, "v").await;
        let there = volumes.of(&driver(), "v");
        assert_eq!(there.places, staged("/s"));
        let owe = |volume: &mut NodeVolume| volume.growth = Some(Growth::Due { bytes: 1 });
        assert!(volumes.change(&driver(), "v", owe).await.is_err());
        assert_eq!(volumes.of(&driver(), "v"), there);
        let blind = NodeVolumes::open(dir.path(), "1");
        assert!(blind.check().unwrap_err().contains("cannot be read"));
        assert!(volumes.check().is_ok());
    }
}
