//! Hands a volume to its runtime: lease, record, driver, device, file system, entry, in this order.
//!
//! The record makes cleanup possible, so it is durable before the driver is called. After the
//! driver's call every failure can be retried, because a kubelet skips unpublish after a final one.

use std::io;
use std::path::{Path, PathBuf};

use proto::csi::direct::FileSystem;
use proto::csi::status::ToStatus;
use proto::host::chain;
use proto::host::files::{make_private, name};
use tonic::Code;
use tracing::warn;

use super::driver_call::{CallResult, DriverCall};
use super::request::{Publish, targeted};
use super::state::Service;
use super::unpublish;
use super::xfs_gate;
use crate::error::{Error, HANDED_OVER, TAKEN_BACK, not_yet};
use crate::records::published;
use crate::records::published::{Custody, PublicationState, Published};
use crate::runtimes::prerequisites;
use crate::runtimes::prerequisites::CheckVerdict;
use crate::volume::attach;
use crate::volume::attach::FileSystemRequest;
use crate::volume::node::Node;
use crate::volume::orphan::is_orphan;
use crate::volume::release;
use crate::volume::release::Absent;
use crate::volume::target;
use crate::volume::verify::{DeviceMatch, verify};

pub(super) async fn publish(
    service: &Service,
    call: &DriverCall<'_>,
    publish: Publish,
) -> CallResult {
    let Service { node, leases, .. } = service;
    let volume = &publish.volume_id;
    node.lock(volume)?;
    take_back_orphans(node, call, volume).await?;
    let state = node.state(volume)?;
    let there = published::of(state, call.driver.as_str(), volume);
    let there = there.map_err(not_yet(volume, HANDED_OVER))?;
    let record = planned(node, call, &publish);
    let record = record.and_then(|record| is_possible(node, &record, &there).map(|()| record));
    let record = record.map_err(|error| unless_begun(error, &publish, &there))?;
    let no_xfs = xfs_refusal(service, &publish, &there).await;
    if publish.mount.file_system == Some(FileSystem::Xfs)
        && let Some(why) = &no_xfs
    {
        let refused = Error::DirectRefused { volume: volume.clone(), why: why.clone() };
        return Err(unless_begun(refused, &publish, &there));
    }
    if publish.pod.is_none() && node.without_pod.is_first(call.driver) {
        warn!(
            driver = %call.driver, volume,
            "the kubelet names no pod, so no Event can tell it of a volume that is not taken; set \
             podInfoOnMount in the driver's CSIDriver (pod_info_on_mount in csi-cloud's file)"
        );
    }
    let owned = leases.acquire(call.driver, volume, &publish.target, !there.is_empty()).await;
    owned.map_err(|error| unless_begun(error, &publish, &there))?;
    let before = there.first();
    if let Some(before) = before {
        if stands(node, before).await? {
            return again(node, before, &record);
        }
        // A guest may have the earlier device; an unfinished hand-over goes back to the host.
        release::withdraw(node, before, Absent::of(before)).await?;
    }
    // Until the driver has published it, it may still be taking it back.
    let record = Published { unpublishing: before.is_some_and(|it| it.unpublishing), ..record };
    let not_done = not_yet::<io::Error>(volume, HANDED_OVER);
    // Before the driver is called, so that whatever happens is taken back.
    record.keep(state).map_err(&not_done)?;
    let parent = record.private_path.parent().unwrap_or_else(|| Path::new("/"));
    make_private(parent).map_err(&not_done)?;
    let answer = call.send(&targeted(&publish.message, &record.private_path)).await?;
    if let Some(status) = answer.failure() {
        if is_final(status.code()) && before.is_some() {
            // An earlier attempt may have published it, and a kubelet that hears a final failure
            // does not unpublish.
            return Err(not_yet(volume, HANDED_OVER)(status.to_string()));
        }
        if is_final(status.code()) {
            // The driver has published nothing.
            target::remove_empty(&record.private_path).map_err(&not_done)?;
            record.forget(state).map_err(&not_done)?;
        }
        return Ok(answer);
    }
    let wanted = FileSystemRequest { direct: &publish.direct, mount: &publish.mount, no_xfs };
    attach::attach(node, record, wanted).await?;
    Ok(answer)
}

/// Why the pod does not get an xfs. `None` if it may, and for a volume that is handed over already:
/// its pod goes on. A guest that only reads destroys nothing.
async fn xfs_refusal(service: &Service, publish: &Publish, there: &[Published]) -> Option<String> {
    let is_first = there.iter().all(|there| there.state != PublicationState::Published);
    let is_written = !publish.options.iter().any(|option| option == "ro");
    if !is_first || !is_written || publish.mount.file_system == Some(FileSystem::Ext4) {
        return None;
    }
    xfs_gate::refusal(&service.node, &service.metadata, &publish.pod_uid).await
}

/// True if a volume is published as its record says. None is after its driver was asked to take it
/// back: the device's number may be another volume's soon.
///
/// # Errors
/// It cannot be found out whether the device is still the volume's.
async fn stands(node: &Node, before: &Published) -> Result<bool, Error> {
    if before.unpublishing || before.state != PublicationState::Published {
        return Ok(false);
    }
    match verify(node, before).await {
        DeviceMatch::Same => Ok(true),
        DeviceMatch::Another => Ok(false),
        DeviceMatch::Unknown(why) => Err(not_yet(&before.volume_id, HANDED_OVER)(why)),
    }
}

/// Takes back the volumes of pods that are gone.
///
/// # Errors
/// There is no state directory, the records cannot be read, a device is still in use, or a volume
/// cannot be unpublished.
pub(super) async fn take_back_orphans(
    node: &Node,
    call: &DriverCall<'_>,
    volume: &str,
) -> Result<(), Error> {
    let there = published::of(node.state(volume)?, call.driver.as_str(), volume);
    let there = there.map_err(not_yet(volume, HANDED_OVER))?;
    for record in there.iter().filter(|record| is_orphan(record)) {
        let target = record.target.display();
        // A guest that has it keeps it. Once the driver was asked, none has it.
        let released = release::wait_released(node, record, Absent::of(record)).await;
        released.map_err(not_yet(volume, TAKEN_BACK))?;
        warn!(
            volume, %target,
            "the pod's directory is gone; what was handed over there is taken back"
        );
        let answer = unpublish::unpublish(node, call, record).await?;
        if let Some(status) = answer.failure() {
            return Err(not_yet(volume, HANDED_OVER)(status.to_string()));
        }
    }
    Ok(())
}

/// The record of the publication; or why it cannot be.
fn planned(node: &Node, call: &DriverCall<'_>, publish: &Publish) -> Result<Published, Error> {
    let volume = &publish.volume_id;
    let state = node.state(volume)?;
    let refused = |why: String| Error::DirectRefused { volume: volume.clone(), why };
    let driver = call.driver.as_str();
    node.host.sees_all().map_err(|error| refused(chain(&error)))?;
    let given = &publish.target;
    let target = target::canonical(given);
    let target = target.map_err(|error| refused(format!("target {}: {error}", given.display())))?;
    let seen = target::is_hosts(&node.host.proc, given, &target);
    seen.map_err(|error| refused(format!("target {}: {error}", given.display())))?;
    let within = target::is_within(&node.targets, &target);
    within.map_err(|error| refused(format!("target {}: {error}", given.display())))?;
    let parts = [driver.as_bytes(), volume.as_bytes(), target.as_os_str().as_encoded_bytes()];
    let file_system = publish.mount.file_system;
    Ok(Published {
        volume_id: volume.clone(),
        driver: driver.to_owned(),
        private_path: target::private(state, &target, &name(&parts)),
        target,
        target_as_given: given.clone(),
        staging: publish.staging.clone(),
        device: PathBuf::new(),
        number: 0,
        boot: node.host.boot(),
        uuid: String::new(),
        fstype: file_system.map(|it| it.as_str().to_owned()).unwrap_or_default(),
        options: publish.options.clone(),
        metadata: publish.metadata.clone(),
        kind: publish.direct.kind,
        state: PublicationState::Begun,
        pod: publish.pod.clone(),
        unpublishing: false,
        custody: Custody::default(),
    })
}

/// Refuses a publication that conflicts with another one, or with content of the target.
fn is_possible(node: &Node, record: &Published, there: &[Published]) -> Result<(), Error> {
    let Published { volume_id, driver, target, .. } = record;
    let refused = |why: String| Error::DirectRefused { volume: volume_id.clone(), why };
    if let Some(other) = there.iter().find(|other| other.target != *target) {
        let at = other.target.display();
        let why = format!("it is at {at}, and one guest owns it; unpublish it there");
        return Err(refused(why));
    }
    let recorded = there.iter().any(|there| there.state == PublicationState::Published);
    let open = node.root.is_open(target, (driver, volume_id), recorded);
    open.map_err(|error| refused(chain(&error)))?;
    let open = target::is_open(target);
    open.map_err(|error| refused(format!("target {}: {error}", target.display())))?;
    runtimes_take(node, volume_id)
}

/// Refuses a publication if the node's runtimes would not take it and the configuration demands the
/// check.
fn runtimes_take(node: &Node, volume: &str) -> Result<(), Error> {
    let why = match prerequisites::check(&node.checks.root).verdict() {
        CheckVerdict::Passed => return Ok(()),
        CheckVerdict::Failed(faults) => faults,
        CheckVerdict::Unknown if !node.checks.required => return Ok(()),
        CheckVerdict::Unknown => "no configuration of a runtime was found on this node".into(),
    };
    if !node.checks.required {
        warn!(volume, why, "a runtime here does not take direct volumes: csi-edge direct check");
        return Ok(());
    }
    let why = format!("the node's runtimes did not pass `csi-edge direct check`: {why}");
    Err(Error::DirectRefused { volume: volume.to_owned(), why })
}

/// Answers for a volume that is published already. The device is not touched: a guest may have it.
fn again(node: &Node, there: &Published, wanted: &Published) -> CallResult {
    let same_type = wanted.fstype.is_empty() || wanted.fstype == there.fstype;
    let same_words = (&wanted.options, &wanted.metadata) == (&there.options, &there.metadata);
    if !same_type || !same_words {
        let volume = there.volume_id.clone();
        let target = there.target.display().to_string();
        return Err(Error::DirectDiffers { volume, target });
    }
    // Its pod is wanted again, so it is not unpublished any more. What is withheld stays so.
    let custody = Custody { withdrawing: false, ..there.custody.clone() };
    let now = Published { custody, ..there.clone() };
    if now != *there {
        let kept = now.keep(node.state(&there.volume_id)?);
        kept.map_err(not_yet::<io::Error>(&there.volume_id, HANDED_OVER))?;
    }
    attach::show_again(node, &now)?;
    Ok(unpublish::done())
}

/// A refusal, unless the driver was called before for the same target: a kubelet that hears a final
/// failure does not unpublish what there is.
fn unless_begun(error: Error, publish: &Publish, there: &[Published]) -> Error {
    let begun = there
        .iter()
        .any(|there| [&there.target, &there.target_as_given].contains(&&publish.target));
    if begun && is_final(error.code()) {
        not_yet(&publish.volume_id, HANDED_OVER)(error)
    } else {
        error
    }
}

/// True if a driver that answers this code has surely published nothing; as the kubelet has it.
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
    use http::HeaderMap;
    use proto::csi::direct::DeviceKind;
    use proto::csi::{Method, direct};

    use super::*;
    use crate::device::host;
    use crate::device::host::tests::{block_device, with_open};
    use crate::records::published::tests::record;
    use crate::service::direct::Cloud;
    use crate::service::direct::tests::{checked, service, service_of};

    fn published_at(target: &str) -> Publish {
        let direct = direct::Direct::read(&[(direct::KEY.to_owned(), "kata".to_owned())].into());
        Publish {
            volume_id: "v".into(),
            target: target.into(),
            staging: PathBuf::new(),
            pod: None,
            pod_uid: String::new(),
            direct: direct.unwrap().unwrap(),
            mount: direct::Mount { file_system: None, flags: Vec::new(), group: String::new() },
            options: Vec::new(),
            metadata: Default::default(),
            message: Vec::new(),
        }
    }

    #[test]
    fn what_was_begun_is_not_refused_for_good() {
        let refused = || Error::DirectRefused { volume: "v".into(), why: "files".into() };
        for (target, code) in [
            ("/pods/p/mount", Code::Unavailable),
            ("/link/p/mount", Code::Unavailable),
            ("/pods/other/mount", Code::FailedPrecondition),
        ] {
            let error = unless_begun(refused(), &published_at(target), &[record("v")]);
            assert_eq!(error.code(), code, "{target}");
            assert!(error.chain().contains("files"));
        }
        let other = unless_begun(refused(), &published_at("/pods/p/mount"), &[]);
        assert_eq!(other.code(), Code::FailedPrecondition);
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_being_taken_back_is_not_shown_before_the_driver_has_it_published() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (proc, host) = with_open(&root);
        // The host has the target's parent there too, and does not see what is mounted.
        let hosts = proc.path().join("1/root").join(root.strip_prefix("/").unwrap());
        std::fs::create_dir_all(hosts).unwrap();
        let settings = checked(&root, host);
        let state = settings.state.clone().unwrap();
        let service = service_of(settings, Cloud::default());
        let target = root.join("mount");
        let entry = service.node.root.entry(&target).unwrap();
        let device = root.join("socket");
        std::fs::File::create(&device).unwrap();
        let options = Vec::new();
        let kind = DeviceKind::Spdk;
        let volume = Published { target: target.clone(), device, options, kind, ..record("v") };
        let headers = HeaderMap::new();
        let driver = "d.example".parse().unwrap();
        let method = Method::NodePublishVolume;
        let executor = &service.executor;
        let call =
            DriverCall { executor, driver: &driver, method, headers: &headers, deadline: None };
        let again = async || {
            let asked = published_at(target.to_str().unwrap());
            publish(&service, &call, asked).await
        };
        Published { unpublishing: true, ..volume.clone() }.keep(&state).unwrap();
        // The node has no such driver.
        let refused = again().await.err().unwrap();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.chain().contains("d.example"), "{}", refused.chain());
        assert!(!entry.exists(), "its runtime was told");
        assert!(published::all(&state).unwrap().pop().unwrap().unpublishing);
        // Whose driver was not asked to take it back is not asked anything.
        volume.keep(&state).unwrap();
        assert!(again().await.unwrap().failure().is_none());
        assert!(entry.exists());
        // A refused NodeUnpublishVolume is over, and what is withheld stays so.
        service.node.root.remove(&volume.target, &volume.driver, "v").unwrap();
        let _ = std::fs::remove_dir_all(&entry);
        let withheld = Some("a VM has it".to_owned());
        let custody = Custody { withdrawing: true, withheld, ..Custody::default() };
        Published { custody, ..volume }.keep(&state).unwrap();
        assert!(again().await.unwrap().failure().is_none());
        let kept = published::all(&state).unwrap().pop().unwrap().custody;
        assert!(!kept.withdrawing && kept.withheld.is_some());
        let text = std::fs::read_to_string(entry.join("mountInfo.json")).unwrap();
        assert!(text.contains("a VM has it") && !text.contains("/socket"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_the_number_of_a_device_that_was_taken_back_is_not_waited_for() {
        let Some(device) = block_device() else { return };
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (_proc, host) = with_open(&device);
        let settings = checked(&root, host);
        let state = settings.state.clone().unwrap();
        let service = service_of(settings, Cloud::default());
        std::fs::create_dir(root.join("pods")).unwrap();
        let target = root.join("pods/uid/volumes/kubernetes.io~csi/pv/mount");
        let private_path = root.join("gone");
        let number = host::number(&device).unwrap();
        let volume = Published { target, private_path, device, number, ..record("v") };
        let headers = HeaderMap::new();
        let driver = "d.example".parse().unwrap();
        let method = Method::NodePublishVolume;
        let executor = &service.executor;
        let call =
            DriverCall { executor, driver: &driver, method, headers: &headers, deadline: None };
        // The node has no such driver.
        for (unpublishing, why) in [(false, "is open in process 12"), (true, "d.example")] {
            Published { unpublishing, ..volume.clone() }.keep(&state).unwrap();
            let kept = take_back_orphans(&service.node, &call, "v").await.unwrap_err();
            assert!(kept.chain().contains(why), "{}", kept.chain());
        }
    }

    #[tokio::test]
    async fn without_the_lock_no_volume_is_handed_over() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(&dir);
        let lock = dir.path().join("direct/lock");
        std::fs::create_dir_all(&lock).unwrap();
        let headers = HeaderMap::new();
        let driver = "d.example".parse().unwrap();
        let method = Method::NodePublishVolume;
        let executor = &service.executor;
        let call =
            DriverCall { executor, driver: &driver, method, headers: &headers, deadline: None };
        let refused = async || {
            let asked = published_at("/does/not/exist/mount");
            publish(&service, &call, asked).await.err().unwrap()
        };
        let error = refused().await;
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.chain().contains("cannot be locked"), "{}", error.chain());
        std::fs::remove_dir(&lock).unwrap();
        let error = refused().await;
        assert_eq!(error.code(), Code::FailedPrecondition, "{}", error.chain());
    }
}
