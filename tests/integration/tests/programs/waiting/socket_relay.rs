//! The sidecars' connections and calls outlive the csi-cloud that serves them: `csi-cloud relay`
//! holds both.

mod caller;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use cloud::relay::address::Address;
use cloud::relay::connection;
use drivers::testdriver::{Fault, Gate, Outcome, Running, TestDriver, Times};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use harness::port::with_port;
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::{controller, create, created};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, hello, ready};
use prost::Message;
use proto::control::hello::Message as Control;
use proto::csi;
use proto::csi::frame;
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use proto::http2::forward;
use proto::link;
use proto::link::tls::{Credentials, Files, Role};
use proto::link::{Event, KeepAlive, LinkError, ws};
use rustix::process::Signal;
use tokio::net::TcpSocket;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;

use self::caller::{Done, lead};

/// Callers at a time.
const CALLERS: usize = 8;

/// A node, and a relay whose csi-cloud comes and goes.
struct World {
    stand: Stand,
    cloud: Option<Cloud>,
    urls: Vec<String>,
    place: String,
    relay: Process,
    edge: Process,
    driver: TestDriver,
    serving: Running,
}

impl World {
    /// The relay reaches csi-cloud by a unix socket, or else by TLS.
    async fn new(unix: bool) -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        let driver = TestDriver::new(DRIVER, NODE);
        let socket = stand.at("driver.sock");
        let serving = driver.serve(Path::new(&socket))?;
        let place = if unix {
            format!("unix:{}", stand.at("holders.sock"))
        } else {
            with_port("https://127.0.0.1:0")?
        };
        let relay = hold(&stand, &place).await?;
        let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &["--holders", &place]).await?;
        let edge = stand.edge(NODE, &cloud.urls[0], &[(DRIVER, &socket)]).await?;
        let urls = cloud.urls.clone();
        let world = Self { stand, cloud: Some(cloud), urls, place, relay, edge, driver, serving };
        let front = world.front().await?;
        until("the cloud learns of the driver", || ready(&front)).await?;
        world.driver.forget_calls();
        Ok(world)
    }

    fn socket(&self) -> String {
        self.stand.at(&format!("held/{DRIVER}.sock"))
    }

    /// A connection to the socket that sidecars have.
    async fn front(&self) -> anyhow::Result<RawClient> {
        RawClient::connect(&self.socket()).await
    }

    async fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        let mut cloud = self.cloud.take().context("it does not run")?;
        cloud.process.signal(signal)?;
        cloud.process.ended(START).await.map(drop)
    }

    async fn begin(&mut self) -> anyhow::Result<()> {
        let urls: Vec<_> = self.urls.iter().map(String::as_str).collect();
        self.cloud = Some(self.stand.cloud(&urls, &[DRIVER], &["--holders", &self.place]).await?);
        Ok(())
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.end(Signal::TERM).await?;
        self.edge.stop(START).await?;
        self.relay.stop(START).await?;
        self.serving.stop().await;
        Ok(())
    }
}

async fn hold(stand: &Stand, place: &str) -> anyhow::Result<Process> {
    let mut command = stand.program("csi-cloud")?;
    command.args(["relay", "--fronts", &stand.at("held"), "--driver", DRIVER, "--to", place]);
    if place.starts_with("https:") {
        stand
            .run("csi-cloud", &["ca", "issue", "--relay", "front-1", "--dir", &stand.pki()])
            .await?;
        let files = stand.files("front-1");
        command.arg("--ca").arg(files.ca).arg("--cert").arg(files.cert).arg("--key").arg(files.key);
    }
    let mut relay = Process::start("csi-front", command, stand.dir())?;
    relay.line_starting("ready", START).await?;
    Ok(relay)
}

/// Restarts csi-cloud several times under load; no caller notices.
async fn restarted(unix: bool, times: usize) -> anyhow::Result<()> {
    let mut world = World::new(unix).await?;
    let done = Arc::new(Done::default());
    let ended = watch::Sender::new(false);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(lead(world.socket(), caller, done.clone(), ended.subscribe()));
    }
    for time in 0..times {
        let before = done.calls.load(Ordering::Relaxed);
        until("calls are answered", || async {
            let since = done.calls.load(Ordering::Relaxed) - before;
            ensure!(since >= 10 * CALLERS, "{since} calls since restart {time}");
            Ok(())
        })
        .await?;
        ensure!(
            callers.try_join_next().is_none_or(|ended| ended.is_ok_and(|e| e.is_ok())),
            "a caller failed"
        );
        world.end(if time % 2 == 0 { Signal::TERM } else { Signal::KILL }).await?;
        world.begin().await?;
    }
    ended.send_replace(true);
    while let Some(caller) = callers.join_next().await {
        caller.context("a caller crashed")?.with_context(|| world.relay.log_tail())?;
    }
    assert_eq!(done.connections.load(Ordering::Relaxed), CALLERS, "a connection was lost");
    assert!(world.driver.volumes().is_empty(), "leaked: {:?}", world.driver.volumes().len());
    let mut runs: BTreeMap<(String, Vec<u8>), usize> = BTreeMap::new();
    for method in
        ["CreateVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "DeleteVolume"]
    {
        for call in world.driver.calls_of(method) {
            *runs.entry((method.into(), call.message.to_vec())).or_default() += 1;
        }
    }
    let doubles: Vec<_> =
        runs.iter().filter(|(_, times)| **times > 1).map(|((method, _), n)| (method, n)).collect();
    let calls = done.calls.load(Ordering::Relaxed);
    let slowest = done.slowest_ms.load(Ordering::Relaxed);
    println!("{times} restarts, {calls} calls, the slowest {slowest} ms");
    assert!(doubles.is_empty(), "ran more than once: {doubles:?}");
    world.stop().await
}

#[tokio::test]
async fn nobody_notices_ten_restarts_under_load() -> anyhow::Result<()> {
    restarted(true, 10).await
}

#[tokio::test]
async fn nobody_notices_restarts_on_another_host() -> anyhow::Result<()> {
    restarted(false, 6).await
}

#[tokio::test]
async fn a_call_that_was_dispatched_runs_once_whatever_ends_csi_cloud() -> anyhow::Result<()> {
    let mut world = World::new(true).await?;
    let front = world.front().await?;
    // Told to stop it leaves the call to the next one at once, and does not wait for the driver.
    for (name, signal) in [("killed", Signal::KILL), ("stopped", Signal::TERM)] {
        world.driver.forget_calls();
        let gate = Gate::new();
        world.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
        let path = controller("CreateVolume");
        let request = create(name);
        let breaking = async {
            gate.wait_for(1).await?;
            world.end(signal).await?;
            world.begin().await?;
            gate.open();
            anyhow::Ok(())
        };
        let (answer, broken) = tokio::join!(front.call(&path, &request), breaking);
        broken?;
        created(&answer?).context(name)?;
        assert_eq!(world.driver.calls_of("CreateVolume").len(), 1, "{name}");
    }
    world.stop().await
}

#[tokio::test]
async fn without_csi_cloud_identity_is_answered_and_calls_are_held_until_their_deadline()
-> anyhow::Result<()> {
    let mut world = World::new(true).await?;
    let front = world.front().await?;
    let capabilities = controller("ControllerGetCapabilities");
    let before = front.call(&capabilities, &[]).await?;
    world.end(Signal::KILL).await?;
    ready(&front).await?;
    assert_eq!(front.call(&capabilities, &[]).await?.body, before.body);

    let begun = Instant::now();
    let body = frame::frame(&create("v"));
    let held =
        front.send(&controller("CreateVolume"), body.clone(), &[("grpc-timeout", "300m")]).await?;
    assert_eq!(held.code(), Code::DeadlineExceeded, "{}", held.status());
    assert!(begun.elapsed() >= Duration::from_millis(300));
    let path = controller("CreateVolume");
    let request = create("v");
    let call = front.call(&path, &request);
    let beginning = async {
        until("it is held", || async {
            let log = String::from_utf8_lossy(&world.relay.log()).into_owned();
            ensure!(log.contains("takes no more calls"), "not noticed");
            Ok(())
        })
        .await?;
        world.begin().await
    };
    let (answer, begun) = tokio::join!(call, beginning);
    begun?;
    created(&answer?)?;
    world.stop().await
}

#[tokio::test]
async fn a_holder_that_never_saw_csi_cloud_is_not_ready_and_no_error() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let relay = hold(&stand, &format!("unix:{}", stand.at("nobody.sock"))).await?;
    let front = RawClient::connect(&stand.at(&format!("held/{DRIVER}.sock"))).await?;
    let probe = front.call("/csi.v1.Identity/Probe", &[]).await?;
    let probe = csi::ProbeResponse::decode(probe.message().context("Probe failed")?)?;
    assert_eq!(probe.ready, Some(false));
    let body = frame::frame(&[]);
    let info =
        front.send("/csi.v1.Identity/GetPluginInfo", body, &[("grpc-timeout", "200m")]).await?;
    assert_eq!(info.code(), Code::DeadlineExceeded, "{}", info.status());
    relay.stop(START).await
}

#[tokio::test]
async fn more_calls_than_there_is_room_for_are_refused_and_a_caller_that_leaves_makes_room()
-> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let relay = hold(&stand, &format!("unix:{}", stand.at("nobody.sock"))).await?;
    let front = RawClient::connect(&stand.at(&format!("held/{DRIVER}.sock"))).await?;
    let path = controller("CreateVolume");
    let body = frame::frame(&create("v"));
    let call = || front.send(&path, body.clone(), &[]);
    {
        let mut held: FuturesUnordered<_> = (0..1024).map(|_| call()).collect();
        let full = async {
            until("all are held", || async {
                let answer = front.send(&path, body.clone(), &[("grpc-timeout", "50m")]).await?;
                ensure!(answer.code() == Code::Unavailable, "{}", answer.status());
                ensure!(answer.status().message().contains("1024"), "{}", answer.status());
                Ok(())
            })
            .await?;
            // An error of Probe ends a sidecar.
            let probe = front.send("/csi.v1.Identity/Probe", frame::frame(&[]), &[]).await?;
            ensure!(probe.code() == Code::Ok, "{}", probe.status());
            Ok(())
        };
        tokio::select! {
            // These calls are sent first, because the last one must find no place.
            biased;
            _ = held.next() => panic!("a held call was answered"),
            full = full => full?,
        }
    }
    until("there is room again", || async {
        let answer = front.send(&path, body.clone(), &[("grpc-timeout", "50m")]).await?;
        ensure!(answer.code() == Code::DeadlineExceeded, "{}", answer.status());
        Ok(())
    })
    .await?;
    relay.stop(START).await
}

#[tokio::test]
async fn a_driver_that_marks_its_answer_as_csi_cloud_does_is_asked_once() -> anyhow::Result<()> {
    let world = World::new(true).await?;
    let front = world.front().await?;
    let mut headers = http::HeaderMap::new();
    headers.insert(connection::AGAIN, http::HeaderValue::from_static("1"));
    let info = csi::GetCapacityResponse { available_capacity: 7, ..Default::default() };
    let fault = Fault::Raw {
        message: info.encode_to_vec().into(),
        headers: headers.clone(),
        trailers: headers,
    };
    world.driver.inject("ControllerGetVolume", fault, Times::All);
    let request = csi::ControllerGetVolumeRequest { volume_id: "v".into() };
    let body = frame::frame(&request.encode_to_vec());
    let answer =
        front.send(&controller("ControllerGetVolume"), body, &[("grpc-timeout", "5S")]).await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    assert_eq!(world.driver.calls_of("ControllerGetVolume").len(), 1);
    world.stop().await
}

#[tokio::test]
async fn a_stream_ends_unavailable_when_csi_cloud_goes() -> anyhow::Result<()> {
    let mut world = World::new(true).await?;
    let front = world.front().await?;
    let [allocated, _] = harness::requests::snapshot_requests(
        &RawClient::connect(&world.stand.at("driver.sock")).await?,
    )
    .await?;
    let gate = Gate::new();
    world.driver.inject("GetMetadataAllocated", Fault::Gate(gate.clone()), Times::Next(1));
    let path = "/csi.v1.SnapshotMetadata/GetMetadataAllocated";
    let breaking = async {
        gate.wait_for(1).await?;
        world.end(Signal::KILL).await
    };
    let (answer, broken) = tokio::join!(front.call(path, &allocated), breaking);
    broken?;
    assert_eq!(answer?.code(), Code::Unavailable);
    // Opened before that, it might end as if nothing had happened.
    world.driver.wait_for_outcome("GetMetadataAllocated", Outcome::Dropped, 1).await?;
    gate.open();
    world.begin().await?;
    world.stop().await
}

/// Calls csi-cloud as a relay with these credentials. The handshake ends for the client before the
/// server has checked its certificate.
async fn ask_at(place: &Address, credentials: Credentials) -> anyhow::Result<http::StatusCode> {
    let (upstream, connection) =
        forward::connect(connection::dial(place, Some(&credentials)).await?).await?;
    let tasks = Tasks::default();
    tasks.spawn_until_stop("connection", async move { drop(connection.await) });
    let request = http::Request::post(format!("http://{DRIVER}/csi.v1.Identity/Probe"));
    let request = request.header("content-type", "application/grpc").body(())?;
    let answer = upstream.send(request, frame::frame(&[])).await;
    tasks.stop();
    Ok(answer.map(|answer| answer.status())?)
}

/// Checks that csi-cloud takes a connection with these credentials and ends it. [`LinkError`] is
/// that of a csi-cloud that cannot be reached.
async fn is_ended(place: &Address, credentials: Credentials) -> anyhow::Result<()> {
    let error = ask_at(place, credentials).await.err().context("the credentials are taken")?;
    ensure!(!error.is::<LinkError>(), "csi-cloud was not reached: {error:#}");
    Ok(())
}

#[tokio::test]
async fn who_connects_and_says_nothing_keeps_no_other_address_out() -> anyhow::Result<()> {
    let world = World::new(false).await?;
    let at = world.place.trim_start_matches("https://").parse()?;
    let mut silent = Vec::new();
    for _ in 0..64 {
        let socket = TcpSocket::new_v4()?;
        socket.bind("127.0.0.2:0".parse()?)?;
        silent.push(socket.connect(at).await?);
    }
    let credentials = world.stand.credentials("front-1", Role::Front)?;
    let place: Address = world.place.parse()?;
    let asked = tokio::time::timeout(Duration::from_secs(5), ask_at(&place, credentials)).await;
    assert_eq!(asked.context("the silent ones have all the room")??, 200);
    drop(silent);
    world.stop().await
}

#[tokio::test]
async fn only_a_front_may_bring_calls_and_it_is_no_node() -> anyhow::Result<()> {
    let world = World::new(false).await?;
    let place: Address = world.place.parse()?;
    let cloud = world.cloud.as_ref().context("csi-cloud does not run")?;
    let front = world.stand.credentials("front-1", Role::Front)?;
    assert_eq!(ask_at(&place, front).await?, 200);
    is_ended(&place, world.stand.credentials(NODE, Role::Node)?).await?;
    cloud.process.logged("it may not hold fronts here").await?;
    let other = Stand::new().await?;
    other.run("csi-cloud", &["ca", "issue", "--relay", "front-1", "--dir", &other.pki()]).await?;
    // The client takes both CAs, so that it does not refuse csi-cloud.
    let files = other.files("front-1");
    let ours = std::fs::read_to_string(world.stand.files("front-1").ca)?;
    let both = ours + &std::fs::read_to_string(&files.ca)?;
    let ca = PathBuf::from(other.at("both.crt"));
    publish(&ca, both.as_bytes(), 0o600, Existing::Keep)?;
    let files = Files { ca, ..files };
    is_ended(&place, Credentials::load(&files, Role::Front)?).await?;
    cloud.process.logged("it is of another CA than ours").await?;

    let credentials = world.stand.credentials("front-1", Role::Front)?;
    let url = world.urls[0].parse()?;
    // Refused in the middle of the upgrade, or after it.
    if let Ok(mut link) = link::dial(&url, &credentials, KeepAlive::default(), &ws::tcp()).await {
        link.send(&Control::Hello(hello(NODE)?)).await?;
        assert!(matches!(link.next().await, Event::Closed(_)), "a front is taken for a node");
    }
    world.stop().await
}

#[tokio::test]
async fn the_connection_of_a_revoked_front_ends_and_it_gets_no_other() -> anyhow::Result<()> {
    let world = World::new(false).await?;
    let place: Address = world.place.parse()?;
    let credentials = world.stand.credentials("front-1", Role::Front)?;
    let (upstream, connection) =
        forward::connect(connection::dial(&place, Some(&credentials)).await?).await?;
    let tasks = Tasks::default();
    let (ended, end) = oneshot::channel();
    tasks.spawn_until_stop("connection", async move {
        drop(connection.await);
        let _ = ended.send(());
    });
    let request = http::Request::post(format!("http://{DRIVER}/csi.v1.Identity/Probe"));
    let request = request.header("content-type", "application/grpc").body(())?;
    assert_eq!(upstream.send(request, frame::frame(&[])).await?.status(), 200);

    let admin = world.stand.at("cloud/_admin.sock");
    let revoke = ["node", "revoke", "--relay", "front-1", "--admin", &admin];
    world.stand.run("csi-cloud", &revoke).await?;
    tokio::time::timeout(START, end).await.context("its connection goes on")??;
    is_ended(&place, credentials).await?;
    let cloud = world.cloud.as_ref().context("csi-cloud does not run")?;
    until("the second connection of the revoked front is ended", || async {
        // The whole: the relay is refused twice a second.
        let log = cloud.process.log();
        let ended = String::from_utf8_lossy(&log).matches("a socket relay was revoked").count();
        ensure!(ended == 2, "{ended}: {}", cloud.process.log_tail());
        Ok(())
    })
    .await?;
    drop(upstream);
    tasks.stop();
    world.stop().await
}

/// Prints the cost of the hop and the memory of the relay: `make hop`.
#[tokio::test]
#[ignore = "a measurement"]
async fn what_the_hop_costs() -> anyhow::Result<()> {
    let world = World::new(true).await?;
    let own = RawClient::connect(&world.stand.cloud_front(DRIVER)).await?;
    let held = world.front().await?;
    world.driver.record(false);
    let path = controller("GetCapacity");
    let mut p50 = Vec::new();
    for front in [&own, &held, &own, &held] {
        let mut times = Vec::new();
        for _ in 0..3000 {
            let begun = Instant::now();
            ensure!(front.call(&path, &[]).await?.code() == Code::Ok);
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        p50.push(times[times.len() / 2]);
    }
    let status = std::fs::read_to_string(format!(
        "/proc/{}/status",
        world.relay.pid().context("it ended")?
    ))?;
    let resident =
        status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("RssAnon"));
    println!("p50 by csi-cloud's own socket, by the relay, and both again: {p50:?}");
    println!("the relay: {:?}", resident.collect::<Vec<_>>());
    world.stop().await
}
