//! An edge that no operator named as a controller says that it has shared drivers, and waits while
//! the elected nodes come and go.

use anyhow::{Context, ensure};
use drivers::testdriver::{Running, TestDriver};
use futures_util::future::try_join_all;
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::created;
use harness::stand::{Cloud, Stand};
use harness::wait::{STOP, until};
use prost::Message;
use proto::csi;
use proto::csi::Method;
use proto::host::publish::{Existing, publish};
use tonic::Code;

use super::fleet::{SECRET, has_got, secrets};
use super::memory;
use super::report::Row;
use super::world::{TRANSPORTS, World};

/// Shared drivers, each of which fails over when its elected node ends.
const DRIVERS: usize = 20;
/// How often that node ends: 1,000 fail-overs in all.
const TURNS: usize = 50;
const SHORT: usize = 2;
/// By its name the unlisted edge would be elected first.
const THIEF: &str = "a-thief";
const CONTROLLERS: [&str; 2] = ["n1", "n2"];
const ASKED: &str = "0 calls, 0 secrets at the unlisted edge";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let turns = if short { SHORT } else { TURNS };
    let rows_of = TRANSPORTS.map(|transport| elected(transport, turns));
    rows.extend(try_join_all(rows_of).await?);
    Ok(())
}

async fn elected(transport: &'static str, turns: usize) -> anyhow::Result<Row> {
    let mut shared = Shared::new(transport).await?;
    let thief = shared.start(THIEF).await?;
    let mut elected = shared.start(CONTROLLERS[0]).await?;
    shared.all_create("pvc", CONTROLLERS[0]).await?;
    let mut away = 0;
    for turn in 1..=turns {
        elected.stop(STOP).await?;
        // Only the unlisted edge has a link now.
        away += shared.unavailable(&format!("away-{turn}")).await?;
        let next = CONTROLLERS[turn % CONTROLLERS.len()];
        elected = shared.start(next).await?;
        shared.all_create(&format!("pvc-{turn}"), next).await?;
    }
    let drivers = shared.of_node(THIEF);
    let is_sent = |path: &str| Method::of_path(path).is_some_and(Method::sent);
    let calls = drivers.clone().flat_map(TestDriver::calls);
    let calls = calls.filter(|call| is_sent(&call.path)).count();
    let with_secrets = drivers.filter(|driver| has_got(driver, SECRET)).count();
    elected.stop(STOP).await?;
    thief.stop(STOP).await?;
    shared.cloud.process.kill().await?;
    let failovers = turns * DRIVERS;
    Ok(Row {
        case: format!("an unlisted edge of shared drivers, {failovers} fail-overs"),
        transport,
        asked: ASKED,
        measured: format!(
            "{calls} calls, {with_secrets} drivers with secrets; {away} calls while no other \
             edge was there"
        ),
        ok: calls == 0 && with_secrets == 0 && away == failovers,
    })
}

/// csi-cloud with shared drivers, and each node's part of them.
struct Shared {
    stand: Stand,
    cloud: Cloud,
    names: Vec<String>,
    fronts: Vec<RawClient>,
    nodes: Vec<(&'static str, TestDriver, String)>,
    _serving: Vec<Running>,
}

impl Shared {
    async fn new(transport: &str) -> anyhow::Result<Self> {
        let stand = World::stand().await?;
        let names: Vec<_> = (0..DRIVERS).map(|at| format!("d{at}.hostile.example")).collect();
        let section = |name: &String| {
            format!(
                "[driver.\"{name}\"]\nscope = \"shared\"\ncontrollers = [\"n1\", \"n2\"]\n\
                 failover_s = 1\n"
            )
        };
        let config = stand.at("shared.toml");
        let text = names.iter().map(section).collect::<String>();
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
        let listen = format!("{transport}://127.0.0.1:0");
        let drivers: Vec<_> = names.iter().map(String::as_str).collect();
        let cloud = stand.cloud(&[&listen], &drivers, &["--config", &config]).await?;
        let cloud = memory::hold(cloud)?;
        let mut nodes = Vec::new();
        let mut serving = Vec::new();
        let mut fronts = Vec::new();
        for name in &names {
            fronts.push(RawClient::connect(&stand.cloud_front(name)).await?);
            let first = TestDriver::new(name, THIEF);
            for node in [THIEF, CONTROLLERS[0], CONTROLLERS[1]] {
                let driver = first.beside(node);
                let socket = stand.at(&format!("{node}-{name}.sock"));
                serving.push(driver.serve(socket.as_ref())?);
                nodes.push((node, driver, socket));
            }
        }
        Ok(Self { stand, cloud, names, fronts, nodes, _serving: serving })
    }

    /// Starts the csi-edge of a node, and waits for its link.
    async fn start(&mut self, node: &'static str) -> anyhow::Result<Process> {
        let url = self.cloud.urls.first().context("no listener")?.clone();
        let sockets = self.nodes.iter().filter(|(at, ..)| *at == node);
        let sockets: Vec<_> = sockets.map(|(_, _, socket)| socket.clone()).collect();
        let drivers = self.names.iter().zip(&sockets);
        let drivers: Vec<_> = drivers.map(|(name, at)| (name.as_str(), at.as_str())).collect();
        self.stand.edge(node, &url, &drivers).await
    }

    /// A node's drivers.
    fn of_node(&self, node: &str) -> impl Iterator<Item = &TestDriver> + Clone {
        let node = node.to_owned();
        self.nodes.iter().filter(move |(at, ..)| *at == node).map(|(_, driver, _)| driver)
    }

    /// Creates a volume of each driver, until this node has made it.
    async fn all_create(&self, name: &str, node: &str) -> anyhow::Result<()> {
        let request = request(name)?;
        let path = Method::CreateVolume.path();
        let create = |front: RawClient| {
            let request = request.clone();
            async move {
                until("the next node is elected", || async {
                    created(&front.call(path, &request).await?).map(drop)
                })
                .await
            }
        };
        try_join_all(self.fronts.iter().cloned().map(create)).await?;
        let made = |driver: &&TestDriver| {
            let calls = driver.calls_of(Method::CreateVolume.name());
            calls.iter().any(|call| call.message == request)
        };
        let made = self.of_node(node).filter(made).count();
        ensure!(made == DRIVERS, "{made} of {DRIVERS} drivers failed over to {node}");
        Ok(())
    }

    /// Calls each driver, and returns how many calls no node got.
    async fn unavailable(&self, name: &str) -> anyhow::Result<usize> {
        let request = request(name)?;
        let path = Method::CreateVolume.path();
        let calls = self.fronts.iter().map(|front| front.call(path, &request));
        let answers = try_join_all(calls).await?;
        Ok(answers.iter().filter(|answer| answer.code() == Code::Unavailable).count())
    }
}

fn request(name: &str) -> anyhow::Result<Vec<u8>> {
    let request = harness::requests::create(name);
    let request = csi::CreateVolumeRequest {
        secrets: secrets(),
        ..csi::CreateVolumeRequest::decode(request.as_slice())?
    };
    Ok(request.encode_to_vec())
}
