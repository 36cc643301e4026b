//! Introductions of which a part is missing.

use std::collections::BTreeSet;

use super::*;
use crate::executor::Executor;
use crate::introductions::{Introductions, KeptFor};
use crate::scopes::Scopes;

const ATTACH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const INFO: &str = "/csi.v1.Node/NodeGetInfo";
const PLUGIN: &str = "/csi.v1.Identity/GetPluginCapabilities";
const CONTROLLER_SAYS: &str = "/csi.v1.Controller/ControllerGetCapabilities";

fn node_info() -> Vec<u8> {
    csi::NodeGetInfoResponse { node_id: "id-1".into(), ..Default::default() }.encode_to_vec()
}

fn other_node_info() -> Vec<u8> {
    csi::NodeGetInfoResponse { node_id: "id-2".into(), ..Default::default() }.encode_to_vec()
}

fn newer() -> Vec<u8> {
    let (name, vendor_version) = (NAME.into(), "2".into());
    csi::GetPluginInfoResponse { name, vendor_version, ..Default::default() }.encode_to_vec()
}

fn with_controller() -> Vec<u8> {
    use csi::plugin_capability::{Service, Type, service};
    let service = Service { r#type: service::Type::ControllerService as i32 };
    let has = csi::PluginCapability { r#type: Some(Type::Service(service)) };
    csi::GetPluginCapabilitiesResponse { capabilities: vec![has] }.encode_to_vec()
}

/// The node id that the cloud is told, if any.
fn told(scene: &Scene) -> Option<String> {
    let hello = scene.driver.hello();
    let info = hello.answers.get("NodeGetInfo")?.0.clone();
    Some(csi::NodeGetInfoResponse::decode(info).unwrap().node_id)
}

#[tokio::test(start_paused = true)]
async fn a_nodes_half_is_known_while_the_controllers_is_not() {
    for code in [Code::Internal, Code::Unknown] {
        let scene = Scene::new(PathBuf::from(MAIN));
        scene.process.does(INFO, Does::Ok(node_info));
        scene.process.does(PLUGIN, Does::Ok(with_controller));
        scene.process.does(CONTROLLER_SAYS, Does::Fail(code));
        scene.process.starts(MAIN);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.driver.has_own_topology(), Some(false), "its front can answer");
        assert_eq!(told(&scene).as_deref(), Some("id-1"));
        assert_eq!(scene.driver.hello().answers.len(), 1, "nobody takes it for the whole");
        let health = scene.driver.health();
        assert_eq!(health.state, HealthState::Starting);
        assert!(health.why.contains("ControllerGetCapabilities"), "{}", health.why);
        let asked = scene.called(INFO).len();
        scene.process.does(CONTROLLER_SAYS, Does::Ok(Vec::new));
        scene.until(HealthState::Up).await;
        assert!(scene.driver.hello().answers.len() > 1);
        assert_eq!(scene.called(INFO).len(), asked, "what it has said is not asked again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_without_a_controller_is_whole() {
    let scene = Scene::new(PathBuf::from(MAIN));
    scene.process.does(INFO, Does::Ok(node_info));
    scene.process.does(PLUGIN, Does::Ok(Vec::new));
    scene.process.starts(MAIN);
    scene.until(HealthState::Up).await;
    assert!(scene.driver.hello().answers.contains_key("GetPluginInfo"));
    assert_eq!(scene.called(CONTROLLER_SAYS).len(), 0);
}

/// A driver that said before that it is `id-1`, and answers so now.
async fn again(info: fn() -> Vec<u8>, does: Does) -> Scene {
    let process = Process::default();
    let of = KeptFor { node: "n1".parse().unwrap(), machine: None };
    let introductions = Introductions::open(None, of);
    let said = [("GetPluginInfo", super::info()), ("NodeGetInfo", node_info())];
    let said = said.map(|(method, said)| (method.to_owned(), hello::Protobuf(said.into())));
    let name = NAME.parse().unwrap();
    let before = hello::Driver { name, answers: said.into(), health: None };
    introductions.take(vec![before]).await;
    let drivers = Drivers::new("n1".parse().unwrap(), process.connect());
    let scene = Scene::of(process, drivers.with_introductions(introductions), PathBuf::from(MAIN));
    scene.process.does(INFO, does);
    scene.process.starts(MAIN);
    scene.process.does("/csi.v1.Identity/GetPluginInfo", Does::Ok(info));
    sleep(Duration::from_millis(600)).await;
    scene
}

#[tokio::test(start_paused = true)]
async fn what_the_same_driver_said_before_stands_while_it_cannot_say_it() {
    for code in [Code::Unavailable, Code::DeadlineExceeded, Code::Internal, Code::Unknown] {
        let scene = again(info, Does::Fail(code)).await;
        assert_eq!(told(&scene).as_deref(), Some("id-1"));
        assert!(scene.driver.hello().answers.contains_key("GetPluginInfo"), "it is whole");
        assert_eq!(scene.driver.health().state, HealthState::Up);
        scene.process.does(INFO, Does::Ok(other_node_info));
        sleep(Duration::from_secs(3)).await;
        assert_eq!(told(&scene).as_deref(), Some("id-2"), "it is asked again");
    }
    for (info, code) in [
        (info as fn() -> Vec<u8>, Code::FailedPrecondition),
        (info, Code::NotFound),
        (newer, Code::Unavailable),
    ] {
        let scene = again(info, Does::Fail(code)).await;
        assert_eq!(told(&scene), None, "{code:?}");
        assert_eq!(scene.driver.health().state, HealthState::Starting);
    }
}

/// The node at which csi-cloud publishes the driver in a kubelet's place, or a kubelet does.
async fn published(is_ours: bool) -> Scene {
    published_as(is_ours).await.0
}

async fn published_as(is_ours: bool) -> (Scene, Arc<Executor>, Arc<Scopes>) {
    let process = Process::default();
    process.does(INFO, Does::Ok(node_info));
    process.starts(MAIN);
    let drivers = Drivers::new("n1".parse().unwrap(), process.connect());
    let scene = Scene::of(process, drivers, PathBuf::from(MAIN));
    let scopes = Arc::new(Scopes::default());
    let ours = is_ours.then(|| NAME.parse().unwrap());
    scopes.receive_published(Some(ours.into_iter().collect()));
    scopes.settle().await;
    let executor = Executor::new(scene.drivers.clone(), scene.tasks.clone());
    let executor = Arc::new(executor.with_scopes(scopes.clone()));
    scene.tasks.spawn_until_stop("node infos", executor.clone().ask_node_infos());
    scene.until(HealthState::Up).await;
    (scene, executor, scopes)
}

#[tokio::test(start_paused = true)]
async fn who_is_published_by_csi_cloud_is_asked_again_and_another_answer_is_told() {
    const MINUTES: Duration = Duration::from_mins(11);
    let scene = published(true).await;
    let mut changes = scene.drivers.changes();
    changes.mark_unchanged();
    sleep(MINUTES).await;
    assert_eq!(scene.called(INFO).len(), 2);
    assert!(!changes.has_changed().unwrap(), "it says the same");
    for fails in [Does::Fail(Code::Internal), Does::Fail(Code::Unimplemented), Does::Hang] {
        scene.process.does(INFO, fails);
        sleep(MINUTES).await;
        assert_eq!(told(&scene).as_deref(), Some("id-1"));
        assert_eq!(scene.driver.health().state, HealthState::Up, "a failure changes nothing");
    }
    scene.process.does(INFO, Does::Ok(other_node_info));
    sleep(MINUTES).await;
    assert!(changes.has_changed().unwrap(), "the cloud is told");
    assert_eq!(told(&scene).as_deref(), Some("id-2"));
    let kubelets = published(false).await;
    sleep(MINUTES).await;
    assert_eq!(kubelets.called(INFO).len(), 1, "its kubelet asks");
}

#[tokio::test(start_paused = true)]
async fn a_driver_is_asked_as_often_as_its_csidriver_object_says() {
    let (scene, _executor, scopes) = published_as(true).await;
    let asked_within = async |period_s: Option<u32>, seconds| {
        let period = period_s.map(|every| (NAME.parse().unwrap(), every));
        scopes.receive_node_info_periods(period.into_iter().collect());
        // The first question is due by what went before.
        sleep(Duration::from_secs(60)).await;
        let before = scene.called(INFO).len();
        sleep(Duration::from_secs(seconds)).await;
        scene.called(INFO).len() - before
    };
    assert_eq!(asked_within(Some(60), 300).await, 5);
    assert_eq!(asked_within(Some(0), 50).await, 5, "the API server takes no period below 10 s");
    assert_eq!(asked_within(None, 1200).await, 2);
    scopes.receive_node_info_periods([(NAME.parse().unwrap(), 60)].into());
    scopes.receive_published(Some(BTreeSet::new()));
    scopes.settle().await;
    let before = scene.called(INFO).len();
    sleep(Duration::from_mins(30)).await;
    assert_eq!(scene.called(INFO).len(), before, "a kubelet publishes the driver now");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_full_is_asked_how_much_it_has() {
    for (is_ours, asked) in [(true, 2), (false, 1)] {
        let (scene, executor, _scopes) = published_as(is_ours).await;
        scene.process.does(ATTACH, Does::Fail(Code::ResourceExhausted));
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: "v".into(),
            node_id: "id-1".into(),
            ..Default::default()
        };
        let path = http::uri::PathAndQuery::from_static(ATTACH);
        let call =
            Call { headers: HeaderMap::new(), path, body: frame::frame(&request.encode_to_vec()) };
        let answer = executor.ask(NAME, call, None).await.unwrap();
        assert_eq!(answer.failure().map(|status| status.code()), Some(Code::ResourceExhausted));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.called(INFO).len(), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_kubelet_was_told_is_told_to_the_cloud_too() {
    let scene = published(false).await;
    scene.process.does(INFO, Does::Ok(other_node_info));
    let answer = scene.call(INFO).await.unwrap();
    scene.driver.note_node_info(&answer);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(told(&scene).as_deref(), Some("id-2"));
    let asked = scene.called(INFO).len();
    scene.driver.note_node_info(&answer);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(scene.called(INFO).len(), asked, "the same answer is no news");
}
