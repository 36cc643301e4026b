//! Scopes of this node's drivers, as the operator told the cloud and the cloud told this node.
//!
//! A file keeps them, so a node that starts without the cloud answers its kubelet as before. A
//! scope holds until the cloud tells another. It uses no other room.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use proto::csi::topology::Scope;
use proto::host::publish::{Existing, publish};
use proto::names::DriverName;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

/// The file's name in the state directory.
const FILE: &str = "scopes.json";

/// The scopes of drivers.
#[derive(Default)]
pub struct Scopes {
    known: Mutex<BTreeMap<DriverName, Scope>>,
    /// Told by the cloud, and not in force yet.
    told: Mutex<BTreeMap<DriverName, Scope>>,
    file: Option<PathBuf>,
    /// The file's content; held while writing.
    kept: tokio::sync::Mutex<BTreeMap<DriverName, Scope>>,
}

/// What the file holds.
#[derive(Default, Serialize, Deserialize)]
struct Kept {
    scopes: BTreeMap<DriverName, Scope>,
}

impl Scopes {
    /// Reads the scopes in this state directory, which is created if needed. A damaged file counts
    /// as empty, because the cloud tells the scopes again.
    ///
    /// # Errors
    /// The directory cannot be created, or the file cannot be opened.
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
            let file = file.display();
            warn!(%file, %error, "what the cloud told cannot be read; it will tell it again");
            Kept::default()
        });
        let known = Mutex::new(scopes.clone());
        let kept = tokio::sync::Mutex::new(scopes);
        Ok(Self { known, told: Mutex::default(), file: Some(file), kept })
    }

    /// The scope of a driver; none if the cloud never told it.
    pub fn of(&self, driver: &DriverName) -> Option<Scope> {
        self.known().get(driver).copied()
    }

    /// Takes scopes from the cloud; [`Scopes::settle`] puts them in force.
    pub fn hear(&self, told: BTreeMap<DriverName, Scope>) {
        self.told().extend(told);
    }

    /// Makes the told scopes durable and then puts them in force, so a restart forgets no answer. A
    /// scope that cannot be written is logged, is in force anyway, and is written when it is told
    /// again.
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
        // What the cloud told meanwhile is left for the next call.
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

/// Writes the file; false if that failed.
async fn keep(file: PathBuf, kept: Kept) -> bool {
    let path = file.clone();
    let write = move || -> anyhow::Result<()> {
        Ok(publish(&path, &serde_json::to_vec(&kept)?, 0o600, Existing::Replace)?)
    };
    let written = tokio::task::spawn_blocking(write).await.context("it was broken off");
    let Err(error) = written.and_then(|written| written) else { return true };
    let file = file.display();
    let error = format!("{error:#}");
    warn!(
        %file, error,
        "what the cloud told cannot be kept; after a restart without the cloud it is lost"
    );
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
        // A cloud that does not know the scope does not revoke it.
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
        // The disk is back, and the cloud tells the same again.
        std::fs::create_dir(&path).unwrap();
        take(&scopes, [(driver(), Scope::Node)].into()).await;
        assert_eq!(Scopes::open(&path).unwrap().of(&driver()), Some(Scope::Node));
        std::fs::remove_dir_all(&path).unwrap();
    }
}
