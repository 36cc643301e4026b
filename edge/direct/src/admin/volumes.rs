//! Lists the direct volumes of this node out of records, entries and sandboxes, for people and
//! programs.

use std::path::{Path, PathBuf};

use anyhow::Context;
use proto::csi::direct::DeviceKind;
use proto::host::chain;
use rustix::fs::FileType;
use serde::Serialize;

use crate::device::host::{DeviceError, Host};
pub use crate::lease::exclusive::pod_in;
use crate::lease::record;
use crate::lease::record::Lease;
use crate::records::published;
use crate::records::published::{Damaged, PublicationState, Published};
use crate::runtimes::entry;
use crate::runtimes::entry::{DevicePath, EntryState};
use crate::runtimes::stats::{Stats, Usage};
use crate::runtimes::{Runtimes, VolumeSandbox};
use crate::volume::cover;

/// A direct volume, or a foreign entry.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectVolume {
    /// Its id; empty for a foreign entry without a record, and for a record that cannot be read.
    pub volume_id: String,
    /// Its driver's CSI name; empty with the id.
    pub driver: String,
    /// The mount source by which runtimes know it.
    pub target: PathBuf,
    /// Its standing.
    pub standing: Standing,
    /// The kind of its device.
    pub kind: Option<DeviceKind>,
    /// The uid of its pod, from the target's path; empty if that names none.
    pub pod_uid: String,
    /// The device that the runtime gets.
    pub device: PathBuf,
    /// The file system's type.
    pub fstype: String,
    /// The runtime that has it.
    pub runtime: Option<&'static str>,
    /// The sandbox that has it.
    pub sandbox: Option<String>,
    /// The process that has its device open, by id and name, if no live sandbox is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Sandboxes that had it and are gone.
    pub stale: Vec<String>,
    /// Its lease; none for a foreign entry, or if no other node could have it.
    pub lease: Option<Lease>,
    /// The fault of its record, its entry or its device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// The reason why its owner is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The place at which a pod shares the node's directory instead of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_at: Option<PathBuf>,
    /// The guest's report, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Guest>,
}

/// The standing of a volume.
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
    /// Its guest may have it, and no other gets its device: `damage` says why, and what ends that.
    Withheld,
    /// It is being unpublished, and its guest still has it. Its entry is gone.
    Withdrawing,
    /// An operator has taken it from this node; `lease` says why. Unpublishing it ends that.
    Fenced,
    /// Its record cannot be read, its entry is not what the record says, or its device is another;
    /// `damage` says which.
    Damaged,
    /// An entry of somebody else's: without a record, or in place of the volume's own.
    Foreign,
}

impl Standing {
    /// Its word, as JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Published => "published",
            Self::NotTaken => "not taken",
            Self::Lost => "lost",
            Self::Withheld => "withheld",
            Self::Withdrawing => "withdrawing",
            Self::Fenced => "fenced",
            Self::Damaged => "damaged",
            Self::Foreign => "foreign",
        }
    }

    /// True if its runtime is told less, or something else, than its record says, or did not take
    /// it.
    pub fn is_fault(self) -> bool {
        match self {
            Self::Lost | Self::Damaged | Self::Foreign | Self::NotTaken | Self::Withheld => true,
            Self::Begun | Self::Published | Self::Fenced | Self::Withdrawing => false,
        }
    }
}

/// A guest's statistics.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Guest {
    /// Bytes: in all, taken and free.
    pub bytes: Option<[u64; 3]>,
    /// Inodes: in all, taken and free.
    pub inodes: Option<[u64; 3]>,
    /// The fault of the volume, in the guest's words.
    pub abnormal: Option<String>,
    /// The reason why there are no numbers.
    pub silent: Option<String>,
}

/// All direct volumes, by target, and foreign entries. A damaged one hides no other.
///
/// # Errors
/// The directory of the records or that of the entries cannot be read.
pub async fn all(state: &Path, runtimes: &Runtimes) -> anyhow::Result<Vec<DirectVolume>> {
    let of = || format!("the records in {} cannot be read", state.display());
    let records = published::each(state).with_context(of)?;
    let mut entries = runtimes.targets().context("the entries cannot be read")?;
    let mut volumes = Vec::new();
    for record in &records {
        volumes.push(match record {
            Ok(record) => {
                entries.retain(|target| *target != record.target);
                volume(state, record, runtimes).await
            }
            Err(damaged) => unread(damaged),
        });
    }
    volumes.extend(entries.into_iter().map(foreign));
    volumes.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(volumes)
}

/// The standing of a volume, and its fault.
fn standing(
    record: &Published,
    lease: Option<&Lease>,
    runtimes: &Runtimes,
) -> (Standing, Option<String>) {
    if matches!(lease, Some(Lease::Fenced { .. })) {
        return (Standing::Fenced, None);
    }
    if record.state == PublicationState::Begun {
        return (Standing::Begun, None);
    }
    let device = record.device.display();
    match entry::compare(&runtimes.root(), record) {
        Ok(EntryState::Missing) if record.custody.withdrawing => (Standing::Withdrawing, None),
        Ok(EntryState::Missing) => (Standing::Lost, None),
        Ok(EntryState::Damaged(why)) => (Standing::Damaged, Some(format!("its entry: {why}"))),
        Ok(EntryState::Foreign(why)) => {
            (Standing::Foreign, Some(format!("what is in place of its entry: {why}")))
        }
        Ok(EntryState::Same) if record.custody.withheld.is_some() => {
            (Standing::Withheld, record.custody.withheld.clone())
        }
        Ok(EntryState::Same) => match entry::device(record) {
            Ok(DevicePath::Same) => (Standing::Published, None),
            Ok(DevicePath::Gone) => (Standing::Damaged, Some(format!("{device} is not there"))),
            Ok(DevicePath::Another) => {
                (Standing::Damaged, Some(format!("{device} is another device now")))
            }
            Err(error) => (Standing::Damaged, Some(format!("{device}: {error}"))),
        },
        Err(error) => (Standing::Damaged, Some(chain(&error))),
    }
}

async fn volume(state: &Path, record: &Published, runtimes: &Runtimes) -> DirectVolume {
    let kept = record::of(state, &record.driver, &record.volume_id);
    // A damaged lease affects this volume only.
    let (lease, fault) = match kept {
        Ok(kept) => (kept.map(|kept| kept.lease), None),
        Err(error) => (None, Some(chain(&error))),
    };
    let (mut standing, mut damage) = standing(record, lease.as_ref(), runtimes);
    let shared_at = cover::shared_at(&Host::default().proc, &record.target);
    let shared_at = shared_at.unwrap_or_else(|error| {
        damage.get_or_insert_with(|| format!("who shares the target is not known: {error}"));
        None
    });
    // A sandbox that somebody recorded, such as our NRI plugin, proves nothing against this.
    if standing == Standing::Published && shared_at.is_some() {
        standing = Standing::NotTaken;
    }
    let (holder, unknown) = match runtimes.holder(record).await {
        Ok(holder) => (holder, None),
        Err(error) => (VolumeSandbox::NotHandedOver, Some(chain(&error))),
    };
    let (process, unknown) = match (&holder, unknown) {
        (VolumeSandbox::Live { .. }, unknown) => (None, unknown),
        (_, unknown) => match open_in(&Host::default(), record) {
            Ok(process) => (process, unknown),
            Err(error) => (None, unknown.or_else(|| Some(chain(&error)))),
        },
    };
    let (runtime, sandbox, stale) = match holder {
        VolumeSandbox::NotHandedOver => (None, None, Vec::new()),
        VolumeSandbox::Nobody { stale } => {
            (None, None, stale.iter().map(ToString::to_string).collect())
        }
        VolumeSandbox::Live { runtime, sandbox } => {
            (Some(runtime.name()), Some(sandbox.to_string()), Vec::new())
        }
    };
    DirectVolume {
        volume_id: record.volume_id.clone(),
        driver: record.driver.clone(),
        target: record.target.clone(),
        pod_uid: pod_in(&record.target_as_given),
        standing,
        kind: Some(record.kind),
        device: record.device.clone(),
        fstype: record.fstype.clone(),
        runtime,
        sandbox,
        process,
        stale,
        lease,
        damage: damage.or(unknown),
        fault,
        shared_at,
        guest: None,
    }
}

/// The process that has a published volume's device open. runtime-rs records no sandbox, and a VM
/// may outlive its shim.
///
/// # Errors
/// This is not known.
fn open_in(host: &Host, record: &Published) -> Result<Option<String>, DeviceError> {
    let is_open = record.kind == DeviceKind::Block
        && record.number != 0
        && record.state == PublicationState::Published
        && host.is_boot(&record.boot);
    if is_open { host.holder(FileType::BlockDevice, record.number) } else { Ok(None) }
}

fn unread(damaged: &Damaged) -> DirectVolume {
    let damage = Some(chain(damaged));
    DirectVolume { standing: Standing::Damaged, damage, ..foreign(PathBuf::new()) }
}

fn foreign(target: PathBuf) -> DirectVolume {
    DirectVolume {
        volume_id: String::new(),
        driver: String::new(),
        pod_uid: pod_in(&target),
        target,
        standing: Standing::Foreign,
        kind: None,
        device: PathBuf::new(),
        fstype: String::new(),
        runtime: None,
        sandbox: None,
        process: None,
        stale: Vec::new(),
        lease: None,
        damage: None,
        fault: None,
        shared_at: None,
        guest: None,
    }
}

impl DirectVolume {
    /// Asks the volume's guest for its statistics.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn ask(&mut self, state: &Path, runtimes: &Runtimes) -> anyhow::Result<()> {
        // What cannot be read, or is nobody's of ours, has no guest to be asked.
        if self.volume_id.is_empty() {
            return Ok(());
        }
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
    use crate::device::host::number;
    use crate::device::host::tests::{block_device, with_open};
    use crate::lease::record::LeaseEntry;
    use crate::records::published::tests::record;
    use crate::runtimes::mount_info::{DRIVER, FILE, VOLUME};
    use crate::runtimes::{PATIENCE, Roots};
    use proto::host::publish::{Existing, publish};
    use std::io;

    fn overwrite(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> io::Result<()> {
        publish(path.as_ref(), text.as_ref(), 0o600, Existing::Replace)
    }

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
            LeaseEntry { driver, volume_id, pod, lease: Lease::Held { epoch, mac: None } }
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
        assert!(volumes.iter().all(|volume| volume.standing == Standing::Lost));
        let seen: Vec<_> =
            volumes.iter().map(|it| (&*it.volume_id, it.fault.is_some(), &it.lease)).collect();
        assert_eq!(
            seen,
            [("v", true, &None), ("w", false, &Some(Lease::Held { epoch: 6, mac: None }))]
        );
        let mut shown = Vec::new();
        show::details(&mut shown, &volumes).unwrap();
        show::table(&mut shown, &volumes).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("is damaged") && shown.contains("lost, owner not known"), "{shown}");
    }

    #[test]
    fn who_has_a_volume_is_found_without_a_recorded_sandbox() {
        let Some(device) = block_device() else { return };
        let (_proc, host) = with_open(&device);
        let number = number(&device).unwrap();
        let there = Published { number, ..record("v") };
        assert_eq!(open_in(&host, &there).unwrap().as_deref(), Some("12 ()"));
        let before = Published { boot: "another".into(), ..there.clone() };
        assert_eq!(open_in(&host, &before).unwrap(), None, "numbers mean nothing after a boot");
        let begun = Published { state: PublicationState::Begun, ..there };
        assert_eq!(open_in(&host, &begun).unwrap(), None);
    }

    #[tokio::test]
    async fn one_damaged_volume_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { entries: dir.path().join("run/entries"), ..Roots::default() };
        let runtimes = Runtimes::new(roots, PATIENCE);
        let root = runtimes.root();
        let volume = |id: &str| {
            let metadata = [(DRIVER, "d.example"), (VOLUME, id)];
            let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            let device = "/dev/null".into();
            let number = rustix::fs::makedev(1, 3);
            let target = format!("/pods/{id}/mount").into();
            let record = Published { target, device, number, metadata, ..record(id) };
            record.keep(dir.path()).unwrap();
            entry::restore(&root, &record).unwrap();
            record
        };
        let file = |record: &Published| root.entry(&record.target).unwrap().join(FILE);
        volume("a-good");
        overwrite(file(&volume("b-cut")), b"{").unwrap();
        std::fs::remove_file(file(&volume("c-without"))).unwrap();
        let mut other = volume("d-another");
        other.number += 1;
        other.keep(dir.path()).unwrap();
        overwrite(file(&volume("e-foreign")), br#"{"volume-type":"blk","device":"/dev/x"}"#)
            .unwrap();
        let plain = root.entry(&volume("f-plain").target).unwrap();
        std::fs::remove_dir_all(&plain).unwrap();
        overwrite(&plain, b"x").unwrap();
        let records = dir.path().join("direct/published");
        std::fs::create_dir(records.join("damaged.json")).unwrap();
        std::fs::create_dir(root.entry(Path::new("/somebody/elses")).unwrap()).unwrap();

        let volumes = all(dir.path(), &runtimes).await.unwrap();
        let seen: Vec<_> = volumes.iter().map(|it| (&*it.volume_id, it.standing)).collect();
        let expected = [
            ("", Standing::Damaged),
            ("a-good", Standing::Published),
            ("b-cut", Standing::Damaged),
            ("c-without", Standing::Damaged),
            ("d-another", Standing::Damaged),
            ("e-foreign", Standing::Foreign),
            ("f-plain", Standing::Foreign),
            ("", Standing::Foreign),
        ];
        assert_eq!(seen, expected);
        let mut shown = Vec::new();
        show::table(&mut shown, &volumes).unwrap();
        show::details(&mut shown, &volumes).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        for why in ["damaged.json", "another device now", "no mountInfo.json", "no directory"] {
            assert!(shown.contains(why), "{why}: {shown}");
        }
        assert!(shown.contains("6 of 8 are damaged"), "{shown}");
    }
}
