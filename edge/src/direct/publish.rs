//! Hands a volume over: the driver publishes it at our path, it is made ready, and the runtime is told.
//!
//! All that can refuse it for good is looked at before the driver is asked. After that no failure is final, because a
//! kubelet unpublishes only what it was not told had failed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::csi::direct::Kind as Wants;
use proto::error::Error;
use tonic::Code;
use tracing::warn;

use super::asked::{Publish, targeted};
use super::format;
use super::format::{FormatError, Ready, Wanted};
use super::journal::Journal;
use super::mount_info::MountInfo;
use super::own::rounds::is_orphan;
use super::published;
use super::published::{Kind, Published, State};
use super::runtime::offline;
use super::runtime::offline::Growing;
use super::standing::{Absent, Standing};
use super::{Asking, Direct, block, done, name, not_yet, place, spdk, vfio};
use crate::share::Outcome;

const HANDED_OVER: &str = "handed over directly";

impl Direct {
    pub(super) async fn publish(&self, asking: &Asking<'_>, publish: Publish) -> Outcome {
        self.take_back_orphans(asking, &publish.volume_id).await?;
        let state = self.state(&publish.volume_id)?;
        let there = published::of(state, asking.driver.as_str(), &publish.volume_id);
        let there = there.map_err(not_yet(&publish.volume_id, HANDED_OVER))?;
        let record = self.planned(asking, &publish);
        let record = record.and_then(|record| self.can_be(&record, &there).map(|()| record));
        let record = record.map_err(|error| unless_begun(error, &publish, &there))?;
        let owned = self.own(asking.driver, &publish.volume_id, (&publish.target, !there.is_empty())).await;
        owned.map_err(|error| unless_begun(error, &publish, &there))?;
        let before = there.first();
        if let Some(before) = before {
            match self.standing(before).await {
                Standing::Same if before.state == State::Published => return self.again(before, &record),
                Standing::Unknown(why) if before.state == State::Published => {
                    return Err(not_yet(&publish.volume_id, HANDED_OVER)(why));
                }
                // A guest may have what it was, and what was cut short while it was handed over is the host's again.
                _ => self.withdraw(before, Absent::Lost).await?,
            }
        }
        let not_yet = not_yet::<io::Error>(&publish.volume_id, HANDED_OVER);
        // Before the driver is asked, so that whatever happens is taken back.
        record.keep(state).map_err(&not_yet)?;
        let parent = record.private_path.parent().unwrap_or_else(|| Path::new("/"));
        place::make_private(parent).map_err(&not_yet)?;
        let answer = self.ask(asking, asking.rpc, &targeted(&publish.message, &record.private_path)).await?;
        if let Some(status) = answer.failure() {
            if is_final(status.code()) && before.is_some() {
                // An earlier attempt may have published it, and a kubelet that is told no would not unpublish it.
                let said = status.to_string();
                return Err(super::not_yet(&publish.volume_id, HANDED_OVER)(said));
            }
            if is_final(status.code()) {
                // It says that it has published nothing.
                place::remove_empty(&record.private_path).map_err(&not_yet)?;
                record.forget(state).map_err(&not_yet)?;
            }
            return Ok(answer);
        }
        self.hand_over(record, &publish).await?;
        Ok(answer)
    }

    /// Takes back what was handed over to pods that are gone.
    pub(super) async fn take_back_orphans(
        &self,
        asking: &Asking<'_>,
        volume: &str,
    ) -> Result<(), Arc<Error>> {
        let there = published::of(self.state(volume)?, asking.driver.as_str(), volume);
        let there = there.map_err(not_yet(volume, HANDED_OVER))?;
        for record in there.iter().filter(|record| is_orphan(record)) {
            let target = record.target.display();
            // Nobody has asked the driver for it yet. While a guest has it, it is left as it is.
            self.is_let_go(record, Absent::Lost).await.map_err(not_yet(volume, "taken back"))?;
            warn!(volume, %target, "the pod's directory is gone; what was handed over there is taken back");
            let answer = self.unpublish(asking, record).await?;
            let failed = answer.failure().map(|status| status.to_string());
            failed.map_or(Ok(()), |status| Err(not_yet(volume, HANDED_OVER)(status)))?;
        }
        Ok(())
    }

    /// The record of what is to be; or why it cannot be.
    fn planned(&self, asking: &Asking<'_>, publish: &Publish) -> Result<Published, Arc<Error>> {
        let volume = &publish.volume_id;
        let state = self.state(volume)?;
        let refused = |why: String| Error::DirectRefused { volume: volume.clone(), why };
        let driver = asking.driver.as_str();
        self.host.sees_all().map_err(|error| refused(proto::error::chain(&error)))?;
        let kind = match publish.direct.kind {
            Wants::Block => Kind::Block,
            Wants::Vfio => Kind::Vfio,
            Wants::Spdk => Kind::Spdk,
        };
        let given = &publish.target;
        let target = place::canonical(given);
        let target = target.map_err(|error| refused(format!("target {}: {error}", given.display())))?;
        let key = name(&[driver.as_bytes(), volume.as_bytes(), target.as_os_str().as_encoded_bytes()]);
        let hosts = place::is_hosts(&self.host.proc, given, &target);
        hosts.map_err(|error| refused(format!("target {}: {error}", given.display())))?;
        Ok(Published {
            volume_id: volume.clone(),
            driver: driver.to_owned(),
            private_path: place::private(state, &target, &key),
            target,
            target_as_given: given.clone(),
            staging: publish.staging.clone(),
            device: PathBuf::new(),
            number: 0,
            boot: self.host.boot(),
            uuid: String::new(),
            fstype: publish.mount.file_system.map(|it| it.as_str().to_owned()).unwrap_or_default(),
            options: publish.options.clone(),
            metadata: publish.metadata.clone(),
            kind,
            state: State::Begun,
        })
    }

    /// Refuses what others stand against.
    fn can_be(&self, record: &Published, there: &[Published]) -> Result<(), Arc<Error>> {
        let Published { volume_id, driver, target, .. } = record;
        let refused = |why: String| Error::DirectRefused { volume: volume_id.clone(), why };
        if let Some(other) = there.iter().find(|other| other.target != *target) {
            let at = other.target.display();
            return Err(refused(format!("it is at {at}, and one guest owns it; unpublish it there")).into());
        }
        let open = self.root.is_open(target, driver, volume_id);
        open.map_err(|error| refused(proto::error::chain(&error)))?;
        let open = place::is_open(target);
        open.map_err(|error| refused(format!("target {}: {error}", target.display())))?;
        Ok(())
    }

    pub(super) fn state(&self, volume: &str) -> Result<&Path, Arc<Error>> {
        let missing =
            || Error::DirectRefused { volume: volume.to_owned(), why: "there is no --state".into() };
        self.state.as_deref().ok_or_else(|| missing().into())
    }

    /// Answers for what is published already. The device is not touched: a guest may have it.
    fn again(&self, there: &Published, wanted: &Published) -> Outcome {
        let same_type = wanted.fstype.is_empty() || wanted.fstype == there.fstype;
        if !same_type || (&wanted.options, &wanted.metadata) != (&there.options, &there.metadata) {
            let (volume, target) = (there.volume_id.clone(), there.target.display().to_string());
            return Err(Error::DirectDiffers { volume, target }.into());
        }
        self.show(there)?;
        Ok(done())
    }

    /// Makes what the driver published ready, and gives it to the runtime.
    async fn hand_over(&self, mut record: Published, publish: &Publish) -> Result<(), Arc<Error>> {
        let volume = record.volume_id.clone();
        let state = self.state(&volume)?;
        match record.kind {
            Kind::Block | Kind::Vfio => self.take_device(&mut record, publish).await?,
            Kind::Spdk => {
                let socket = spdk::socket(&record.private_path);
                record.device = socket.map_err(not_yet(&volume, HANDED_OVER))?;
                record.fstype = publish.mount.file_system.unwrap_or_default().as_str().into();
            }
        }
        if record.kind == Kind::Vfio {
            let pci = vfio::controller(&self.host, record.number).map_err(not_yet(&volume, HANDED_OVER))?;
            record.device.clone_from(&pci.device);
            // So that it is found and given back, whatever happens now.
            record.keep(state).map_err(not_yet(&volume, HANDED_OVER))?;
            let host = self.host.clone();
            let given = vfio::aside(move || pci.hand_over(&host, &vfio::kernel)).await;
            given.map_err(not_yet(&volume, HANDED_OVER))?;
        }
        record.state = State::Published;
        record.keep(state).map_err(not_yet(&volume, HANDED_OVER))?;
        self.show(&record)
    }

    /// Finds the block device that the driver has published, and sees to its file system.
    async fn take_device(&self, record: &mut Published, publish: &Publish) -> Result<(), Arc<Error>> {
        let volume = record.volume_id.clone();
        let device = block::device(&self.host, &record.private_path).await;
        let device = device.map_err(not_yet(&volume, HANDED_OVER))?;
        self.claim(record, &device)?;
        let growing = Growing::of(self.state(&volume)?);
        let mended = offline::mend(&self.host, &growing, &record.private_path).await;
        mended.map_err(not_yet(&volume, HANDED_OVER))?;
        let ready = self.ready(record, publish).await.map_err(not_yet(&volume, HANDED_OVER))?;
        // It may have grown while nobody had it; once it is handed over, only the guest can grow it.
        let file_system = (ready.file_system.as_str(), ready.uuid.as_str());
        let filled = offline::fill(&self.host, &growing, &record.private_path, file_system).await;
        filled.map_err(not_yet(&volume, HANDED_OVER))?;
        record.device = device.path;
        (record.fstype, record.uuid) = (ready.file_system.as_str().to_owned(), ready.uuid);
        Ok(())
    }

    /// Gives the host back what a VM was given as a PCI device, if it was.
    pub(super) async fn give_back(&self, record: &Published) -> Result<(), Arc<Error>> {
        // After a boot the kernel has given its devices to their own drivers.
        if record.kind != Kind::Vfio
            || record.device.as_os_str().is_empty()
            || self.host.is_other_boot(&record.boot)
        {
            return Ok(());
        }
        let (host, device) = (self.host.clone(), record.device.clone());
        let given = vfio::aside(move || match vfio::handed_over(&host, &device)? {
            Some(pci) => pci.give_back(&host, &vfio::kernel),
            None => Ok(()),
        });
        given.await.map_err(not_yet(&record.volume_id, "given back to the host"))
    }

    async fn ready(&self, record: &Published, publish: &Publish) -> Result<Ready, FormatError> {
        // Without a state directory it has not come so far.
        let state = self.state.as_deref().unwrap_or_else(|| Path::new("/"));
        let journal = Journal::of(state, &record.driver, &record.volume_id);
        let Publish { direct, mount, .. } = publish;
        let wanted = Wanted {
            file_system: mount.file_system,
            mkfs: &direct.mkfs,
            blank: direct.blank,
            fsck: direct.fsck,
        };
        format::ready(&record.private_path, &journal, wanted, &|_| Ok(())).await
    }

    /// Tells the runtime, and makes the directory in whose place it mounts.
    pub(super) fn show(&self, record: &Published) -> Result<(), Arc<Error>> {
        let not_yet = not_yet::<io::Error>(&record.volume_id, HANDED_OVER);
        place::make_target(&record.target).map_err(not_yet)?;
        let shown = self.root.publish(&record.target, &info(record));
        shown.map_err(super::not_yet(&record.volume_id, HANDED_OVER))
    }
}

/// A refusal, unless the driver was asked before for the same target: then a final answer would be the kubelet's last word
/// about it, and nobody would unpublish what there is.
fn unless_begun(error: Arc<Error>, publish: &Publish, there: &[Published]) -> Arc<Error> {
    let begun = there.iter().any(|there| [&there.target, &there.target_as_given].contains(&&publish.target));
    if begun && is_final(error.code()) { not_yet(&publish.volume_id, HANDED_OVER)(error) } else { error }
}

/// What the runtime is told.
pub(super) fn info(record: &Published) -> MountInfo {
    let volume_type = match record.kind {
        Kind::Block => block::TYPE,
        Kind::Vfio => vfio::TYPE,
        Kind::Spdk => spdk::TYPE,
    };
    MountInfo {
        volume_type: volume_type.into(),
        device: record.device.display().to_string(),
        fstype: record.fstype.clone(),
        metadata: record.metadata.clone(),
        options: record.options.clone(),
    }
}

/// Whether a driver that answers this code has surely published nothing; as the kubelet has it.
fn is_final(code: Code) -> bool {
    !matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    )
}

#[cfg(test)]
mod tests {
    use super::super::published::tests::record;
    use super::*;

    #[test]
    fn what_was_begun_is_not_refused_for_good() {
        let refused = || Error::DirectRefused { volume: "v".into(), why: "files".into() }.into();
        let direct = proto::csi::direct::Direct::read(
            &[(proto::csi::direct::KEY.to_owned(), "kata".to_owned())].into(),
        );
        let direct = direct.unwrap().unwrap();
        let publish = |target: &str| Publish {
            volume_id: "v".into(),
            target: target.into(),
            staging: PathBuf::new(),
            direct: direct.clone(),
            mount: proto::csi::direct::Mount { file_system: None, flags: Vec::new(), group: String::new() },
            options: Vec::new(),
            metadata: Default::default(),
            message: Vec::new(),
        };
        for (target, code) in [
            ("/pods/p/mount", Code::Unavailable),
            ("/link/p/mount", Code::Unavailable),
            ("/pods/other/mount", Code::FailedPrecondition),
        ] {
            let error = unless_begun(refused(), &publish(target), &[record("v")]);
            assert_eq!(error.code(), code, "{target}");
            assert!(error.chain().contains("files"));
        }
        assert_eq!(unless_begun(refused(), &publish("/pods/p/mount"), &[]).code(), Code::FailedPrecondition);
    }
}
