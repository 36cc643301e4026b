//! One node whose driver is no use in one way, for each RPC, beside nodes that answer well. The
//! front's answers are compared byte for byte, and alerts are counted.

use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, TestDriver, Times};
use futures_util::future::try_join_all;
use harness::filled::{Spec, Texts};
use harness::requests::create;
use prost::Message as _;
use proto::control::hello::{Driver, Message, Protobuf};
use proto::csi;
use proto::csi::Method;
use proto::host::tasks::Tasks;
use proto::link::{Event, Link, ws};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::fleet::{Fleet, made_at};
use super::report::Row;
use super::world::{DRIVER, TRANSPORTS, World, hello, welcomed};

const HONEST: [&str; 3] = ["n1", "n2", "n3"];
/// By its name it is the first of all.
const BAD: &str = "a-bad";
/// How long an alert may take: a silent node has a minute, which begins with the next list.
const SILENT: Duration = Duration::from_secs(150);
const SOON: Duration = Duration::from_secs(10);
/// The metric of the alert.
const METRIC: &str = "edge_csi_driver_nodes_set_apart{";
const ASKED: &str = "the same bytes, one alert";
const SHORT_ASKED: &str = "the same bytes, at most one alert";
/// What a node tells of its driver's capabilities.
const CAPABILITIES: [(&str, &str); 4] = [
    ("GetPluginCapabilities", "/csi.v1.Identity/GetPluginCapabilities"),
    ("ControllerGetCapabilities", "/csi.v1.Controller/ControllerGetCapabilities"),
    ("GroupControllerGetCapabilities", "/csi.v1.GroupController/GroupControllerGetCapabilities"),
    ("NodeGetCapabilities", "/csi.v1.Node/NodeGetCapabilities"),
];

/// In what way it is no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OtherName,
    NoCapabilities,
    Unimplemented,
    Garbage,
    Silence,
}

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    use Way::{Garbage, NoCapabilities, OtherName, Silence, Unimplemented};
    let spec = Spec::read()?;
    let ways = [OtherName, NoCapabilities, Unimplemented, Garbage, Silence];
    let [first, second] = TRANSPORTS;
    rows.extend(try_join_all(ways.map(|way| beside(first, way, short, &spec))).await?);
    // What the node answers is the same over both transports, so a short run has one way.
    let ways = if short { &ways[..1] } else { &ways };
    let rows_of = ways.iter().map(|way| beside(second, *way, short, &spec));
    rows.extend(try_join_all(rows_of).await?);
    Ok(())
}

async fn beside(
    transport: &'static str,
    way: Way,
    short: bool,
    spec: &Spec,
) -> anyhow::Result<Row> {
    let mut honest = Honest::new(transport).await?;
    let requests = honest.requests(spec);
    // The first run makes what later ones find.
    honest.answers(&requests).await?;
    let before = honest.answers(&requests).await?;
    for method in [Method::ListVolumes, Method::ListSnapshots, Method::GetCapacity] {
        let answer = honest.fleet.front.call(method.path(), &[]).await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
    }
    ensure!(before == honest.answers(&requests).await?, "the answers differ by themselves");
    let liar = honest.joined_by(way).await?;
    // An alert of a silent node takes more time than a short run has.
    let waits = way != Way::Silence || !short;
    let limit = if way == Way::Silence { SILENT } else { SOON };
    let mut during = honest.answers(&requests).await?;
    let mut differ = differing(&requests, &before, &during);
    if waits {
        let front = honest.fleet.front.clone();
        let listing = Tasks::default();
        listing.spawn_until_stop("list", async move {
            while front.call(Method::ListVolumes.path(), &[]).await.is_ok() {}
        });
        honest.fleet.set_apart(BAD, limit).await?;
        listing.stop();
        during = honest.answers(&requests).await?;
        differ.extend(differing(&requests, &before, &during));
    }
    let alerts = honest.alerts().await?;
    liar.leave(&mut honest).await?;
    honest.fleet.stop().await?;
    let differ = if differ.is_empty() { String::new() } else { format!(" ({differ:?})") };
    let alert = alerts.join(", ");
    Ok(Row {
        case: format!("one node of four, {way:?}"),
        transport,
        asked: if waits { ASKED } else { SHORT_ASKED },
        measured: format!("{} RPCs{differ}, alerts: {alert}", requests.len()),
        ok: differ.is_empty() && alerts.len() <= 1 && (alerts.len() == 1 || !waits),
    })
}

/// The RPCs whose answers are others.
fn differing(requests: &[Request], before: &[Answer], during: &[Answer]) -> Vec<String> {
    let answers = before.iter().zip(during);
    let differ = requests.iter().zip(answers).filter(|(_, (before, during))| before != during);
    let text = |((path, _), (before, during)): (&Request, (&Answer, &Answer))| {
        let Some((_, method)) = path.rsplit_once('/') else { return path.clone() };
        let (before, why_before, bytes_before) = before;
        let (during, why, bytes) = during;
        format!(
            "{method}: {before:?} {why_before:?} {} bytes, {during:?} {why:?} {} bytes",
            bytes_before.len(),
            bytes.len()
        )
    };
    differ.map(text).collect()
}

/// A path and a message.
type Request = (String, Vec<u8>);
/// The code, the text of an error, and the message.
type Answer = (Code, String, Vec<u8>);

/// Nodes that answer well, with a volume each.
struct Honest {
    fleet: Fleet,
    told: Told,
    volume: String,
    snapshot: String,
    group: String,
}

impl Honest {
    async fn new(transport: &str) -> anyhow::Result<Self> {
        let stand = World::stand().await?;
        let http = ["--http", "127.0.0.1:0"];
        let mut fleet = Fleet::on(stand, transport, "scope = \"node\"", &http).await?;
        fleet.join_all(&HONEST).await?;
        fleet.listed(&HONEST).await?;
        for node in HONEST {
            made_at(&fleet, &format!("of-{node}"), node).await?;
        }
        let told = Told::of(&fleet).await?;
        // It has linked once and was listed, so that it is known.
        fleet.join(BAD, TestDriver::new(DRIVER, BAD)).await?;
        fleet.listed(&[BAD]).await?;
        fleet.nodes.pop().context("no node")?.stop().await?;
        let volume = made_at(&fleet, "data", HONEST[0]).await?;
        let request = csi::CreateSnapshotRequest {
            source_volume_id: volume.clone(),
            name: "snapshot".into(),
            ..Default::default()
        };
        let made = fleet.call(Method::CreateSnapshot, &request).await?;
        let made = csi::CreateSnapshotResponse::decode(made.message().unwrap_or_default())?;
        let snapshot = made.snapshot.unwrap_or_default().snapshot_id;
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: "group".into(),
            source_volume_ids: vec![volume.clone()],
            ..Default::default()
        };
        let made = fleet.call(Method::CreateVolumeGroupSnapshot, &request).await?;
        let message = made.message().unwrap_or_default();
        let made = csi::CreateVolumeGroupSnapshotResponse::decode(message)?.group_snapshot;
        let group = made.unwrap_or_default().group_snapshot_id;
        ensure!(!snapshot.is_empty() && !group.is_empty(), "no snapshots");
        Ok(Self { fleet, told, volume, snapshot, group })
    }

    /// A request of each RPC about what has a home. What has none is refused while a node may have
    /// it, so deletes are left out.
    fn requests(&self, spec: &Spec) -> Vec<Request> {
        let field = |name: &str| match name {
            "starting_token" => None,
            "volume_id" | "source_volume_id" | "source_volume_ids" => Some(self.volume.clone()),
            "group_snapshot_id" => Some(self.group.clone()),
            name if name.contains("snapshot_id") => Some(self.snapshot.clone()),
            name => Some(format!("some-{name}")),
        };
        let texts = Texts { secret: "secret", field: &field, map: None };
        let rpcs = spec.rpcs().into_iter().filter(|rpc| !rpc.name().starts_with("Delete"));
        let mut requests: Vec<_> =
            rpcs.map(|rpc| (rpc.path.clone(), spec.fill(&rpc.request, &texts))).collect();
        // The same without conditions, which lists and capacities have too.
        for method in Method::ALL.iter().filter(|method| method.lists().is_some()) {
            requests.push((method.path().to_owned(), Vec::new()));
        }
        requests.push((Method::GetCapacity.path().to_owned(), Vec::new()));
        requests.push((Method::CreateVolume.path().to_owned(), create("of-all")));
        requests
    }

    async fn answers(&self, requests: &[Request]) -> anyhow::Result<Vec<Answer>> {
        let mut answers = Vec::new();
        for (path, request) in requests {
            let answer = self.fleet.front.call(path, request).await?;
            let status = answer.status();
            answers.push((status.code(), status.message().to_owned(), answer.body.to_vec()));
        }
        Ok(answers)
    }

    /// The node that is no use links.
    async fn joined_by(&mut self, way: Way) -> anyhow::Result<Liar> {
        let fault = match way {
            Way::OtherName => {
                let driver = self.told.driver("other.example", true)?;
                return Ok(Liar::link(link(&self.fleet.world, driver).await?));
            }
            Way::NoCapabilities => {
                let driver = self.told.driver(DRIVER, false)?;
                return Ok(Liar::link(link(&self.fleet.world, driver).await?));
            }
            Way::Unimplemented => Fault::error(Code::Unimplemented, "not here"),
            Way::Garbage => Fault::raw(b"\xff\xff\xff".to_vec()),
            Way::Silence => Fault::Hang,
        };
        let bad = TestDriver::new(DRIVER, BAD);
        for method in Method::ALL.iter().filter(|method| method.sent()) {
            bad.inject(method.name(), fault.clone(), Times::All);
        }
        self.fleet.join(BAD, bad).await?;
        Ok(Liar::Edge)
    }

    /// The alerts of nodes that are set apart, each with its labels and the number of nodes.
    async fn alerts(&self) -> anyhow::Result<Vec<String>> {
        let at = self.fleet.world.cloud.http.as_deref().context("no HTTP")?;
        let mut tcp = TcpStream::connect(at).await?;
        tcp.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut text = String::new();
        tcp.read_to_string(&mut text).await?;
        ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
        let samples = text.lines().filter_map(|line| line.strip_prefix(METRIC));
        let firing = samples.filter(|sample| !sample.ends_with(" 0"));
        Ok(firing.map(|sample| sample.replace(['{', '}', '"'], "")).collect())
    }
}

/// The node that is no use.
enum Liar {
    /// The last of the fleet.
    Edge,
    /// A link that answers no call.
    Link(Tasks),
}

impl Liar {
    fn link(mut link: Link) -> Self {
        let tasks = Tasks::default();
        tasks.spawn_until_stop("link", async move {
            let mut unanswered = Vec::new();
            loop {
                match link.next().await {
                    Event::Opened(_, io) => unanswered.push(io),
                    Event::Closed(_) => return,
                    Event::Message(_) => {}
                }
            }
        });
        Self::Link(tasks)
    }

    async fn leave(self, honest: &mut Honest) -> anyhow::Result<()> {
        match self {
            Self::Link(tasks) => tasks.stop(),
            Self::Edge => {
                let node = honest.fleet.nodes.pop().context("no node")?;
                node.driver.clear_faults();
                node.driver.release();
                node.stop().await?;
            }
        }
        Ok(())
    }
}

async fn link(world: &World, driver: Driver) -> anyhow::Result<Link> {
    let mut link = world.dial(BAD, &ws::tcp()).await?;
    link.send(&Message::Hello(hello(BAD, vec![driver])?)).await?;
    welcomed(&mut link).await?;
    Ok(link)
}

/// What csi-edge would tell of an honest driver.
struct Told(Vec<(&'static str, Vec<u8>)>);

impl Told {
    async fn of(fleet: &Fleet) -> anyhow::Result<Self> {
        let driver = fleet.direct(HONEST[0]).await?;
        let mut answers = Vec::new();
        for (method, path) in CAPABILITIES {
            let answer = driver.call(path, &[]).await?;
            answers.push((method, answer.message().unwrap_or_default().to_vec()));
        }
        Ok(Self(answers))
    }

    /// A driver of this name, with all capabilities of the others or with none.
    fn driver(&self, name: &str, is_able: bool) -> anyhow::Result<Driver> {
        let info = csi::GetPluginInfoResponse { name: name.into(), ..Default::default() };
        let at = csi::NodeGetInfoResponse { node_id: BAD.into(), ..Default::default() };
        let own = [("GetPluginInfo", info.encode_to_vec()), ("NodeGetInfo", at.encode_to_vec())];
        let answers = self.0.iter().cloned();
        let answers =
            answers.map(|(method, answer)| (method, if is_able { answer } else { Vec::new() }));
        let answers = answers.chain(own);
        let answers = answers.map(|(method, answer)| (method.into(), Protobuf(answer.into())));
        Ok(Driver { name: DRIVER.parse()?, answers: answers.collect(), health: None })
    }
}
