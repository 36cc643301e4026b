//! Lists the direct volumes of this node out of records, entries and sandboxes, for people and
//! programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use proto::host::chain;
use serde::Serialize;

use crate::device::host::Host;
use crate::lease::record;
use crate::lease::record::Lease;
use crate::records::published;
use crate::records::published::{Kind, Published, State};
use crate::runtimes::stats::{Stats, Usage};
use crate::runtimes::{Holder, Runtimes};
use crate::volume::cover;

/// A direct volume, or a foreign entry.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Its id; empty for a foreign entry.
    pub volume_id: String,
    /// Its driver's CSI name; empty for a foreign entry.
    pub driver: String,
    /// The mount source by which runtimes know it.
    pub target: PathBuf,
    /// How it stands.
    pub standing: Standing,
    /// How it is handed over.
    pub kind: Option<Kind>,
    /// What the runtime is given.
    pub device: PathBuf,
    /// The file system's type.
    pub fstype: String,
    /// The runtime that has it.
    pub runtime: Option<&'static str>,
    /// The sandbox that has it.
    pub sandbox: Option<String>,
    /// Sandboxes that had it and are gone.
    pub stale: Vec<String>,
    /// Its lease; none for a foreign entry, or if no other node could have it.
    pub lease: Option<Lease>,
    /// Why it is not known whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Where the node's directory is shared with a pod instead of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_at: Option<PathBuf>,
    /// What its guest says of it, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Guest>,
}

/// How a volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Its publication is running or was interrupted.
    Begun,
    /// It is handed over.
    Published,
    /// It is handed over, and a runtime shared the node's directory instead: `shared_at` says
    /// where. Its pod cannot write; `csi-edge direct check` says what to mend.
    #[serde(rename = "not taken")]
    NotTaken,
    /// Its entry is gone, as after a reboot, and should be there.
    Lost,
    /// An operator has taken it from this node; `lease` says why. Unpublishing it ends that.
    Fenced,
    /// An entry without a record: somebody else's.
    Foreign,
}

/// A guest's statistics.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Guest {
    /// Bytes: in all, taken and free.
    pub bytes: Option<[u64; 3]>,
    /// Inodes: in all, taken and free.
    pub inodes: Option<[u64; 3]>,
    /// What is wrong with the volume, in the guest's words.
    pub abnormal: Option<String>,
    /// Why there are no numbers.
    pub silent: Option<String>,
}

/// All direct volumes, by target, and foreign entries.
///
/// # Errors
/// The records or the entries cannot be read.
pub async fn all(state: &Path, runtimes: &Runtimes) -> anyhow::Result<Vec<Volume>> {
    let of = || format!("the records in {} cannot be read", state.display());
    let records = published::all(state).with_context(of)?;
    let mut entries = runtimes.targets().context("the entries cannot be read")?;
    let mut volumes = BTreeMap::new();
    for record in &records {
        entries.retain(|target| *target != record.target);
        volumes.insert(record.target.clone(), volume(state, record, runtimes).await?);
    }
    let foreign = entries.into_iter().map(|target| (target.clone(), foreign(target)));
    volumes.extend(foreign);
    Ok(volumes.into_values().collect())
}

async fn volume(state: &Path, record: &Published, runtimes: &Runtimes) -> anyhow::Result<Volume> {
    let holder = runtimes.holder(record).await?;
    let kept = record::of(state, &record.driver, &record.volume_id);
    // A damaged lease affects this volume only.
    let (lease, fault) = match kept {
        Ok(kept) => (kept.map(|kept| kept.lease), None),
        Err(error) => (None, Some(chain(&error))),
    };
    let shared_at = cover::shared_at(&Host::default().proc, &record.target)?;
    let standing = match (&holder, record.state) {
        _ if matches!(lease, Some(Lease::Fenced { .. })) => Standing::Fenced,
        (_, State::Begun) => Standing::Begun,
        (Holder::NotHandedOver, State::Published) => Standing::Lost,
        // A sandbox that somebody recorded, such as our NRI plugin, proves nothing against this.
        _ if shared_at.is_some() => Standing::NotTaken,
        _ => Standing::Published,
    };
    let (runtime, sandbox, stale) = match holder {
        Holder::NotHandedOver => (None, None, Vec::new()),
        Holder::Nobody { stale } => (None, None, stale.iter().map(ToString::to_string).collect()),
        Holder::Live { runtime, sandbox } => {
            (Some(runtime.name()), Some(sandbox.to_string()), Vec::new())
        }
    };
    Ok(Volume {
        volume_id: record.volume_id.clone(),
        driver: record.driver.clone(),
        target: record.target.clone(),
        standing,
        kind: Some(record.kind),
        device: record.device.clone(),
        fstype: record.fstype.clone(),
        runtime,
        sandbox,
        stale,
        lease,
        fault,
        shared_at,
        guest: None,
    })
}

fn foreign(target: PathBuf) -> Volume {
    Volume {
        volume_id: String::new(),
        driver: String::new(),
        target,
        standing: Standing::Foreign,
        kind: None,
        device: PathBuf::new(),
        fstype: String::new(),
        runtime: None,
        sandbox: None,
        stale: Vec::new(),
        lease: None,
        fault: None,
        shared_at: None,
        guest: None,
    }
}

impl Volume {
    /// Asks the volume's guest for its statistics.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn ask(&mut self, state: &Path, runtimes: &Runtimes) -> anyhow::Result<()> {
        let records = published::of(state, &self.driver, &self.volume_id)?;
        let Some(record) = records.into_iter().find(|record| record.target == self.target) else {
            return Ok(());
        };
        self.guest = Some(match runtimes.stats(&record).await {
            Ok(stats) => guest(stats),
            Err(error) => {
                Guest { bytes: None, inodes: None, abnormal: None, silent: Some(chain(&error)) }
            }
        });
        Ok(())
    }
}

fn guest(stats: Stats) -> Guest {
    let three = |usage: Usage| [usage.total, usage.used, usage.available];
    let inodes = stats.inodes.map(three);
    Guest { bytes: Some(three(stats.bytes)), inodes, abnormal: stats.abnormal, silent: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::show;
    use crate::lease::record::Entry;
    use crate::records::published::tests::record;
    use crate::runtimes::{PATIENCE, Roots};
    use proto::host::publish::{Existing, publish};

    #[tokio::test]
    async fn a_damaged_lease_is_its_own_volumes_fault() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { entries: dir.path().join("entries"), ..Roots::default() };
        let runtimes = Runtimes::new(roots, PATIENCE);
        for (volume, epoch) in [("v", 5), ("w", 6)] {
            record(volume).keep(dir.path()).unwrap();
            let driver = "d.example".into();
            let volume_id = volume.into();
            let pod = String::new();
            Entry { driver, volume_id, pod, lease: Lease::Held { epoch } }
                .keep(dir.path())
                .unwrap();
        }
        let mut second = record("w");
        second.target = "/pods/q/mount".into();
        second.keep(dir.path()).unwrap();
        record("w").forget(dir.path()).unwrap();
        let kept = std::fs::read_dir(dir.path().join("direct/owners")).unwrap().flatten();
        let damaged = kept
            .map(|entry| entry.path())
            .find(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("\"v\"")));
        publish(&damaged.unwrap(), b"{", 0o600, Existing::Replace).unwrap();
        let volumes = all(dir.path(), &runtimes).await.unwrap();
        let seen: Vec<_> =
            volumes.iter().map(|it| (&*it.volume_id, it.fault.is_some(), &it.lease)).collect();
        assert_eq!(seen, [("v", true, &None), ("w", false, &Some(Lease::Held { epoch: 6 }))]);
        let mut shown = Vec::new();
        show::details(&mut shown, &volumes).unwrap();
        show::table(&mut shown, &volumes).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("is damaged") && shown.contains("lost, owner not known"), "{shown}");
    }
}
