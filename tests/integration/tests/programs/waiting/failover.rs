//! Three csi-clouds with a real etcd: whichever of them ends, callers of the socket relay are
//! answered through the next leader.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;

use anyhow::Context;
use drivers::testdriver::{Fault, Gate, Running, TestDriver, Times};
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create, created};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, ready};
use proto::csi::frame;
use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::timeout;
use tonic::Code;

/// Debian's program.
const ETCD: &str = "/usr/bin/etcd";
const NAMES: [&str; 3] = ["a", "b", "c"];
/// In the log of a csi-cloud, when it begins to lead.
const LEADS: &str = "this csi-cloud leads";

/// The csi-clouds, by name; none of one that does not run.
struct Clouds {
    stand: Stand,
    etcd: u16,
    ports: [u16; 3],
    running: [Option<Process>; 3],
}

impl Clouds {
    async fn start(&mut self, place: usize) -> anyhow::Result<()> {
        let name = NAMES[place];
        let url = self.url(place);
        let store = format!("--store=etcd://127.0.0.1:{}/edge-csi", self.etcd);
        let relays = self.relays(place);
        let more = ["--replica", name, "--advertise", &url, "--holders", &relays, &store];
        let cloud = self.stand.cloud_as(name, &[&url], &[DRIVER], &more).await?;
        self.running[place] = Some(cloud.process);
        Ok(())
    }

    fn url(&self, place: usize) -> String {
        format!("wss://127.0.0.1:{}", self.ports[place])
    }

    fn relays(&self, place: usize) -> String {
        format!("unix:{}", self.stand.at(&format!("{}-relays.sock", NAMES[place])))
    }

    /// Waits until one of these leads, and says which.
    async fn leader(&self, among: &[usize]) -> anyhow::Result<usize> {
        let leads = |place: &usize| {
            let log = self.running[*place].as_ref().map(Process::log).unwrap_or_default();
            String::from_utf8_lossy(&log).contains(LEADS)
        };
        let look = || async { among.iter().copied().find(leads).context("none leads") };
        until("one of several leads", look).await
    }

    fn take(&mut self, place: usize) -> anyhow::Result<Process> {
        self.running[place].take().context("it does not run")
    }
}

/// Everything, with the socket that sidecars have.
struct World {
    clouds: Clouds,
    front: RawClient,
    driver: TestDriver,
    relay: Process,
    edge: Process,
    etcd: Process,
    _serving: Running,
}

impl World {
    /// None if there is no etcd.
    async fn new() -> anyhow::Result<Option<Self>> {
        if !Path::new(ETCD).exists() {
            writeln!(std::io::stderr(), "tier skipped: a real etcd: it is not installed")?;
            return Ok(None);
        }
        let stand = Stand::new().await?;
        let (etcd, port) = etcd(&stand)?;
        let ports = [free_port()?, free_port()?, free_port()?];
        let mut clouds = Clouds { stand, etcd: port, ports, running: [const { None }; 3] };
        for place in 0..NAMES.len() {
            clouds.start(place).await?;
        }
        let driver = TestDriver::new(DRIVER, NODE);
        let socket = clouds.stand.at("driver.sock");
        let serving = driver.serve(Path::new(&socket))?;
        let relay = relay(&clouds).await?;
        let state = clouds.stand.at("state");
        let urls = [clouds.url(0), clouds.url(1), clouds.url(2)];
        let mut more = vec!["--state", &state];
        more.extend(urls.iter().flat_map(|url| ["--cloud", url.as_str()]));
        let mut edge = clouds.stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
        edge.line_starting("linked ", START).await?;
        let front = RawClient::connect(&clouds.stand.at(&format!("held/{DRIVER}.sock"))).await?;
        until("the leader knows the driver", || ready(&front)).await?;
        Ok(Some(Self { clouds, front, driver, relay, edge, etcd, _serving: serving }))
    }

    async fn create(&self, name: &str) -> anyhow::Result<RawAnswer> {
        let deadline = [("grpc-timeout", "60S")];
        self.front.send(&controller("CreateVolume"), frame::frame(&create(name)), &deadline).await
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.edge.stop(START).await?;
        self.relay.stop(START).await?;
        for process in self.clouds.running.iter_mut().filter_map(Option::take) {
            process.stop(START).await?;
        }
        self.etcd.kill().await
    }
}

/// Nobody else is likely to take the port between here and there.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// An etcd of one member, and its port for clients.
fn etcd(stand: &Stand) -> anyhow::Result<(Process, u16)> {
    let port = free_port()?;
    let client = format!("http://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{}", free_port()?);
    let mut command = Command::new(ETCD);
    command.args(["--data-dir", &stand.at("etcd"), "--log-level", "error"]);
    command.args(["--name", "m", "--initial-cluster", &format!("m={peer}")]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    Ok((Process::start("etcd", command, stand.dir())?, port))
}

async fn relay(clouds: &Clouds) -> anyhow::Result<Process> {
    let mut command = clouds.stand.program("csi-cloud")?;
    command.args(["front", "--fronts", &clouds.stand.at("held"), "--driver", DRIVER]);
    for place in 0..NAMES.len() {
        command.args(["--to", &clouds.relays(place)]);
    }
    let mut relay = Process::start("csi-front", command, clouds.stand.dir())?;
    relay.line_starting("ready", START).await?;
    Ok(relay)
}

#[tokio::test]
async fn a_call_is_answered_through_the_next_leader() -> anyhow::Result<()> {
    let Some(mut world) = World::new().await? else { return Ok(()) };
    let first = world.clouds.leader(&[0, 1, 2]).await?;
    assert_eq!(world.create("v").await?.code(), Code::Ok);
    let gate = Gate::new();
    world.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
    let killed = world.clouds.take(first)?;
    let ending = async {
        gate.wait_for(1).await?;
        killed.kill().await?;
        gate.open();
        anyhow::Ok(())
    };
    let (answer, ended) = tokio::join!(world.create("w"), ending);
    ended?;
    let answer = answer?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    let left: Vec<_> = (0..NAMES.len()).filter(|place| *place != first).collect();
    let second = world.clouds.leader(&left).await?;
    let names: Vec<_> = world.driver.named_volumes().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["v", "w"]);
    assert_eq!(world.driver.calls_of("CreateVolume").len(), 2, "a call is not run twice");

    // One that is told to stop hands over.
    let mut stopped = world.clouds.take(second)?;
    stopped.signal(Signal::TERM)?;
    let answer = world.create("x").await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    assert!(stopped.ended(START).await?.success());
    assert!(!created(&answer)?.volume_id.is_empty());
    world.stop().await
}

#[tokio::test]
async fn a_leader_that_was_paused_says_nothing_final_and_ends() -> anyhow::Result<()> {
    let Some(mut world) = World::new().await? else { return Ok(()) };
    assert_eq!(world.create("v").await?.code(), Code::Ok);
    let first = world.clouds.leader(&[0, 1, 2]).await?;
    let mut paused = world.clouds.take(first)?;
    let of_first = format!("{}/{DRIVER}.sock", NAMES[first]);
    let direct = RawClient::connect(&world.clouds.stand.at(&of_first)).await?;
    assert_eq!(direct.call(&controller("GetCapacity"), &[]).await?.code(), Code::Ok);
    paused.signal(Signal::STOP)?;
    let path = controller("CreateVolume");
    let request = create("late");
    let late = direct.call(&path, &request);
    let going_on = async {
        let left: Vec<_> = (0..NAMES.len()).filter(|place| *place != first).collect();
        world.clouds.leader(&left).await?;
        let answer = world.create("w").await?;
        assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
        paused.signal(Signal::CONT)
    };
    let (late, went_on) = tokio::join!(timeout(START * 2, late), going_on);
    went_on?;
    // The connection may be gone, too.
    if let Ok(answer) = late? {
        assert_eq!(answer.code(), Code::Unavailable, "{}", answer.status());
    }
    assert!(!paused.ended(START).await?.success(), "it is to be started again");
    let names: Vec<_> = world.driver.named_volumes().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["v", "w"]);
    world.stop().await
}
