//! Drivers that announce themselves to a running csi-edge, and how csi-edge shows them.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use drivers::testdriver::TestDriver;
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{capability, controller, create, created};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, ready};
use http::{Request, Response};
use hyper::body::Incoming;
use parking_lot::Mutex;
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::host::publish::{Existing, publish};
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::forward::Answer;
use proto::http2::serve;
use proto::registration::{PluginInfo, RegistrationStatus};
use rustix::process::Signal;
use serde_json::Value;
use tonic::{Code, Status};

/// A vendor's registrar, and what it was told.
#[derive(Clone)]
struct Registrar {
    info: PluginInfo,
    told: Arc<Mutex<Vec<RegistrationStatus>>>,
}

impl Registrar {
    /// Announces a driver at this socket.
    fn announce(driver: &str, endpoint: &str, socket: &str) -> anyhow::Result<(Self, Tasks)> {
        let info = PluginInfo {
            r#type: "CSIPlugin".into(),
            name: driver.into(),
            endpoint: endpoint.into(),
            supported_versions: vec!["1.0.0".into()],
        };
        let registrar = Self { info, told: Arc::default() };
        let asked = registrar.clone();
        let tasks = Tasks::default();
        let answer = move |request| asked.clone().answer(request);
        let served = serve::serve_socket(Socket::bind(socket.as_ref())?, answer, tasks.clone());
        tasks.spawn("registrar", served);
        Ok((registrar, tasks))
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let is_told = request.uri().path().ends_with("/NotifyRegistrationStatus");
        let answered = self.answered(is_told, request.into_body()).await;
        let failed = |error: anyhow::Error| Status::internal(format!("{error:#}")).into_http();
        Ok(answered.map_or_else(failed, |message| Answer::of(frame::frame(&message)).response()))
    }

    async fn answered(&self, is_told: bool, body: Incoming) -> anyhow::Result<Vec<u8>> {
        let body = frame::collect(body).await?;
        if !is_told {
            return Ok(self.info.encode_to_vec());
        }
        let status = RegistrationStatus::decode(frame::message(&body)?)?;
        self.told.lock().push(status);
        Ok(Vec::new())
    }

    async fn told(&self) -> anyhow::Result<RegistrationStatus> {
        let told = || async { self.told.lock().first().cloned().context("it was told nothing") };
        until("the registrar is told", told).await
    }
}

/// A csi-cloud and a csi-edge without a driver, which looks for some.
struct Scene {
    stand: Stand,
    cloud: Cloud,
    edge: Process,
}

impl Scene {
    async fn new() -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        let registry = stand.at("registry");
        std::fs::create_dir(&registry)?;
        let config = stand.at("edge.toml");
        let text =
            format!("[discovery]\ndirectory = \"{registry}\"\nallow = [\"*.edge-csi.io\"]\n");
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
        let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
        let mut edge = Self::edge(&mut stand, &cloud).await?;
        edge.line_starting("linked ", START).await?;
        Ok(Self { stand, cloud, edge })
    }

    async fn edge(stand: &mut Stand, cloud: &Cloud) -> anyhow::Result<Process> {
        let url = cloud.urls.first().context("no listener")?.clone();
        let [config, state] = ["edge.toml", "state"].map(|name| stand.at(name));
        let more = ["--cloud", &url, "--config", &config, "--state", &state];
        stand.edge_with(NODE, &[], &more).await
    }

    /// Kills csi-cloud and csi-edge, and starts csi-edge again.
    async fn power_cut(&mut self) -> anyhow::Result<()> {
        self.cloud.process.signal(Signal::KILL)?;
        self.cloud.process.ended(STOP).await?;
        self.edge.signal(Signal::KILL)?;
        self.edge.ended(STOP).await?;
        self.edge = Self::edge(&mut self.stand, &self.cloud).await?;
        Ok(())
    }

    /// Asks at the node's own front.
    async fn ask(&self, method: &str, request: &[u8]) -> anyhow::Result<RawAnswer> {
        let front = RawClient::connect(&self.stand.edge_front(NODE, DRIVER)).await?;
        front.call(&format!("/csi.v1.{method}"), request).await
    }

    /// What `csi-edge COMMAND -o json` shows.
    async fn shows(&self, command: &str) -> anyhow::Result<Value> {
        let admin = self.stand.at(&format!("{NODE}/_admin.sock"));
        let said = self.stand.run("csi-edge", &[command, "-o", "json", "--admin", &admin]).await?;
        Ok(serde_json::from_str(&said)?)
    }

    /// Waits until the driver has this health.
    async fn health(&self, expected: &str) -> anyhow::Result<Value> {
        let shown = || async {
            let drivers = self.shows("drivers").await?;
            let driver = drivers.get(0).context("no driver")?.clone();
            ensure!(driver["health"] == expected, "{driver}");
            Ok(driver)
        };
        until(expected, shown).await
    }
}

#[tokio::test]
async fn a_driver_that_announces_itself_gets_volumes_and_is_watched() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let stand = &scene.stand;
    ensure!(scene.shows("drivers").await? == Value::Array(Vec::new()));
    let driver = TestDriver::new(DRIVER, NODE);
    let socket = stand.at("driver.sock");
    let serving = driver.serve(Path::new(&socket))?;
    let (registrar, _tasks) = Registrar::announce(DRIVER, &socket, &stand.at("registry/d.sock"))?;
    ensure!(registrar.told().await?.plugin_registered);

    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    until("the cloud learns of the driver", || ready(&front)).await?;
    created(&front.call(&controller("CreateVolume"), &create("v")).await?)?;
    let front_of_node = || async {
        let answer = scene.ask("Identity/GetPluginInfo", &[]).await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
        Ok(())
    };
    until("the node's own front", front_of_node).await?;
    let shown = scene.health("up").await?;
    ensure!(shown["found_by"] == stand.at("registry/d.sock") && shown["allowed"] == true);

    serving.stop().await;
    let shown = scene.health("gone").await?;
    ensure!(shown["why"].as_str().is_some_and(|why| why.contains(&socket)), "{shown}");
    let status = front.call(&controller("CreateVolume"), &create("w")).await?.status();
    ensure!(status.code() == Code::Unavailable, "{status}");
    // It was down, so it is not up at once.
    let _serving = driver.serve(Path::new(&socket))?;
    scene.health("starting").await?;
    created(&front.call(&controller("CreateVolume"), &create("v")).await?).map(drop)
}

#[tokio::test]
async fn a_driver_that_is_not_allowed_is_shown_and_not_used() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let stand = &scene.stand;
    let driver = TestDriver::new("stranger.example", NODE);
    let socket = stand.at("driver.sock");
    let _serving = driver.serve(Path::new(&socket))?;
    let registrar = stand.at("registry/d.sock");
    let (registrar, _tasks) = Registrar::announce("stranger.example", &socket, &registrar)?;
    let told = registrar.told().await?;
    ensure!(!told.plugin_registered && told.error.contains("[discovery] allow"), "{}", told.error);
    let drivers = scene.shows("drivers").await?;
    ensure!(drivers[0]["name"] == "stranger.example" && drivers[0]["allowed"] == false);
    ensure!(drivers[0]["announcement"] == "not_allowed", "{drivers}");
    let status = scene.shows("status").await?;
    ensure!(status["drivers"] == 0 && status["cloud"].is_string(), "{status}");
    ensure!(driver.calls_of("GetPluginInfo").is_empty(), "it was called");
    Ok(())
}

#[tokio::test]
async fn a_driver_that_was_found_is_served_after_a_power_cut_without_registrar_and_cloud()
-> anyhow::Result<()> {
    let mut scene = Scene::new().await?;
    let driver = TestDriver::new(DRIVER, NODE);
    let [socket, registry] = ["driver.sock", "registry/d.sock"].map(|name| scene.stand.at(name));
    let serving = driver.serve(Path::new(&socket))?;
    let (registrar, tasks) = Registrar::announce(DRIVER, &socket, &registry)?;
    ensure!(registrar.told().await?.plugin_registered);
    let info = async |scene: &Scene| {
        let answer = scene.ask("Node/NodeGetInfo", &[]).await?;
        let message = answer.message().with_context(|| answer.status().to_string())?;
        anyhow::Ok(csi::NodeGetInfoResponse::decode(message)?.node_id)
    };
    let kept = scene.stand.at("state/introductions.json");
    until("what the driver said is kept", || async {
        ensure!(Path::new(&kept).exists() && info(&scene).await? == NODE);
        Ok(())
    })
    .await?;
    serving.stop().await;
    tasks.give_up();
    until("the registrar has left", || async {
        ensure!(!Path::new(&registry).exists());
        Ok(())
    })
    .await?;
    scene.power_cut().await?;

    // What the kubelet asks at start, before the driver is up.
    until("the node's own front", || async { info(&scene).await.map(drop) }).await?;
    ensure!(info(&scene).await? == NODE);
    let shown = scene.shows("drivers").await?;
    ensure!(shown[0]["name"] == DRIVER && shown[0]["announcement"] == "gone", "{shown}");
    let _serving = driver.serve(Path::new(&socket))?;
    let stage = csi::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: "/staging".into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    let publish = csi::NodePublishVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: "/staging".into(),
        target_path: "/target".into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    for (method, request) in
        [("NodeStageVolume", stage.encode_to_vec()), ("NodePublishVolume", publish.encode_to_vec())]
    {
        let answer = scene.ask(&format!("Node/{method}"), &request).await?;
        ensure!(answer.code() == Code::Ok, "{method}: {}", answer.status());
    }
    ensure!(driver.calls_of("NodePublishVolume").len() == 1, "it did not reach the driver");
    Ok(())
}
