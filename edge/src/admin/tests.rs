use std::path::{Path, PathBuf};
use std::sync::Arc;

use edge_calls::drivers;
use edge_calls::drivers::{Drivers, FoundBy};
use edge_calls::executor::Executor;
use edge_calls::metadata::Receiving;
use edge_calls::node_volumes::{Growth, NodeVolume, Places};
use edge_direct::runtimes::Roots;
use http::{Method, StatusCode};
use proto::admin::client::{Client, ClientError};
use proto::admin::http1;
use proto::control::health::HealthState;
use proto::control::hello::Run;
use proto::control::metadata::{Key, Kind, NodeObject, Object, Part, Pod, Position, Volume};
use proto::host::publish::{Existing, publish};
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::drivers::DriverView;
use super::server;
use super::state::AdminState;
use super::status::StatusView;
use super::volumes::{VolumeView, expansion};
use crate::link::dial::Linked;
use crate::state::first_link::FirstLink;

/// A node with one driver, which nobody has reached.
fn node(dir: Option<PathBuf>) -> (AdminState, watch::Sender<Option<Linked>>) {
    let drivers = Arc::new(Drivers::new("n1".parse().unwrap(), drivers::unix()));
    let socket = PathBuf::from("/d.sock");
    drivers.add("d.example".parse().unwrap(), socket, FoundBy::Configuration).unwrap();
    let executor = Arc::new(Executor::new(drivers.clone(), Tasks::default()));
    let linked = watch::Sender::default();
    let state = AdminState {
        drivers,
        executor,
        registrations: Arc::default(),
        linked: linked.subscribe(),
        first_link: Arc::default(),
        identity: None,
        state: dir,
        roots: Roots { entries: "/nowhere".into(), ..Roots::default() },
        kubelets: Vec::new(),
        metadata: Arc::default(),
        not_taken: watch::channel(None).1,
        run: Run::begin(),
        began: Instant::now(),
        stopping: false.into(),
    };
    (state, linked)
}

fn status(state: &AdminState, path: &str) -> Option<StatusCode> {
    server::monitored(state, &Method::GET, path).map(|answer| answer.status())
}

fn link() -> Linked {
    Linked { cloud: "wss://cloud.example:1".into(), since: Instant::now() }
}

#[tokio::test]
async fn it_is_ready_with_a_link_or_with_what_it_has_kept() {
    let (state, linked) = node(None);
    assert_eq!(status(&state, "/livez"), Some(StatusCode::OK));
    assert_eq!(status(&state, "/readyz"), Some(StatusCode::SERVICE_UNAVAILABLE));
    linked.send_replace(Some(link()));
    assert_eq!(status(&state, "/readyz"), Some(StatusCode::OK));
    linked.send_replace(None);
    assert_eq!(status(&state, "/readyz"), Some(StatusCode::SERVICE_UNAVAILABLE));
    let dir = tempfile::tempdir().unwrap();
    let (mut state, linked) = node(Some(dir.path().to_owned()));
    assert_eq!(status(&state, "/readyz"), Some(StatusCode::SERVICE_UNAVAILABLE), "an update");
    state.first_link = Arc::new(FirstLink::open(Some(dir.path()), &[]));
    linked.send_replace(Some(link()));
    state.first_link.clone().follow(linked.subscribe()).await;
    linked.send_replace(None);
    assert_eq!(status(&state, "/readyz"), Some(StatusCode::OK), "the node is served without it");
    state.stop();
    assert_eq!(status(&state, "/readyz"), Some(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(status(&state, "/livez"), Some(StatusCode::OK), "it still answers");
    assert_eq!(status(&state, "/drivers"), None);
    let posted = server::monitored(&state, &Method::POST, "/livez").unwrap();
    assert_eq!(posted.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn metrics_have_each_driver_in_one_state() {
    let (state, linked) = node(None);
    linked.send_replace(Some(link()));
    let text = state.metrics();
    for line in [
        "csi_edge_linked 1",
        "csi_edge_driver_health{driver=\"d.example\",state=\"starting\"} 1",
        "csi_edge_driver_health{driver=\"d.example\",state=\"up\"} 0",
        "csi_edge_calls_in_flight{driver=\"d.example\"} 0",
        "csi_edge_direct_not_taken 0",
        "csi_edge_deletes_refused_total 0",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for metric in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = metric.split_once(' ').unwrap();
        // A counter's type is told without the end of its name.
        let end = if kind == "counter" { "_total" } else { "" };
        assert!(guide.contains(&format!("`{name}{end}`")), "the guide has nothing of {name}");
    }
}

#[tokio::test]
async fn commands_are_answered_at_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(http1::SOCKET_NAME);
    let (state, linked) = node(Some(dir.path().join("state")));
    let tasks = Tasks::default();
    let socket = Socket::bind_for(&path, http1::MODE).unwrap();
    tasks.spawn("admin", server::serve(Arc::new(state), socket, tasks.clone()));
    let mut client = Client::connect("csi-edge", &path).await.unwrap();
    let drivers: Vec<DriverView> = client.ask("/drivers", &json!({})).await.unwrap();
    let [driver] = drivers.as_slice() else { panic!("{drivers:?}") };
    assert_eq!((driver.name.as_str(), driver.health), ("d.example", Some(HealthState::Starting)));
    assert_eq!((driver.found_by.as_str(), driver.allowed), ("configuration", true));
    linked.send_replace(Some(link()));
    let status: StatusView = client.ask("/status", &json!({})).await.unwrap();
    assert_eq!(status.cloud.as_deref(), Some("wss://cloud.example:1"));
    assert_eq!((status.drivers, status.drivers_up, status.calls), (1, 0, 0));
    for path in ["/volumes", "/calls", "/calls/ended"] {
        let listed: Vec<serde_json::Value> = client.ask(path, &json!({})).await.unwrap();
        assert_eq!(listed, [json!(null); 0], "{path}");
    }
    let unknown = client.ask::<StatusView>("/future", &json!({})).await;
    assert!(matches!(unknown, Err(ClientError::Refused(why)) if why.contains("/future")));
    tasks.stop();
}

#[test]
fn an_expansion_is_due_or_only_begun() {
    for (growth, standing, why) in
        [(Growth::Due { bytes: 7 }, "due", "to 7 bytes"), (Growth::Begun, "begun", "not known")]
    {
        let shown = expansion(NodeVolume {
            driver: "d.example".parse().unwrap(),
            volume_id: "vol-1".into(),
            boot: String::new(),
            places: Places::default(),
            growth: Some(growth),
        });
        assert_eq!((shown.kind.as_str(), shown.standing.as_str()), ("expansion", standing));
        assert!(shown.volume == "vol-1" && shown.why.contains(why), "{shown:?}");
    }
}

#[tokio::test]
async fn a_volume_is_named_and_left_over_when_its_pod_is_gone() {
    let (state, _linked) = node(None);
    let view = || VolumeView {
        kind: "direct".into(),
        volume: "vol-1".into(),
        driver: "d.example".into(),
        standing: "published".into(),
        device: PathBuf::new(),
        sandbox: None,
        target: PathBuf::new(),
        why: String::new(),
        pod: None,
        claim: None,
        left_over: false,
    };
    assert_eq!(state.named(view(), "uid"), view(), "nothing is known");
    let pod =
        Pod { namespace: "shop".into(), name: "db-0".into(), uid: "uid".into(), ..Pod::default() };
    let volume = Volume {
        name: "pv".into(),
        driver: "d.example".into(),
        handle: "vol-1".into(),
        claim: Some(("shop".into(), "db".into())),
        ..Volume::default()
    };
    assert_eq!(state.status().node_object, None);
    let labels = [("site".into(), "north".into())].into();
    let node = NodeObject { name: "n1".into(), labels, ..NodeObject::default() };
    let objects = vec![Object::Pod(pod), Object::Volume(volume), Object::Node(node.clone())];
    let at = |revision| Position { epoch: 1, revision };
    let part = Part { to: at(1), last: true, objects, ..Part::default() };
    let mut receiving = Receiving::default();
    state.metadata.take(&mut receiving, part).await;
    let named = state.named(view(), "uid");
    assert_eq!((named.pod.as_deref(), named.left_over), (Some("shop/db-0"), false));
    assert_eq!(named.claim.as_deref(), Some("shop/db"));
    assert_eq!(state.status().node_object, Some(node));
    let gone = vec![Key::within(Kind::Pod, "shop", "db-0")];
    let part = Part { from: Some(at(1)), to: at(2), last: true, gone, ..Part::default() };
    state.metadata.take(&mut receiving, part).await;
    let named = state.named(view(), "uid");
    assert_eq!((named.pod.as_deref(), named.left_over), (Some("shop/db-0"), true));
    // An ordinary volume that its kubelet has not taken away.
    let kubelet = tempfile::tempdir().unwrap();
    let volume = kubelet.path().join("pods/uid/volumes/kubernetes.io~csi/pv");
    std::fs::create_dir_all(&volume).unwrap();
    let note = br#"{"driverName":"d.example","volumeHandle":"vol-1"}"#;
    publish(&volume.join("vol_data.json"), note, 0o600, Existing::Keep).unwrap();
    let state = AdminState { kubelets: vec![kubelet.path().to_owned()], ..state };
    let volumes = state.volumes().await.unwrap();
    let [shown] = volumes.as_slice() else { panic!("{volumes:?}") };
    assert_eq!((shown.kind.as_str(), shown.volume.as_str()), ("ordinary", "vol-1"));
    assert_ne!(shown.standing, "mounted");
    assert_eq!((shown.pod.as_deref(), shown.left_over), (Some("shop/db-0"), true));
    assert_eq!(shown.claim.as_deref(), Some("shop/db"));
}
