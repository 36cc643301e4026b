//! Keeps the drivers that were found, for a start without their registrars.
//!
//! After a power cut a kubelet asks at a driver's front before the vendor's registrar speaks again.
//! A file keeps where each driver was, with the node's name: a copy says nothing at another node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use proto::host::files;
use proto::host::files::Unread;
use proto::host::publish::publish_record;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// The file's name in the state directory.
pub(super) const FILE: &str = "found.json";
/// The drivers that are kept: those of one node that csi-cloud takes, unless its operator says
/// otherwise.
pub(super) const MOST: usize = 64;

/// What csi-edge is in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// It tells each registrar what became of its driver.
    Kubelet,
    /// A kubelet does that.
    Observer,
}

/// A driver that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptDriver {
    pub(super) driver: DriverName,
    pub(super) socket: PathBuf,
    /// The socket of its registrar.
    pub(super) registrar: PathBuf,
    /// What csi-edge was in the registrar's directory.
    pub(super) role: Role,
}

/// What the file holds.
#[derive(Serialize, Deserialize)]
struct DriversRecord {
    node: NodeName,
    drivers: Vec<KeptDriver>,
}

/// The drivers that were found, and the file that keeps them.
#[derive(Default)]
pub(super) struct FoundFile {
    drivers: BTreeMap<DriverName, KeptDriver>,
    /// Where they are kept, and at which node.
    at: Option<(PathBuf, NodeName)>,
    /// The file has something else.
    is_due: bool,
    /// The last attempt to write it failed.
    has_failed: bool,
}

impl FoundFile {
    /// Reads the file in this state directory, if there is one, and returns its drivers. A file
    /// that is damaged, cannot be read, or is another node's counts as empty.
    pub(super) fn open(directory: Option<&Path>, node: NodeName) -> (Self, Vec<KeptDriver>) {
        let at = directory.map(|directory| (directory.join(FILE), node));
        let drivers = at.as_ref().map(|(file, node)| read(file, node)).unwrap_or_default();
        (Self { at, ..Self::default() }, drivers)
    }

    /// Takes a driver, if there is room, in place of what is known of it.
    pub(super) fn take(&mut self, driver: KeptDriver) {
        let known = self.drivers.get(&driver.driver);
        if known == Some(&driver) || (known.is_none() && self.drivers.len() >= MOST) {
            return;
        }
        self.drivers.insert(driver.driver.clone(), driver);
        self.is_due = true;
    }

    /// Has the file written again by the next [`FoundFile::keep`].
    pub(super) fn set_due(&mut self) {
        self.is_due = true;
    }

    /// Writes the file if it has something else. A failure is logged, and tried again next time.
    pub(super) async fn keep(&mut self) {
        let Some((file, node)) = self.at.clone().filter(|_| self.is_due) else { return };
        let kept = DriversRecord { node, drivers: self.drivers.values().cloned().collect() };
        let path = file.clone();
        let written = tokio::task::spawn_blocking(move || publish_record(&path, &kept)).await;
        let written = written.context("it was broken off").and_then(|written| Ok(written?));
        self.is_due = written.is_err();
        if let Err(error) = &written
            && !self.has_failed
        {
            let file = file.display();
            let error = format!("{error:#}");
            warn!(
                %file, error,
                "the drivers that were found cannot be kept; after a restart, nothing is answered \
                 for them until they announce themselves"
            );
        }
        self.has_failed = written.is_err();
    }
}

fn read(file: &Path, node: &NodeName) -> Vec<KeptDriver> {
    let kept = match files::read(file) {
        Ok(text) => serde_json::from_slice::<DriversRecord>(&text).context("it is damaged"),
        Err(Unread::Missing) => return Vec::new(),
        Err(error) => Err(error.into()),
    };
    let kept = kept.and_then(|kept| match kept.node == *node {
        true => Ok(kept.drivers),
        false => anyhow::bail!("it is of the node {}, and this is {node}", kept.node),
    });
    match kept {
        Ok(mut drivers) => {
            drivers.truncate(MOST);
            drivers
        }
        Err(error) => {
            let file = file.display();
            let error = format!("{error:#}");
            warn!(
                %file, error,
                "the drivers that were found before cannot be used; until they announce \
                 themselves again, nothing is answered for them"
            );
            Vec::new()
        }
    }
}
