//! Expansions against a driver that answers as the test says, and after a crash at each step.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use http::Request;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::serve;
use proto::link::Io;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tonic::Status;

use self::fake::{Fake, SIZE, copy, driver, lock};
use super::*;
use crate::drivers::{Drivers, FoundBy};
use crate::executor::{Executor, Origin};

mod fake;

/// A node with one driver.
struct Node {
    fake: Arc<Fake>,
    executor: Arc<Executor>,
    expansions: Arc<Expansions>,
    _tasks: Tasks,
}

/// A node as it starts.
struct Start {
    by: NodeExpansion,
    boot: &'static str,
    scope: Option<Scope>,
    direct: bool,
}

const START: Start =
    Start { by: NodeExpansion::Edge, boot: "1", scope: Some(Scope::Node), direct: false };

impl Node {
    async fn start(start: Start, fake: Fake) -> Self {
        let fake = Arc::new(fake);
        let scopes = Arc::new(Scopes::default());
        scopes.receive(start.scope.map(|scope| (driver(), scope)).into_iter().collect());
        scopes.settle().await;
        let direct = start.direct;
        let is_direct: IsDirect = Box::new(move |_, _| Ok(direct));
        let opened = Expansions::open(start.by, &fake.state, start.boot, scopes.clone(), is_direct);
        let expansions = Arc::new(opened.unwrap());
        let tasks = Tasks::default();
        let drivers = drivers(fake.clone(), tasks.clone());
        drivers.keep(&tasks);
        let executor = Executor::new(drivers.clone(), tasks.clone()).with_scopes(scopes);
        let executor = Arc::new(executor.with_expansions(Some(expansions.clone())));
        let mut changes = drivers.changes();
        while drivers.hello().iter().any(|driver| driver.answers.is_empty()) {
            changes.changed().await.unwrap();
        }
        Self { fake, executor, expansions, _tasks: tasks }
    }

    async fn new(state: &TempDir) -> Self {
        Self::start(START, Fake::new(state.path())).await
    }

    async fn send(
        &self,
        origin: Origin,
        method: Method,
        message: Vec<u8>,
    ) -> Result<Bytes, Status> {
        let body = Answer::of(frame::frame(&message)).response().into_body();
        let request = Request::post(format!("http://localhost{}", method.path())).body(body);
        let answer = self.executor.answer(driver().as_str(), origin, request.unwrap()).await;
        let (parts, body) = answer.unwrap().into_parts();
        let Body::Whole { data, trailers } = body else {
            return Err(Status::from_header_map(&parts.headers).unwrap());
        };
        match trailers.and_then(|trailers| Status::from_header_map(&trailers)) {
            Some(status) if status.code() != Code::Ok => Err(status),
            _ => Ok(frame::message(&data.unwrap_or_default()).unwrap()),
        }
    }

    async fn kubelet(&self, method: Method, request: impl Message) -> Result<Bytes, Status> {
        let origin = Origin { front_of: Some("n1".parse().unwrap()), ..Origin::default() };
        self.send(origin, method, request.encode_to_vec()).await
    }

    async fn stage(&self) -> Result<Bytes, Status> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: "/staging".into(),
            volume_capability: Some(used_as("ext4")),
            ..Default::default()
        };
        self.kubelet(Method::NodeStageVolume, request).await
    }

    async fn unstage(&self) {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: "/staging".into(),
        };
        self.kubelet(Method::NodeUnstageVolume, request).await.unwrap();
    }

    async fn publish(&self, staging: &str) {
        let request = csi::NodePublishVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: staging.into(),
            target_path: "/target".into(),
            volume_capability: Some(used_as("ext4")),
            ..Default::default()
        };
        self.kubelet(Method::NodePublishVolume, request).await.unwrap();
    }

    /// As the cloud asks; whether it must still have the node's half done.
    async fn expand(&self) -> Result<bool, Status> {
        let range = csi::CapacityRange { required_bytes: SIZE, limit_bytes: 0 };
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: "v".into(),
            capacity_range: Some(range),
            ..Default::default()
        };
        let method = Method::ControllerExpandVolume;
        let answer = self.send(Origin::default(), method, request.encode_to_vec()).await?;
        let newer = wire::fields(&answer).any(|field| field.unwrap().number == 99);
        assert!(newer, "a field was lost");
        let answer = csi::ControllerExpandVolumeResponse::decode(answer).unwrap();
        assert_eq!(answer.capacity_bytes, SIZE);
        Ok(answer.node_expansion_required)
    }

    fn due(&self) -> Vec<Option<i64>> {
        let growing = self.expansions.growing();
        growing.iter().map(NodeVolume::due).filter(Option::is_some).collect()
    }
}

fn drivers(fake: Arc<Fake>, tasks: Tasks) -> Arc<Drivers> {
    let connect = move |_| -> futures_util::future::BoxFuture<'static, std::io::Result<Io>> {
        let (ours, its) = tokio::io::duplex(1 << 16);
        let fake = fake.clone();
        let service = move |request| fake.clone().answer(request);
        tasks.spawn("fake", async move {
            drop(serve::serve(its, service, std::future::pending()).await);
        });
        Box::pin(async { Ok(Box::new(ours) as Io) })
    };
    let drivers = Drivers::new("n1".parse().unwrap(), Arc::new(connect));
    drivers.add(driver(), PathBuf::from("csi.sock"), FoundBy::Configuration).unwrap();
    Arc::new(drivers)
}

fn used_as(fs_type: &str) -> csi::VolumeCapability {
    use csi::volume_capability::{AccessType, MountVolume};
    let fs_type = fs_type.to_owned();
    let mount = MountVolume { fs_type, ..Default::default() };
    csi::VolumeCapability { access_type: Some(AccessType::Mount(mount)), access_mode: None }
}

fn kept(state: &TempDir) -> usize {
    std::fs::read_dir(state.path().join("node-volumes")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn a_staged_volume_has_grown_on_both_sides_before_the_cloud_is_answered() {
    let state = tempfile::tempdir().unwrap();
    let node = Node::new(&state).await;
    node.stage().await.unwrap();
    assert_eq!(node.fake.expanded().len(), 0, "nothing was owed");
    assert!(!node.expand().await.unwrap());
    let expected = csi::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: "/staging".into(),
        capacity_range: Some(csi::CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
        staging_target_path: "/staging".into(),
        volume_capability: Some(used_as("ext4")),
        secrets: Default::default(),
    };
    assert!(node.fake.expanded() == [expected.clone()]);
    assert_eq!(node.due(), []);
    node.publish("/staging").await;
    // Also after a restart, and then at the path where the pod has it.
    let node = Node::new(&state).await;
    assert!(!node.expand().await.unwrap());
    assert!(
        node.fake.expanded()
            == [csi::NodeExpandVolumeRequest { volume_path: "/target".into(), ..expected }]
    );
    let target_path = "/target".into();
    let unpublish = csi::NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path };
    node.kubelet(Method::NodeUnpublishVolume, unpublish).await.unwrap();
    node.unstage().await;
    assert_eq!(kept(&state), 0, "a record was left");
}

#[tokio::test]
async fn what_is_not_staged_is_owed_until_it_is() {
    let state = tempfile::tempdir().unwrap();
    let node = Node::new(&state).await;
    node.stage().await.unwrap();
    node.unstage().await;
    assert!(!node.expand().await.unwrap());
    assert_eq!((node.fake.expanded().len(), node.due()), (0, vec![Some(SIZE)]));
    for by in [NodeExpansion::Edge, NodeExpansion::Kubelet] {
        // After a power cut, and whatever the setting is by then.
        let node =
            Node::start(Start { boot: "2", by, ..START }, Fake::new(copy(state.path()).path()))
                .await;
        assert_eq!(node.due(), [Some(SIZE)]);
        node.stage().await.unwrap();
        assert_eq!((node.fake.expanded().len(), node.due()), (1, vec![]));
        node.stage().await.unwrap();
        assert_eq!(node.fake.expanded().len(), 1, "it was owed once");
    }
    // A volume that is gone owes nothing.
    let delete = csi::DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
    let method = Method::DeleteVolume;
    node.send(Origin::default(), method, delete.encode_to_vec()).await.unwrap();
    assert_eq!((node.due(), kept(&state)), (vec![], 0));
}

#[tokio::test]
async fn a_driver_without_staging_grows_what_is_published() {
    let state = tempfile::tempdir().unwrap();
    let node = Node::new(&state).await;
    node.publish("").await;
    assert!(!node.expand().await.unwrap());
    let expanded = node.fake.expanded();
    let paths: Vec<_> =
        expanded.iter().map(|call| (&*call.volume_path, &*call.staging_target_path)).collect();
    assert_eq!(paths, [("/target", "")]);
}

/// Kills csi-edge at each call of its driver, before and after the driver's work: the records are
/// the same then.
#[tokio::test]
async fn a_crash_at_any_step_loses_no_growth() {
    for staged in [true, false] {
        let state = tempfile::tempdir().unwrap();
        let node = Node::new(&state).await;
        node.stage().await.unwrap();
        if !staged {
            node.unstage().await;
        }
        assert!(!node.expand().await.unwrap());
        let moments = std::mem::take(&mut *lock(&node.fake.moments));
        for ((method, _), moment) in lock(&node.fake.calls).iter().zip(&moments) {
            let expected = match method {
                Method::ControllerExpandVolume => vec![Growth::Begun],
                Method::NodeExpandVolume => vec![Growth::Due { bytes: SIZE }],
                _ => Vec::new(),
            };
            assert_eq!(records(moment), expected, "{method}");
        }
        let answered = copy(state.path());
        for moment in &moments {
            // The cloud was not answered, and sends the call again. The driver may say now that
            // nothing is left to do on the node, as it did that before the crash.
            for needs_node in [true, false] {
                let begun = !records(moment).is_empty();
                let again = copy(moment.path());
                let fake = Fake { needs_node, ..Fake::new(again.path()) };
                let node = Node::start(START, fake).await;
                assert!(!node.expand().await.unwrap());
                node.stage().await.unwrap();
                let grows = needs_node || begun;
                assert_eq!(node.fake.expanded().is_empty(), !grows, "{:?}", records(moment));
                assert_eq!(node.due(), []);
            }
        }
        // The cloud was answered, so nobody sends the call again.
        let fake = Fake::new(answered.path());
        let node = Node::start(Start { boot: "2", ..START }, fake).await;
        node.stage().await.unwrap();
        assert_eq!(node.fake.expanded().len(), usize::from(!staged));
        assert_eq!(node.due(), []);
    }
}

/// The growth in each record of a state directory.
fn records(state: &TempDir) -> Vec<Growth> {
    let entries = std::fs::read_dir(state.path().join("node-volumes")).unwrap();
    let read = |path: PathBuf| -> NodeVolume {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    entries.filter_map(|entry| read(entry.unwrap().path()).growth).collect()
}

#[tokio::test]
async fn a_node_that_fails_is_never_a_final_answer_to_the_cloud() {
    let state = tempfile::tempdir().unwrap();
    let node = Node::new(&state).await;
    node.stage().await.unwrap();
    for code in [Code::Internal, Code::OutOfRange, Code::NotFound, Code::FailedPrecondition] {
        lock(&node.fake.failures).push_back(Status::new(code, "no room"));
        let status = node.expand().await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("no room"), "{status}");
        assert_eq!(node.due(), [Some(SIZE)]);
    }
    assert!(!node.expand().await.unwrap());
    assert_eq!(node.due(), []);
    // It has nothing to do on a node.
    lock(&node.fake.failures).push_back(Status::unimplemented(""));
    assert!(!node.expand().await.unwrap());
}

#[tokio::test]
async fn a_growth_that_may_succeed_delays_a_pod_and_a_refused_one_does_not() {
    let state = tempfile::tempdir().unwrap();
    let node = Node::new(&state).await;
    assert!(!node.expand().await.unwrap());
    lock(&node.fake.failures).push_back(Status::internal("busy"));
    assert_eq!(node.stage().await.unwrap_err().code(), Code::Unavailable);
    lock(&node.fake.failures).push_back(Status::out_of_range("too large"));
    node.stage().await.unwrap();
    assert_eq!(node.due(), [Some(SIZE)], "it is shown until it is done");
    node.publish("/staging").await;
    assert_eq!(node.due(), []);
}

#[tokio::test]
async fn a_kubelet_that_expands_waits_for_the_run_and_settles_what_is_owed() {
    let state = tempfile::tempdir().unwrap();
    let fake = Fake { room: Semaphore::new(0), ..Fake::new(state.path()) };
    let node = Arc::new(Node::start(START, fake).await);
    node.stage().await.unwrap();
    let range = csi::CapacityRange { required_bytes: SIZE, limit_bytes: 0 };
    let own = csi::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: "/target".into(),
        capacity_range: Some(range),
        ..Default::default()
    };
    let expanding = node.expand();
    let is_begun = async || {
        while node.fake.expanded().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let joining = async {
        // If the kubelet were first, ours would stay owed.
        is_begun().await;
        node.kubelet(Method::NodeExpandVolume, own.clone()).await
    };
    let opening = async {
        is_begun().await;
        // Both are under way when the driver begins to answer.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(node.fake.expanded().len(), 1);
        node.fake.room.add_permits(2);
    };
    let (expanded, joined, ()) = tokio::join!(expanding, joining, opening);
    assert!(!expanded.unwrap());
    joined.unwrap();
    assert_eq!(node.fake.expanded().len(), 2);
    // A kubelet that does it by itself is as good.
    node.unstage().await;
    assert!(!node.expand().await.unwrap());
    assert_eq!(node.due(), [Some(SIZE)]);
    node.fake.room.add_permits(1);
    node.kubelet(Method::NodeExpandVolume, own).await.unwrap();
    assert_eq!(node.due(), []);
}

#[tokio::test]
async fn an_expansion_that_is_not_ours_passes_as_it_came() {
    let cases: BTreeMap<&str, (Start, bool)> = [
        ("the kubelet's", (Start { by: NodeExpansion::Kubelet, ..START }, true)),
        ("of a shared driver", (Start { scope: Some(Scope::Shared), ..START }, true)),
        ("of a direct volume", (Start { direct: true, ..START }, true)),
        ("of a driver that cannot", (START, false)),
    ]
    .into();
    for (what, (start, expands_on_node)) in cases {
        let state = tempfile::tempdir().unwrap();
        let owing = Node::new(&state).await;
        // The kubelet's setting looks at nothing where nothing is owed.
        assert!(!owing.expand().await.unwrap());
        let fake = Fake { expands_on_node, ..Fake::new(state.path()) };
        let node = Node::start(start, fake).await;
        assert!(node.expand().await.unwrap(), "{what}");
    }
    let state = tempfile::tempdir().unwrap();
    let node = Node::start(Start { scope: None, ..START }, Fake::new(state.path())).await;
    assert_eq!(node.expand().await.unwrap_err().code(), Code::Unavailable, "the scope is unknown");
    assert_eq!(node.fake.calls_of(Method::ControllerExpandVolume).len(), 0);
    let fake = Fake { needs_node: false, ..Fake::new(state.path()) };
    let node = Node::start(START, fake).await;
    assert!(!node.expand().await.unwrap());
    assert_eq!((node.due(), kept(&state)), (vec![], 0), "the driver needs no node");
}

#[tokio::test]
async fn without_a_disk_nothing_is_expanded_and_pods_have_their_volumes() {
    let state = tempfile::tempdir().unwrap();
    let node = Node::new(&state).await;
    let in_the_way = state.path().join("node-volumes");
    proto::host::publish::publish(&in_the_way, b"", 0o600, proto::host::publish::Existing::Keep)
        .unwrap();
    let refused = |status: Status| {
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("--state"), "{status}");
    };
    refused(node.expand().await.unwrap_err());
    node.stage().await.unwrap();
    node.publish("/staging").await;
    let blind = Node::new(&state).await;
    refused(blind.expand().await.unwrap_err());
    blind.stage().await.unwrap();
    for node in [node, blind] {
        assert_eq!(node.fake.calls_of(Method::ControllerExpandVolume).len(), 0);
    }
}
