//! How far the volumes of this node's drivers reach, as the cloud has told: its operator's word.
//!
//! Kept in a file, so that a node that starts without the cloud answers its kubelet as before. What was told once
//! holds until the cloud says otherwise.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use proto::identity::DriverName;
use proto::publish::{Existing, publish};
use proto::topology::Scope;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

/// The file's name in the directory of what is kept.
const FILE: &str = "scopes.json";

/// What was told, by driver.
#[derive(Default)]
pub struct Scopes {
    known: Mutex<BTreeMap<DriverName, Scope>>,
    file: Option<PathBuf>,
    /// Held by who changes it.
    writing: tokio::sync::Mutex<()>,
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
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => b"{\"scopes\":{}}".to_vec(),
            Err(error) => return Err(error).with_context(cannot),
        };
        let Kept { scopes } = serde_json::from_slice(&text).unwrap_or_else(|error| {
            warn!(file = %file.display(), %error, "what the cloud told cannot be read; it will tell it again");
            Kept::default()
        });
        Ok(Self { known: Mutex::new(scopes), file: Some(file), writing: Default::default() })
    }

    /// The scope of a driver; none if it was never told.
    pub fn of(&self, driver: &DriverName) -> Option<Scope> {
        self.known().get(driver).copied()
    }

    /// Takes what the cloud tells: first it is made durable, and then it counts, so that nobody is answered by what a
    /// restart forgets. What cannot be written is logged and counts all the same.
    pub async fn take(&self, told: BTreeMap<DriverName, Scope>) {
        let _one_at_a_time = self.writing.lock().await;
        let before = self.known().clone();
        let mut now = before.clone();
        now.extend(told);
        if now == before {
            return;
        }
        if let Some(file) = self.file.clone() {
            keep(file, Kept { scopes: now.clone() }).await;
        }
        for (driver, scope) in now.iter().filter(|(driver, scope)| before.get(*driver) != Some(*scope)) {
            info!(%driver, ?scope, "the cloud says how far the driver's volumes reach");
        }
        *self.known() = now;
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<DriverName, Scope>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn keep(file: PathBuf, kept: Kept) {
    let path = file.clone();
    let write = move || -> anyhow::Result<()> {
        Ok(publish(&path, &serde_json::to_vec(&kept)?, 0o600, Existing::Replace)?)
    };
    let written = tokio::task::spawn_blocking(write).await.context("it was broken off");
    if let Err(error) = written.and_then(|written| written) {
        let (file, error) = (file.display(), format!("{error:#}"));
        warn!(%file, error, "what the cloud told cannot be kept; after a restart without the cloud it is lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    #[tokio::test]
    async fn what_was_told_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/here");
        let scopes = Scopes::open(&state).unwrap();
        assert_eq!(scopes.of(&driver()), None);
        scopes.take([(driver(), Scope::Node)].into()).await;
        // A cloud that does not know it does not take it back.
        scopes.take(BTreeMap::new()).await;
        assert_eq!(Scopes::open(&state).unwrap().of(&driver()), Some(Scope::Node));
        scopes.take([(driver(), Scope::Shared)].into()).await;
        assert_eq!(Scopes::open(&state).unwrap().of(&driver()), Some(Scope::Shared));
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 1, "something was left behind");
    }

    #[tokio::test]
    async fn a_file_that_is_damaged_or_cannot_be_written_is_no_end() {
        let dir = tempfile::tempdir().unwrap();
        publish(&dir.path().join(FILE), b"{\"scopes\":", 0o600, Existing::Keep).unwrap();
        let scopes = Scopes::open(dir.path()).unwrap();
        assert_eq!(scopes.of(&driver()), None);
        dir.close().unwrap();
        scopes.take([(driver(), Scope::Node)].into()).await;
        assert_eq!(scopes.of(&driver()), Some(Scope::Node));
    }
}
