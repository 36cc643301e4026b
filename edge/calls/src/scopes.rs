//! How far the volumes of this node's drivers reach, as the cloud has told: its operator's word.
//!
//! Kept in a file, so that a node that starts without the cloud answers its kubelet as before. What was told once
//! holds until the cloud says otherwise.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use proto::csi::topology::Scope;
use proto::host::publish::{Existing, publish};
use proto::names::DriverName;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

/// The file's name in the directory of what is kept.
const FILE: &str = "scopes.json";

/// What was told, by driver.
#[derive(Default)]
pub struct Scopes {
    known: Mutex<BTreeMap<DriverName, Scope>>,
    /// What was told and does not count yet.
    told: Mutex<BTreeMap<DriverName, Scope>>,
    file: Option<PathBuf>,
    /// What the file holds; held by who writes it.
    kept: tokio::sync::Mutex<BTreeMap<DriverName, Scope>>,
}

/// What the file holds.
#[derive(Default, Serialize, Deserialize)]
struct Kept {
    scopes: BTreeMap<DriverName, Scope>,
}

impl Scopes {
    /// What is kept in this directory, which is made if it is not there.
    ///
    /// # Errors
    /// The directory cannot be made, or the file cannot be opened. One that cannot be understood is begun anew: the
    /// cloud tells it again.
    pub fn open(directory: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("the directory {} (--state) cannot be used", directory.display());
        std::fs::create_dir_all(directory).with_context(cannot)?;
        let file = directory.join(FILE);
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                b"{\"scopes\":{}}".to_vec()
            }
            Err(error) => return Err(error).with_context(cannot),
        };
        let Kept { scopes } = serde_json::from_slice(&text).unwrap_or_else(|error| {
            warn!(file = %file.display(), %error, "what the cloud told cannot be read; it will tell it again");
            Kept::default()
        });
        let known = Mutex::new(scopes.clone());
        let kept = tokio::sync::Mutex::new(scopes);
        Ok(Self { known, told: Mutex::default(), file: Some(file), kept })
    }

    /// The scope of a driver; none if it was never told.
    pub fn of(&self, driver: &DriverName) -> Option<Scope> {
        self.known().get(driver).copied()
    }

    /// Hears what the cloud tells; it counts when [`Scopes::settle`] has made it durable.
    pub fn hear(&self, told: BTreeMap<DriverName, Scope>) {
        self.told().extend(told);
    }

    /// Makes what was heard durable, and then lets it count, so that nobody is answered by what a restart forgets. What
    /// cannot be written is logged, counts all the same, and is written when it is told again. It takes as long as the
    /// disk does.
    pub async fn settle(&self) {
        let mut kept = self.kept.lock().await;
        let told = self.told().clone();
        let before = self.known().clone();
        let mut now = before.clone();
        now.extend(told);
        if let Some(file) = self.file.clone().filter(|_| *kept != now)
            && keep(file, Kept { scopes: now.clone() }).await
        {
            kept.clone_from(&now);
        }
        for (driver, scope) in
            now.iter().filter(|(driver, scope)| before.get(*driver) != Some(*scope))
        {
            info!(%driver, ?scope, "the cloud says how far the driver's volumes reach");
        }
        // What was heard meanwhile is for the next.
        self.told().retain(|driver, scope| now.get(driver) != Some(scope));
        *self.known() = now;
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<DriverName, Scope>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<DriverName, Scope>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it could be written.
async fn keep(file: PathBuf, kept: Kept) -> bool {
    let path = file.clone();
    let write = move || -> anyhow::Result<()> {
        Ok(publish(&path, &serde_json::to_vec(&kept)?, 0o600, Existing::Replace)?)
    };
    let written = tokio::task::spawn_blocking(write).await.context("it was broken off");
    let Err(error) = written.and_then(|written| written) else { return true };
    let file = file.display();
    let error = format!("{error:#}");
    warn!(%file, error, "what the cloud told cannot be kept; after a restart without the cloud it is lost");
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    async fn take(scopes: &Scopes, told: BTreeMap<DriverName, Scope>) {
        scopes.hear(told);
        scopes.settle().await;
    }

    #[tokio::test]
    async fn what_was_told_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/here");
        let scopes = Scopes::open(&state).unwrap();
        assert_eq!(scopes.of(&driver()), None);
        take(&scopes, [(driver(), Scope::Node)].into()).await;
        // A cloud that does not know it does not take it back.
        take(&scopes, BTreeMap::new()).await;
        assert_eq!(Scopes::open(&state).unwrap().of(&driver()), Some(Scope::Node));
        take(&scopes, [(driver(), Scope::Shared)].into()).await;
        assert_eq!(Scopes::open(&state).unwrap().of(&driver()), Some(Scope::Shared));
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 1, "something was left behind");
    }

    #[tokio::test]
    async fn a_file_that_is_damaged_or_cannot_be_written_is_no_end() {
        let dir = tempfile::tempdir().unwrap();
        publish(&dir.path().join(FILE), b"{\"scopes\":", 0o600, Existing::Keep).unwrap();
        let scopes = Scopes::open(dir.path()).unwrap();
        assert_eq!(scopes.of(&driver()), None);
        let path = dir.path().to_owned();
        dir.close().unwrap();
        take(&scopes, [(driver(), Scope::Node)].into()).await;
        assert_eq!(scopes.of(&driver()), Some(Scope::Node));
        // The disk is back, and the same is told again.
        std::fs::create_dir(&path).unwrap();
        take(&scopes, [(driver(), Scope::Node)].into()).await;
        assert_eq!(Scopes::open(&path).unwrap().of(&driver()), Some(Scope::Node));
        std::fs::remove_dir_all(&path).unwrap();
    }
}
