//! A node with and without a link, against a cloud that answers as the test says.

use std::path::{Path, PathBuf};

use edge_calls::lease_client::LeaseRequest;
use edge_calls::scopes::Scopes;
use proto::control::lease::{LeaseAction, Outcome, Request};
use proto::csi::status::ToStatus;
use proto::csi::topology::Scope;
use proto::host::files::make_private;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::sleep;
use tonic::Code;

use super::*;
use crate::device::host;
use crate::device::host::Host;
use crate::device::host::tests::{block_device, with_open};
use crate::error::Error;
use crate::lease::exclusive::REPORT;
use crate::lease::record::{Lease, LeaseEntry};
use crate::records::published::tests::record as published;
use crate::runtimes::Roots;
use crate::runtimes::mount_info::MountInfo;
use crate::service::direct::tests::service_of;
use crate::service::direct::{Cloud, Settings};

const TARGET: &str = "/pods/uid-1/volumes/kubernetes.io~csi/pv/mount";

/// Whether a link is there, and asks for nothing.
fn is_silent(link: &mut mpsc::Receiver<LeaseRequest>) -> bool {
    matches!(link.try_recv(), Err(TryRecvError::Empty))
}

struct Fixture {
    dir: tempfile::TempDir,
    driver: DriverName,
    service: Arc<Service>,
}

async fn node(scope: Option<Scope>) -> Fixture {
    on(scope, Host::default()).await
}

async fn on(scope: Option<Scope>, host: Host) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let driver = "d.example".parse::<DriverName>().unwrap();
    let scopes = Scopes::default();
    scopes.receive(scope.map(|scope| (driver.clone(), scope)).into_iter().collect());
    scopes.settle().await;
    let roots = Roots { entries: dir.path().join("entries"), ..Roots::default() };
    let settings =
        Settings { state: Some(dir.path().join("state")), host, roots, ..Settings::default() };
    let cloud = Cloud { scopes: Arc::new(scopes), ..Cloud::default() };
    Fixture { dir, driver, service: service_of(settings, cloud) }
}

impl Fixture {
    fn link(&self) -> mpsc::Receiver<LeaseRequest> {
        self.service.leases.client().linked()
    }

    async fn acquire(&self, recorded: bool) -> Result<(), Error> {
        self.service.leases.acquire(&self.driver, "v", Path::new(TARGET), recorded).await
    }

    /// The same, while the cloud answers the next request so.
    async fn acquire_with(
        &self,
        link: &mut mpsc::Receiver<LeaseRequest>,
        answer: Outcome,
    ) -> (Result<(), Error>, LeaseAction) {
        let (owned, request) = tokio::join!(self.acquire(true), answered(link, answer));
        (owned, request.step)
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn keep(&self, volume: &str, lease: Lease) {
        let driver = self.driver.to_string();
        let volume_id = volume.to_owned();
        let pod = "uid-1".to_owned();
        LeaseEntry { driver, volume_id, pod, lease }.keep(&self.state()).unwrap();
    }

    fn lease(&self) -> Option<Lease> {
        record::of(&self.state(), "d.example", "v").unwrap().map(|kept| kept.lease)
    }

    fn publish(&self, volume: &str) {
        Published { target_as_given: TARGET.into(), ..published(volume) }
            .keep(&self.state())
            .unwrap();
    }
}

async fn answered(link: &mut mpsc::Receiver<LeaseRequest>, answer: Outcome) -> Request {
    let asked = tokio::time::timeout(Duration::from_secs(60), link.recv()).await;
    let asked = asked.expect("the cloud was not asked").unwrap();
    asked.answer.send(answer).unwrap();
    asked.request
}

fn why() -> String {
    "w".into()
}

fn held(epoch: u64) -> Lease {
    Lease::Held { epoch, mac: None }
}

fn hold(epoch: u64) -> LeaseAction {
    LeaseAction::Hold { epoch, pod: "uid-1".into(), mac: None }
}

#[tokio::test(start_paused = true)]
async fn whatever_the_scope_who_can_be_asked_is() {
    for scope in [Some(Scope::Node), Some(Scope::Shared), None] {
        let node = node(scope).await;
        let mut link = node.link();
        let cloud = answered(&mut link, Outcome::HeldElsewhere { why: why() });
        let (owned, Request { step, .. }) = tokio::join!(node.acquire(false), cloud);
        // A scope learned of a driver may be wrong; the cloud's record is not.
        let refused = owned.unwrap_err();
        assert_eq!(
            (refused.code(), step),
            (Code::FailedPrecondition, LeaseAction::Ask { pod: "uid-1".into() })
        );
        assert_eq!(node.lease(), None);
        assert_eq!(
            node.acquire(false).await.unwrap_err().code(),
            Code::Unavailable,
            "it is silent"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_new_waits_for_a_link_and_what_was_published_before_is_said_at_the_next() {
    for scope in [Some(Scope::Node), Some(Scope::Shared), None] {
        assert_eq!(node(scope).await.acquire(false).await.unwrap_err().code(), Code::Unavailable);
    }
    let node = node(Some(Scope::Node)).await;
    node.publish("v");
    node.service.leases.settle_and_report(&node.driver, "v").await;
    assert_eq!(node.lease(), Some(held(0)));
    let mut link = node.link();
    let (all, request) = tokio::join!(
        report_all(&node.service),
        answered(&mut link, Outcome::Held { epoch: 9, mac: None })
    );
    assert!(all && request.step == hold(0), "{request:?}");
    assert_eq!(node.lease(), Some(held(9)));
}

#[tokio::test(start_paused = true)]
async fn what_was_held_is_confirmed_on_each_link_before_a_pod_has_it() {
    let node = node(Some(Scope::Shared)).await;
    node.publish("v");
    node.keep("v", held(5));
    let mut link = node.link();
    let (owned, step) = node.acquire_with(&mut link, Outcome::Held { epoch: 5, mac: None }).await;
    owned.unwrap();
    assert_eq!(step, hold(5));
    node.acquire(true).await.unwrap();
    assert!(is_silent(&mut link), "it was asked again on the same link");
    drop(link);
    node.acquire(true).await.unwrap();
    let mut link = node.link();
    assert_eq!(node.acquire(true).await.unwrap_err().code(), Code::Unavailable, "it is silent");
    link.try_recv().unwrap();
    let (owned, step) = node.acquire_with(&mut link, Outcome::NotNow { why: why() }).await;
    assert_eq!((owned.unwrap_err().code(), step), (Code::Unavailable, hold(5)));
    let (owned, step) = node.acquire_with(&mut link, Outcome::Fenced { why: why() }).await;
    let refused = owned.unwrap_err();
    assert!(refused.chain().contains("delete the pod"), "{}", refused.chain());
    assert_eq!((refused.code(), step), (Code::FailedPrecondition, hold(5)));
    assert_eq!(node.lease(), Some(Lease::Fenced { epoch: 5, why: why() }));
    drop(link);
    assert_eq!(node.acquire(true).await.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn a_csi_edge_that_has_just_begun_waits_for_a_link_before_it_goes_on_alone() {
    let node = node(Some(Scope::Shared)).await;
    node.keep("v", Lease::LetGo { epoch: 5, mac: None });
    let cloud = async {
        sleep(Duration::from_secs(8)).await;
        let mut link = node.link();
        let request = answered(&mut link, Outcome::Fenced { why: why() }).await;
        (request.step, link)
    };
    let (owned, (step, _link)) = tokio::join!(node.acquire(false), cloud);
    assert_eq!((owned.unwrap_err().code(), step), (Code::FailedPrecondition, hold(5)));
    // Without a link it goes on after its patience.
    let alone = self::node(Some(Scope::Shared)).await;
    alone.keep("v", held(5));
    let begun = Instant::now();
    alone.acquire(true).await.unwrap();
    alone.acquire(true).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_stated_while_it_was_busy_is_when_it_is_free() {
    let node = node(Some(Scope::Shared)).await;
    node.publish("v");
    node.keep("v", held(5));
    let mut link = node.link();
    let busy = node.service.locks.try_lock(&node.driver, "v", "a test").unwrap();
    assert!(!report_all(&node.service).await);
    assert!(is_silent(&mut link));
    let let_go = node.service.leases.settle_and_report(&node.driver, "v");
    let ((), request) =
        tokio::join!(let_go, answered(&mut link, Outcome::Held { epoch: 6, mac: None }));
    drop(busy);
    assert_eq!((request.step, node.lease()), (hold(5), Some(held(6))));
    assert!(report_all(&node.service).await);
    node.service.leases.settle_and_report(&node.driver, "v").await;
    assert!(is_silent(&mut link), "the cloud knows");
}

#[tokio::test(start_paused = true)]
async fn after_one_silence_no_other_volume_is_kept_waiting_and_what_was_stated_is_not_again() {
    let node = node(Some(Scope::Shared)).await;
    for volume in ["a", "b", "c"] {
        node.publish(volume);
    }
    let mut link = node.link();
    let begun = Instant::now();
    let (all, request) = tokio::join!(
        report_all(&node.service),
        answered(&mut link, Outcome::Held { epoch: 1, mac: None })
    );
    assert!(!all && request.volume == "a", "{request:?}");
    assert_eq!(begun.elapsed(), REPORT);
    assert_eq!(link.try_recv().unwrap().request.volume, "b");
    assert!(is_silent(&mut link), "c would have been kept from its callers too");
    let cloud = async {
        let b = answered(&mut link, Outcome::Held { epoch: 2, mac: None }).await;
        [b, answered(&mut link, Outcome::Held { epoch: 3, mac: None }).await]
            .map(|request| request.volume)
    };
    let (all, rest) = tokio::join!(report_all(&node.service), cloud);
    assert!(all && rest == ["b", "c"], "{rest:?}");
    assert!(report_all(&node.service).await && is_silent(&mut link));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_kept_on_a_full_disk_is_let_go_when_there_is_room() {
    let node = node(Some(Scope::Shared)).await;
    node.keep("v", held(5));
    let mut link = node.link();
    let mut restatements = node.service.leases.client().restatements();
    restatements.borrow_and_update();
    let kept = node.state().join("direct/owners");
    let aside = node.dir.path().join("aside");
    std::fs::rename(&kept, &aside).unwrap();
    std::fs::File::create(&kept).unwrap();
    node.service.leases.settle_and_report(&node.driver, "v").await;
    assert!(restatements.has_changed().unwrap(), "nobody would try again");
    assert!(!report_all(&node.service).await);
    std::fs::remove_file(&kept).unwrap();
    std::fs::rename(&aside, &kept).unwrap();
    let (all, request) =
        tokio::join!(report_all(&node.service), answered(&mut link, Outcome::Released));
    assert!(all && request.step == LeaseAction::Release, "{request:?}");
    assert_eq!(node.lease(), None);
    // A damaged lease is not reported, so it is looked at again.
    node.publish("v");
    node.keep("v", held(5));
    let file = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
    std::fs::File::create(file).unwrap();
    assert!(!report_all(&node.service).await);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_the_cloud_cannot_keep_is_refused_before_anything_is_written() {
    let node = node(Some(Scope::Shared)).await;
    let mut link = node.link();
    let id = "v".repeat(MAX_ID + 1);
    let owned = node.service.leases.acquire(&node.driver, &id, Path::new(TARGET), false).await;
    assert_eq!(owned.unwrap_err().code(), Code::FailedPrecondition);
    assert!(!node.state().exists());
    // Also if an older csi-edge published it.
    node.publish(&id);
    node.service.leases.settle_and_report(&node.driver, &id).await;
    assert!(report_all(&node.service).await);
    assert!(is_silent(&mut link) && record::all(&node.state()).unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_fenced_volume_is_hidden_as_soon_as_its_guest_has_ended() {
    let Some(device) = block_device() else { return };
    let (proc, host) = with_open(&device);
    let node = on(Some(Scope::Shared), host).await;
    let private_path = node.dir.path().join("private");
    std::os::unix::fs::symlink(&device, &private_path).unwrap();
    let target = node.dir.path().join("pods/p/mount");
    let number = host::number(&device).unwrap();
    let metadata = [("edge-csi.io/driver", "d.example"), ("edge-csi.io/volume-id", "v")];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let record = Published { target, private_path, device, number, metadata, ..published("v") };
    make_private(record.target.parent().unwrap()).unwrap();
    record.keep(&node.state()).unwrap();
    node.service.node.root.publish(&record.target, &MountInfo::of(&record)).unwrap();
    let entry = node.service.node.root.entry(&record.target).unwrap();
    let mut link = node.link();
    let (_, request) = tokio::join!(
        report_all(&node.service),
        answered(&mut link, Outcome::Fenced { why: why() })
    );
    assert_eq!(request.step, LeaseAction::Hold { epoch: 0, pod: String::new(), mac: None });
    assert!(
        matches!(node.lease(), Some(Lease::Fenced { .. })),
        "it is durable before anybody is waited for"
    );
    assert!(entry.exists(), "a guest has it");
    assert!(!report_all(&node.service).await && entry.exists());
    std::fs::remove_file(proc.path().join("12/fd/3")).unwrap();
    // Cut off or not.
    drop(link);
    assert!(
        report_all(&node.service).await && !entry.exists(),
        "a guest that begins now would find it"
    );
    assert!(node.service.leases.is_fenced(&record));
}
