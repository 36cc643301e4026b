//! Which calls are about direct volumes, and what a driver gets of them.

use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use tonic::Code;

use super::*;
use crate::records::journal::Content;
use crate::records::published::tests::record;
use proto::csi::status::ToStatus;

fn driver() -> DriverName {
    "d.example".parse().unwrap()
}

fn work(
    state: Option<&Path>,
    driver: &DriverName,
    method: &str,
    message: &Bytes,
) -> Result<Option<Work>, Error> {
    let method = Method::of_name(method).unwrap();
    Request { state, driver, method, message }.work()
}

fn deleted(state: Option<&Path>, driver: &DriverName, message: &Bytes) -> Result<(), Error> {
    let method = Method::of_name("DeleteVolume").unwrap();
    may_be_deleted(&Request { state, driver, method, message })
}

#[test]
fn the_journal_goes_with_its_volume() {
    let dir = tempfile::tempdir().unwrap();
    let delete = |volume: &str| {
        let request = csi::DeleteVolumeRequest { volume_id: volume.into(), ..Default::default() };
        let message = request.encode_to_vec().into();
        let method = Method::of_name("DeleteVolume").unwrap();
        forget_deleted(&Request {
            state: Some(dir.path()),
            driver: &driver(),
            method,
            message: &message,
        });
    };
    let ready = Content::Ready { uuid: "u".into(), suspect: false };
    for volume in ["v", "w"] {
        Journal::of(dir.path(), "d.example", volume).write(ready.clone()).unwrap();
    }
    delete("v");
    delete("v");
    let read = |volume| Journal::of(dir.path(), "d.example", volume).read().unwrap();
    assert_eq!((read("v"), read("w")), (None, Some(ready)));
}

fn request(keys: &[(&str, &str)]) -> csi::NodePublishVolumeRequest {
    let mount = MountVolume { volume_mount_group: "7".into(), ..Default::default() };
    csi::NodePublishVolumeRequest {
        volume_id: "v".into(),
        target_path: "/pods/p/mount".into(),
        readonly: true,
        volume_capability: Some(VolumeCapability {
            access_type: Some(AccessType::Mount(mount)),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeSingleWriter as i32 }),
        }),
        volume_context: keys.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        ..Default::default()
    }
}

fn published(
    state: &Path,
    request: &csi::NodePublishVolumeRequest,
) -> Result<Option<Publish>, Error> {
    let message = request.encode_to_vec().into();
    let work = work(Some(state), &driver(), "NodePublishVolume", &message)?;
    Ok(work.map(|work| match work {
        Work::Publish(publish) => *publish,
        _ => panic!("no publish"),
    }))
}

#[test]
fn the_driver_is_asked_for_a_device_that_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    assert!(published(dir.path(), &request(&[("own", "1")])).unwrap().is_none());
    let publish =
        published(dir.path(), &request(&[(direct::KEY, "kata"), ("own", "1")])).unwrap().unwrap();
    let sent = csi::NodePublishVolumeRequest::decode(&*targeted(&publish.message, Path::new("/p")))
        .unwrap();
    assert_eq!((&*sent.volume_id, &*sent.target_path, sent.readonly), ("v", "/p", false));
    assert_eq!(sent.volume_context.len(), 1);
    assert!(matches!(sent.volume_capability.unwrap().access_type, Some(AccessType::Block(_))));
    assert_eq!(publish.options, ["ro"]);
    assert_eq!((&*publish.metadata[VOLUME], &*publish.metadata[DRIVER]), ("v", "d.example"));
}

#[test]
fn the_pod_is_known_as_the_kubelet_tells_it_and_no_runtime_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let pod = [(POD_NAMESPACE, "shop"), (POD_NAME, "db-0"), (POD_UID, "u-1")];
    let asked = [&[(direct::KEY, "kata")], &pod[..]].concat();
    let publish = published(dir.path(), &request(&asked)).unwrap().unwrap();
    let named = Pod { namespace: "shop".into(), name: "db-0".into(), uid: "u-1".into() };
    assert_eq!(publish.pod, Some(named));
    assert!(!format!("{:?}", publish.metadata).contains("db-0"));
    for missing in 1..asked.len() {
        let mut some = asked.clone();
        some.remove(missing);
        assert_eq!(published(dir.path(), &request(&some)).unwrap().unwrap().pod, None);
    }
    let other = [(direct::KEY, "kata"), (POD_NAMESPACE, "s"), (POD_NAME, "../x"), (POD_UID, "u")];
    assert_eq!(published(dir.path(), &request(&other)).unwrap().unwrap().pod, None);
}

#[test]
fn groups_are_numbers_and_roots_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let of = |group: &str| {
        let mut request = request(&[
            (direct::KEY, "kata"),
            ("edge-csi.io/direct-fs-group-change", "OnRootMismatch"),
        ]);
        request.readonly = false;
        let mount = MountVolume { volume_mount_group: group.into(), ..Default::default() };
        request.volume_capability.as_mut().unwrap().access_type = Some(AccessType::Mount(mount));
        published(dir.path(), &request).map(|publish| publish.unwrap().metadata)
    };
    assert_eq!(of("1000").unwrap()["fsGroupChangePolicy"], "OnRootMismatch");
    assert_eq!(of("0").unwrap().len(), 2);
    assert_eq!(of("").unwrap().len(), 2);
    assert_eq!(of("staff").unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(of("-1").unwrap_err().code(), Code::InvalidArgument);
}

/// The mount flags of a request.
fn flags(request: &mut csi::NodePublishVolumeRequest) -> &mut Vec<String> {
    let capability = request.volume_capability.as_mut().unwrap();
    let Some(AccessType::Mount(mount)) = &mut capability.access_type else { panic!("no mount") };
    &mut mount.mount_flags
}

#[test]
fn a_read_only_volume_has_no_group_that_an_agent_would_write() {
    let dir = tempfile::tempdir().unwrap();
    let keys = [(direct::KEY, "kata"), ("edge-csi.io/direct-fs-group-change", "OnRootMismatch")];
    let of = |readonly: bool, flag: &str| {
        let mut request = request(&keys);
        request.readonly = readonly;
        flags(&mut request).push(flag.to_owned());
        published(dir.path(), &request).unwrap().unwrap()
    };
    for read_only in [of(true, "noatime"), of(false, "ro")] {
        assert!(read_only.options.ends_with(&["ro".to_owned()]), "{:?}", read_only.options);
        assert_eq!(read_only.metadata.len(), 2, "{:?}", read_only.metadata);
    }
    let writable = of(false, "noatime");
    assert_eq!((&*writable.metadata["fsGroup"], writable.metadata.len()), ("7", 4));
}

#[test]
fn words_of_the_host_stay_there_and_unknown_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let of = |flag: &str| {
        let mut request = request(&[(direct::KEY, "kata")]);
        flags(&mut request).extend(["noatime".to_owned(), flag.to_owned()]);
        published(dir.path(), &request).map(|publish| publish.unwrap())
    };
    assert_eq!(of("X-mount.mkdir").unwrap().options, ["noatime", "ro"]);
    let refused = of("nosuch").err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.chain().contains("\"nosuch\""), "{}", refused.chain());
    // A pod that runs is not told that its volume failed for good.
    record("v").keep(dir.path()).unwrap();
    assert_eq!(of("nosuch").err().unwrap().code(), Code::Unavailable);
}

#[test]
fn what_an_older_version_published_is_the_same_publication() {
    let dir = tempfile::tempdir().unwrap();
    let mut request = request(&[(direct::KEY, "kata")]);
    flags(&mut request).push("X-mount.mkdir".to_owned());
    let mut older = record("v");
    older.options = vec!["X-mount.mkdir".into(), "ro".into()];
    older.metadata = [(DRIVER, "d.example"), (VOLUME, "v"), (GROUP, "7")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    older.keep(dir.path()).unwrap();
    let publish = published(dir.path(), &request).unwrap().unwrap();
    assert_eq!((&publish.options, &publish.metadata), (&older.options, &older.metadata));
    flags(&mut request).push("sync".to_owned());
    let publish = published(dir.path(), &request).unwrap().unwrap();
    assert_eq!((publish.options, publish.metadata.len()), (vec!["sync".into(), "ro".into()], 2));
}

#[test]
fn what_contradicts_itself_is_refused_before_anything_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let code = |request: &_| published(dir.path(), request).err().unwrap().code();
    assert_eq!(code(&request(&[(direct::KEY, "runc")])), Code::InvalidArgument);
    let mut bad = request(&[(direct::KEY, "kata")]);
    bad.volume_capability = None;
    assert_eq!(code(&bad), Code::InvalidArgument);
    let message = request(&[(direct::KEY, "kata")]).encode_to_vec().into();
    let stateless = work(None, &driver(), "NodePublishVolume", &message).err().unwrap();
    assert!(stateless.code() == Code::FailedPrecondition && stateless.chain().contains("--state"));
    // Ordinary volumes need no state directory.
    let message = request(&[]).encode_to_vec().into();
    assert!(work(None, &driver(), "NodePublishVolume", &message).unwrap().is_none());
    // A volume that a guest has is not mounted on the host besides.
    record("v").keep(dir.path()).unwrap();
    assert_eq!(code(&request(&[])), Code::FailedPrecondition);
}

#[test]
fn later_calls_are_known_by_the_record_and_others_pass() {
    let dir = tempfile::tempdir().unwrap();
    let of = |method, message: Vec<u8>| {
        work(Some(dir.path()), &driver(), method, &message.into()).unwrap()
    };
    let unpublish = |target: &str| {
        csi::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path: target.into() }
            .encode_to_vec()
    };
    assert!(of("NodeUnpublishVolume", unpublish("/pods/p/mount")).is_none());
    record("v").keep(dir.path()).unwrap();
    for target in ["/pods/p/mount", "/link/p/mount"] {
        assert!(matches!(of("NodeUnpublishVolume", unpublish(target)), Some(Work::Unpublish(_))));
    }
    assert!(of("NodeUnpublishVolume", unpublish("/elsewhere")).is_none());
    let stats = csi::NodeGetVolumeStatsRequest {
        volume_id: "v".into(),
        volume_path: "/pods/p/mount".into(),
        ..Default::default()
    };
    assert!(matches!(of("NodeGetVolumeStats", stats.encode_to_vec()), Some(Work::Stats(_))));
    let expand = csi::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: "/pods/p/mount".into(),
        ..Default::default()
    };
    assert!(matches!(of("NodeExpandVolume", expand.encode_to_vec()), Some(Work::Grow(..))));
    let health = csi::NodeGetVolumeHealthRequest {
        volume_id: "v".into(),
        volume_publish_path: "/pods/p/mount".into(),
        staging_target_path: "/s".into(),
    };
    let Some(Work::Health(message)) = of("NodeGetVolumeHealth", health.encode_to_vec()) else {
        panic!("not ours")
    };
    let sent = csi::NodeGetVolumeHealthRequest::decode(&*message).unwrap();
    assert_eq!((&*sent.volume_publish_path, &*sent.staging_target_path), ("/private/x", "/s"));
    let unstage =
        csi::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path: "/s".into() };
    assert!(matches!(of("NodeUnstageVolume", unstage.encode_to_vec()), Some(Work::Unstage(..))));
}

#[test]
fn a_volume_that_is_only_staged_is_known_by_its_note() {
    let dir = tempfile::tempdir().unwrap();
    let of = |method, message: Vec<u8>| {
        work(Some(dir.path()), &driver(), method, &message.into()).unwrap()
    };
    let expand = csi::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: "/s".into(),
        staging_target_path: "/s".into(),
        ..Default::default()
    };
    let unstage =
        csi::NodeUnstageVolumeRequest { volume_id: "v".into(), staging_target_path: "/s".into() };
    assert!(of("NodeExpandVolume", expand.encode_to_vec()).is_none());
    assert!(of("NodeUnstageVolume", unstage.encode_to_vec()).is_none());
    staged::note(dir.path(), driver().as_str(), "v").unwrap();
    assert!(matches!(of("NodeExpandVolume", expand.encode_to_vec()), Some(Work::GrowStaged(_))));
    let Some(Work::Unstage(_, records, _)) = of("NodeUnstageVolume", unstage.encode_to_vec())
    else {
        panic!("the driver would keep its note")
    };
    assert!(records.is_empty());
}

#[test]
fn what_is_handed_over_is_not_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let message = csi::DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() }
        .encode_to_vec()
        .into();
    deleted(None, &driver(), &message).unwrap();
    deleted(Some(dir.path()), &driver(), &message).unwrap();
    record("v").keep(dir.path()).unwrap();
    let refused = deleted(Some(dir.path()), &driver(), &message).unwrap_err();
    assert!(
        refused.code() == Code::FailedPrecondition && refused.chain().contains("/pods/p/mount")
    );
    deleted(Some(dir.path()), &"e.example".parse().unwrap(), &message).unwrap();
}

#[test]
fn growth_by_the_path_where_it_is_staged_is_no_ordinary_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let expand = csi::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: "/s".into(),
        staging_target_path: "/s".into(),
        ..Default::default()
    };
    let of = || {
        work(Some(dir.path()), &driver(), "NodeExpandVolume", &expand.encode_to_vec().into())
            .unwrap()
    };
    assert!(of().is_none());
    staged::note(dir.path(), driver().as_str(), "v").unwrap();
    let mut there = record("v");
    there.keep(dir.path()).unwrap();
    assert!(matches!(of(), Some(Work::Grow(..))), "a guest has it");
    there.state = PublicationState::Begun;
    there.keep(dir.path()).unwrap();
    staged::forget(dir.path(), driver().as_str(), "v").unwrap();
    assert!(matches!(of(), Some(Work::GrowStaged(_))));
}

#[test]
fn a_path_that_climbs_is_refused_finally_only_if_nothing_is_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut publish = request(&[(direct::KEY, "kata")]);
    publish.target_path = "/pods/../etc/cron.d/x".into();
    let refused = published(dir.path(), &publish).err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.chain().contains("/pods/../etc/cron.d/x"), "{}", refused.chain());
    let staged = |staging: &str| {
        let request = csi::NodeStageVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: staging.into(),
            volume_capability: publish.volume_capability.clone(),
            volume_context: publish.volume_context.clone(),
            ..Default::default()
        };
        let message = request.encode_to_vec().into();
        work(Some(dir.path()), &driver(), "NodeStageVolume", &message)
    };
    assert_eq!(staged("/a/..").err().map(|error| error.code()), Some(Code::InvalidArgument));
    assert!(matches!(staged("/a/..b"), Ok(Some(Work::Stage(..)))));
    // Older versions took such a path, and a kubelet does not unpublish after a final code.
    record("v").keep(dir.path()).unwrap();
    let code = published(dir.path(), &publish).err().unwrap().code();
    assert_eq!(code, Code::Unavailable);
    // The driver's own paths are the driver's business.
    let plain = request(&[]);
    let refused = published(dir.path(), &plain).err().unwrap();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.chain().contains("handed over directly"), "{}", refused.chain());
    record("v").forget(dir.path()).unwrap();
    let plain = csi::NodePublishVolumeRequest { target_path: "/a/../b".into(), ..plain };
    assert!(published(dir.path(), &plain).unwrap().is_none());
}

/// The context that a driver gets, of a publication; none if its message passes as it came.
fn passed(keys: &[(&str, &str)]) -> Option<Vec<String>> {
    let message = request(keys).encode_to_vec().into();
    let method = Method::of_name("NodePublishVolume").unwrap();
    let driver = driver();
    let request = Request { state: None, driver: &driver, method, message: &message };
    let edited = request.without_decision().unwrap()?;
    let edited = csi::NodePublishVolumeRequest::decode(edited).unwrap();
    Some(edited.volume_context.into_keys().collect())
}

#[test]
fn the_driver_of_an_ordinary_volume_does_not_see_that_it_was_decided() {
    let none = (direct::KEY, direct::NONE);
    assert_eq!(passed(&[none, ("own", "1")]), Some(vec!["own".to_owned()]));
    assert_eq!(passed(&[("own", "1")]), None);
    assert_eq!(passed(&[(direct::KEY, "kata"), ("own", "1")]), None, "it was asked for");
}
