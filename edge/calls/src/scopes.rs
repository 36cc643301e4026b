//! The cloud's settings for this node's drivers: their scopes, and whose topology the cloud
//! publishes.
//!
//! A file keeps them, so a node that starts without the cloud answers its kubelet as before. A
//! setting holds until the cloud sends another. It uses no other room.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use parking_lot::{Mutex, MutexGuard};
use proto::csi::topology::Scope;
use proto::host::files;
use proto::host::files::Unread;
use proto::host::peer_log::{LogPeer, peer_info};
use proto::host::publish::publish_record;
use proto::names::DriverName;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::{error, warn};

/// How often drivers are asked for NodeGetInfo where csi-cloud publishes it in a kubelet's place.
pub(crate) const NODE_INFO_EVERY: Duration = Duration::from_mins(10);
/// The shortest such period. The API server takes no shorter one in a CSIDriver object.
const NODE_INFO_AT_MOST_EVERY: Duration = Duration::from_secs(10);

/// The file's name in the state directory.
const FILE: &str = "scopes.json";

/// The cloud's settings for drivers.
#[derive(Default)]
pub struct Scopes {
    known: Mutex<Words>,
    /// Received from the cloud, and not in force yet.
    received: Mutex<Words>,
    file: Option<PathBuf>,
    /// The file's content; held while writing.
    kept: tokio::sync::Mutex<Words>,
    /// How often drivers are asked for NodeGetInfo again, in s, if not every
    /// [`NODE_INFO_EVERY`]. In memory alone: the usual period does until the cloud is back.
    node_info_every_s: Mutex<BTreeMap<DriverName, u32>>,
    /// Told when a period of these, or what the cloud publishes, may have changed.
    news: Notify,
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Words {
    scopes: BTreeMap<DriverName, Scope>,
    /// The drivers whose topology the cloud publishes; none if it never said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    publishes_topology: Option<BTreeSet<DriverName>>,
}

impl Words {
    /// These settings, overridden by later ones.
    fn and(mut self, received: Self) -> Self {
        self.scopes.extend(received.scopes);
        self.publishes_topology = received.publishes_topology.or(self.publishes_topology);
        self
    }

    fn publishes(&self, driver: &DriverName) -> bool {
        self.published().any(|published| published == driver)
    }

    fn published(&self) -> impl Iterator<Item = &DriverName> {
        self.publishes_topology.iter().flatten()
    }
}

impl Scopes {
    /// Reads the settings in this state directory. A file that is damaged or cannot be read counts
    /// as empty, because the cloud sends them again.
    pub fn open(directory: &Path) -> Self {
        let file = directory.join(FILE);
        let words = read(&file).unwrap_or_else(|error| {
            let file = file.display();
            warn!(%file, %error, "what the cloud told cannot be read; it will tell it again");
            Words::default()
        });
        let known = Mutex::new(words.clone());
        let kept = tokio::sync::Mutex::new(words);
        Self { known, file: Some(file), kept, ..Self::default() }
    }

    /// The scope of a driver; none if the cloud never sent it.
    pub fn of(&self, driver: &DriverName) -> Option<Scope> {
        self.known().scopes.get(driver).copied()
    }

    /// True if the cloud publishes the topology of a driver at this node, and no kubelet does.
    pub fn publishes_topology(&self, driver: &DriverName) -> bool {
        self.known().publishes(driver)
    }

    /// Takes scopes from the cloud; [`Scopes::settle`] puts them in force.
    pub fn receive(&self, received: BTreeMap<DriverName, Scope>) {
        self.received().scopes.extend(received);
    }

    /// Takes the drivers whose topology the cloud publishes; none if it does not say. As above.
    pub fn receive_published(&self, received: Option<BTreeSet<DriverName>>) {
        let mut words = self.received();
        if received.is_some() {
            words.publishes_topology = received;
        }
    }

    /// Takes the periods in s after which published drivers are asked for NodeGetInfo again.
    pub fn receive_node_info_periods(&self, received: BTreeMap<DriverName, u32>) {
        *self.node_info_every_s.lock() = received;
        self.news.notify_one();
    }

    /// How often a driver is asked for NodeGetInfo again, if the cloud publishes it at this node.
    pub(crate) fn node_info_every(&self, driver: &DriverName) -> Option<Duration> {
        if !self.publishes_topology(driver) {
            return None;
        }
        let every =
            self.node_info_every_s.lock().get(driver).map(|s| Duration::from_secs((*s).into()));
        Some(every.map_or(NODE_INFO_EVERY, |every| every.max(NODE_INFO_AT_MOST_EVERY)))
    }

    /// Waits until an answer of [`Self::node_info_every`] may have changed. For one caller.
    pub(crate) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Makes received settings durable and then puts them in force, so a restart forgets no answer.
    /// One that cannot be written is logged, is in force anyway, and is written when it is sent
    /// again.
    pub async fn settle(&self) {
        let mut kept = self.kept.lock().await;
        let received = self.received().clone();
        let before = self.known().clone();
        let now = before.clone().and(received);
        if let Some(file) = self.file.clone().filter(|_| *kept != now) {
            if keep(file.clone(), now.clone()).await {
                kept.clone_from(&now);
            } else if kept.published().any(|driver| !now.publishes(driver))
                && let Some(left) = take_back(file).await
            {
                *kept = left;
            }
        }
        log_news(&before, &now);
        // What the cloud sent meanwhile is left for the next call.
        let mut received = self.received();
        received.scopes.retain(|driver, scope| now.scopes.get(driver) != Some(scope));
        received
            .publishes_topology
            .take_if(|received| now.publishes_topology.as_ref() == Some(received));
        drop(received);
        *self.known() = now;
        self.news.notify_one();
    }

    fn received(&self) -> MutexGuard<'_, Words> {
        self.received.lock()
    }

    fn known(&self) -> MutexGuard<'_, Words> {
        self.known.lock()
    }
}

fn log_news(before: &Words, now: &Words) {
    for (driver, scope) in
        now.scopes.iter().filter(|(driver, scope)| before.scopes.get(*driver) != Some(*scope))
    {
        peer_info!(
            LogPeer::Cloud, %driver, ?scope, "the cloud says how far the driver's volumes reach"
        );
    }
    for driver in now.published().filter(|driver| !before.publishes(driver)) {
        peer_info!(
            LogPeer::Cloud, %driver,
            "the cloud publishes the topology, so the node's front leaves it out"
        );
    }
    for driver in before.published().filter(|driver| !now.publishes(driver)) {
        peer_info!(
            LogPeer::Cloud, %driver,
            "the cloud does not publish the topology, so the node's front has it"
        );
    }
}

fn read(file: &Path) -> io::Result<Words> {
    let text = match files::read(file) {
        Err(Unread::Missing) => return Ok(Words::default()),
        text => text?,
    };
    Ok(serde_json::from_slice(&text)?)
}

/// Writes the file; false if that failed.
async fn keep(file: PathBuf, words: Words) -> bool {
    let path = file.clone();
    let written = tokio::task::spawn_blocking(move || publish_record(&path, &words)).await;
    let written = written.context("it was broken off").and_then(|written| Ok(written?));
    let Err(error) = written else { return true };
    let file = file.display();
    let error = format!("{error:#}");
    warn!(
        %file, error,
        "what the cloud told cannot be kept; after a restart without the cloud it is lost"
    );
    false
}

/// Removes a file that names too many drivers: a kubelet publishes their topology. A full disk
/// allows a removal. Returns the settings that are kept then.
async fn take_back(file: PathBuf) -> Option<Words> {
    let path = file.clone();
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_file(path)).await;
    let removed = removed.context("it was broken off").and_then(|removed| Ok(removed?));
    let Err(error) = removed else { return Some(Words::default()) };
    let file = file.display();
    let error = format!("{error:#}");
    error!(
        %file, error,
        "it says that the cloud publishes topology, which is over, and cannot be removed; after a \
         restart without the cloud the node's front would leave topology out; mend the disk, or \
         remove the file"
    );
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use proto::host::publish::{Existing, publish};

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    async fn take(scopes: &Scopes, received: BTreeMap<DriverName, Scope>) {
        scopes.receive(received);
        scopes.settle().await;
    }

    #[tokio::test]
    async fn what_was_told_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/here");
        let scopes = Scopes::open(&state);
        assert_eq!(scopes.of(&driver()), None);
        take(&scopes, [(driver(), Scope::Node)].into()).await;
        // A cloud that does not know the scope does not revoke it.
        take(&scopes, BTreeMap::new()).await;
        assert_eq!(Scopes::open(&state).of(&driver()), Some(Scope::Node));
        take(&scopes, [(driver(), Scope::Shared)].into()).await;
        assert_eq!(Scopes::open(&state).of(&driver()), Some(Scope::Shared));
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 1, "something was left behind");
    }

    fn published(drivers: &[&str]) -> Option<BTreeSet<DriverName>> {
        Some(drivers.iter().map(|name| name.parse().unwrap()).collect())
    }

    async fn take_published(scopes: &Scopes, drivers: &[&str]) {
        scopes.receive_published(published(drivers));
        scopes.settle().await;
    }

    #[tokio::test]
    async fn whose_topology_the_cloud_publishes_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let scopes = Scopes::open(dir.path());
        assert!(!scopes.publishes_topology(&driver()));
        take(&scopes, [(driver(), Scope::Node)].into()).await;
        take_published(&scopes, &["d.example", "e.example"]).await;
        // A cloud that does not know takes nothing back.
        scopes.receive_published(None);
        scopes.settle().await;
        let again = Scopes::open(dir.path());
        assert!(again.publishes_topology(&driver()));
        assert_eq!(again.of(&driver()), Some(Scope::Node));
        take_published(&again, &["e.example"]).await;
        assert!(!again.publishes_topology(&driver()));
        assert!(!Scopes::open(dir.path()).publishes_topology(&driver()));
        assert!(Scopes::open(dir.path()).publishes_topology(&"e.example".parse().unwrap()));
    }

    /// A directory in which a file of the state can be, and none with a longer name beside it. So
    /// nothing can be written there, as on a full disk, and root is no exception.
    fn full(dir: &Path) -> PathBuf {
        const LONGEST: usize = 4060;
        let mut path = dir.to_owned();
        while let Some(left @ 2..) = LONGEST.checked_sub(path.as_os_str().len()) {
            path.push("x".repeat((left - 1).min(200)));
        }
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[tokio::test]
    async fn a_word_that_was_taken_back_does_not_come_again_though_the_disk_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let full = full(dir.path());
        let words =
            Words { scopes: BTreeMap::new(), publishes_topology: published(&["d.example"]) };
        let text = serde_json::to_vec(&words).unwrap();
        std::fs::File::create(full.join(FILE)).unwrap().write_all(&text).unwrap();
        let scopes = Scopes::open(&full);
        assert!(scopes.publishes_topology(&driver()));
        take(&scopes, [(driver(), Scope::Node)].into()).await;
        assert!(full.join(FILE).exists(), "what it says is still true");
        take_published(&scopes, &[]).await;
        assert!(!scopes.publishes_topology(&driver()));
        assert!(!Scopes::open(&full).publishes_topology(&driver()));
    }

    #[test]
    fn a_file_of_an_older_csi_edge_has_scopes_alone() {
        let dir = tempfile::tempdir().unwrap();
        let text = b"{\"scopes\":{\"d.example\":\"node\"}}";
        publish(&dir.path().join(FILE), text, 0o600, Existing::Keep).unwrap();
        let scopes = Scopes::open(dir.path());
        assert_eq!(scopes.of(&driver()), Some(Scope::Node));
        assert!(!scopes.publishes_topology(&driver()));
    }

    #[tokio::test]
    async fn a_file_that_is_damaged_or_cannot_be_written_is_no_end() {
        let dir = tempfile::tempdir().unwrap();
        publish(&dir.path().join(FILE), b"{\"scopes\":", 0o600, Existing::Keep).unwrap();
        let scopes = Scopes::open(dir.path());
        assert_eq!(scopes.of(&driver()), None);
        let path = dir.path().to_owned();
        dir.close().unwrap();
        publish(&path, b"", 0o600, Existing::Keep).unwrap();
        assert_eq!(Scopes::open(&path).of(&driver()), None);
        take(&scopes, [(driver(), Scope::Node)].into()).await;
        assert_eq!(scopes.of(&driver()), Some(Scope::Node));
        // The disk is back, and the cloud tells the same again.
        std::fs::remove_file(&path).unwrap();
        take(&scopes, [(driver(), Scope::Node)].into()).await;
        assert_eq!(Scopes::open(&path).of(&driver()), Some(Scope::Node));
        std::fs::remove_dir_all(&path).unwrap();
    }
}
