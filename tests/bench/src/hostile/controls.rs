//! Control characters in every text of a peer, and what csi-cloud and csi-edge show of them.
//!
//! The peers are an edge, its driver, and a cloud. Logs and tables are searched for raw control
//! characters, marks that change the direction of text, and lines that a peer has begun.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, TestDriver, Times};
use futures_util::future::try_join_all;
use harness::filled::{Rpc, Spec, Texts};
use harness::hostile_cloud::{HostileCloud, caller};
use harness::process::Process;
use harness::stand::Stand;
use harness::wait::STOP;
use prost::Message as _;
use proto::control::hello::{Driver, Message, Protobuf};
use proto::control::lease::{LeaseAction, Request};
use proto::csi;
use proto::csi::Method;
use proto::host::tasks::Tasks;
use proto::link::ws;
use tokio::time::timeout;
use tonic::Code;

use super::fleet::Fleet;
use super::report::Row;
use super::world::{DRIVER, HONEST, HOSTILE, TRANSPORTS, World, hello};

/// In every text of a peer: a line of its own, a colour, and marks of direction.
const TEXT: &str = "evil\nforged-line\r\u{1b}[31m\u{7f}\u{9b}2J\u{202e}\u{2028}end";
/// How a line begins that a peer has begun.
const LINE: &str = "forged-line";
/// All that is logged.
const LOG: &str = "debug,cloud=trace,edge=trace,proto=trace,csi_cloud=trace,csi_edge=trace";
/// How long answers of hostile peers are waited for.
const SOON: Duration = Duration::from_secs(5);
const ASKED: &str = "0 raw in logs and tables";
/// The tables of csi-cloud.
const TABLES: [&[&str]; 6] = [
    &["nodes"],
    &["drivers"],
    &["volumes", "--all"],
    &["intents", "--all"],
    &["calls"],
    &["leases"],
];

pub(super) async fn run(rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let spec = Spec::read()?;
    let edges = TRANSPORTS.map(|transport| of_an_edge(transport, &spec));
    rows.extend(try_join_all(edges).await?);
    let clouds = TRANSPORTS.map(|transport| of_a_cloud(transport, &spec));
    rows.extend(try_join_all(clouds).await?);
    Ok(())
}

/// What was found in one place.
#[derive(Default)]
struct Found {
    /// The answers, messages and calls with such a text.
    sent: usize,
    raw: usize,
    /// The places that show such a text, escaped.
    escaped: BTreeSet<String>,
    /// The places with something raw.
    places: BTreeSet<String>,
}

impl Found {
    fn search(&mut self, place: &str, text: &str) {
        let is_raw = |c: &char| (c.is_control() && *c != '\n') || is_mark(*c);
        let lines = text.lines().filter(|line| line.starts_with(LINE)).count();
        let raw = text.chars().filter(is_raw).count() + lines;
        self.raw += raw;
        if text.matches(LINE).count() > lines {
            self.escaped.insert(place.to_owned());
        }
        if raw > 0 {
            self.places.insert(place.to_owned());
        }
    }

    fn row(self, peer: &str, transport: &'static str) -> Row {
        let Self { sent, raw, escaped, places } = self;
        let is_shown = !escaped.is_empty();
        let places = if places.is_empty() { String::new() } else { format!(" in {places:?}") };
        Row {
            case: format!("control characters in every text of {peer}"),
            transport,
            asked: ASKED,
            measured: format!("{sent} sent, {raw} raw{places}, escaped in {escaped:?}"),
            ok: raw == 0 && is_shown,
        }
    }
}

/// Line separators and marks of direction.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

async fn stand() -> anyhow::Result<Stand> {
    let mut stand = World::stand().await?;
    stand.log(LOG);
    Ok(stand)
}

/// A link and a driver with such texts, and what csi-cloud and the driver's csi-edge show.
async fn of_an_edge(transport: &'static str, spec: &Spec) -> anyhow::Result<Row> {
    let more = ["--http", "127.0.0.1:0"];
    let mut fleet = Fleet::on(stand().await?, transport, "scope = \"node\"", &more).await?;
    let driver = TestDriver::new(DRIVER, HONEST);
    for rpc in spec.rpcs().iter().filter(|rpc| !is_of_identity(rpc)) {
        driver.inject(rpc.name(), Fault::raw(answer(spec, rpc)), Times::All);
    }
    fleet.join("evil-driver", driver.clone()).await?;
    fleet.ready().await?;
    let mut found = Found::default();
    found.sent += call_all(&fleet, &driver, spec).await?;
    search_tables(&fleet, &mut found).await?;
    driver.clear_faults();
    for rpc in spec.rpcs().iter().filter(|rpc| !is_of_identity(rpc)) {
        driver.inject(rpc.name(), Fault::error(Code::Internal, TEXT), Times::All);
    }
    found.sent += call_all(&fleet, &driver, spec).await?;
    found.sent += links(&fleet.world, spec).await?;
    search_tables(&fleet, &mut found).await?;
    for (name, process) in logs(&fleet) {
        found.search(name, &String::from_utf8_lossy(&process.log()));
    }
    driver.clear_faults();
    fleet.stop().await?;
    Ok(found.row("an edge and its driver", transport))
}

fn logs(fleet: &Fleet) -> Vec<(&'static str, &Process)> {
    let edges = fleet.nodes.iter().map(|node| ("csi-edge's log", &node.edge));
    [("csi-cloud's log", &fleet.world.cloud.process)].into_iter().chain(edges).collect()
}

/// What csi-edge must hear from its driver to serve it at all.
fn is_of_identity(rpc: &Rpc) -> bool {
    rpc.path.contains("Identity") || rpc.name().ends_with("GetCapabilities")
}

/// An answer whose texts are all that one.
fn answer(spec: &Spec, rpc: &Rpc) -> Vec<u8> {
    let field = |name: &str| (name != "next_token").then(|| TEXT.to_owned());
    spec.fill(&rpc.answer, &Texts { secret: TEXT, field: &field, map: Some(TEXT) })
}

/// Calls each RPC at the front with such texts. Each may be refused. Returns how many of them the
/// driver got, and answered with such a text.
async fn call_all(fleet: &Fleet, driver: &TestDriver, spec: &Spec) -> anyhow::Result<usize> {
    driver.forget_calls();
    for rpc in spec.rpcs() {
        let field = |name: &str| (name != "starting_token").then(|| TEXT.to_owned());
        let texts = Texts { secret: "secret", field: &field, map: None };
        let request = spec.fill(&rpc.request, &texts);
        let _ = timeout(SOON, fleet.front.call(&rpc.path, &request)).await;
    }
    let calls = driver.calls();
    let is_told =
        |path: &str| spec.rpcs().iter().any(|rpc| rpc.path == path && !is_of_identity(rpc));
    let told = calls.iter().filter(|call| is_told(&call.path)).count();
    ensure!(told > 0, "the driver was not called");
    Ok(told)
}

/// Links whose hello, messages and close have such texts. Returns how many messages were sent.
async fn links(world: &World, spec: &Spec) -> anyhow::Result<usize> {
    let mut sent = 0;
    let rpcs = spec.rpcs();
    let told = rpcs.iter().filter(|rpc| rpc.path.contains("Get"));
    let answers = told.map(|rpc| (rpc.name().to_owned(), Protobuf(answer(spec, rpc).into())));
    let mut answers: BTreeMap<_, _> = answers.collect();
    answers.insert(TEXT.to_owned(), Protobuf(TEXT.as_bytes().to_vec().into()));
    let name = csi::GetPluginInfoResponse {
        name: DRIVER.into(),
        vendor_version: TEXT.into(),
        manifest: [(TEXT.to_owned(), TEXT.to_owned())].into(),
    };
    let own_name = Protobuf(name.encode_to_vec().into());
    let other = Driver { name: DRIVER.parse()?, answers: answers.clone(), health: None };
    answers.insert("GetPluginInfo".to_owned(), own_name);
    let named = Driver { name: DRIVER.parse()?, answers, health: None };
    for driver in [other, named] {
        let mut link = world.dial(HOSTILE, &ws::tcp()).await?;
        let mut hello = hello(HOSTILE, vec![driver])?;
        hello.version = TEXT.into();
        link.send(&Message::Hello(hello)).await?;
        timeout(SOON, link.next()).await.context("a hello without an answer")?;
        sent += 1;
        for step in [
            LeaseAction::Ask { pod: TEXT.into() },
            LeaseAction::Hold { epoch: 7, pod: TEXT.into(), mac: Some(TEXT.into()) },
            LeaseAction::Release,
        ] {
            let request = Request { id: 1, driver: DRIVER.parse()?, volume: TEXT.into(), step };
            sent += usize::from(link.send(&Message::Lease(request)).await.is_ok());
            let _ = timeout(SOON, link.next()).await;
        }
        link.close(TEXT).await;
    }
    Ok(sent)
}

async fn search_tables(fleet: &Fleet, found: &mut Found) -> anyhow::Result<()> {
    for table in TABLES {
        found.search(table.first().unwrap_or(&""), &fleet.world.admin(table).await?);
    }
    Ok(())
}

/// A cloud with such texts, and what csi-edge logs.
async fn of_a_cloud(transport: &'static str, spec: &Spec) -> anyhow::Result<Row> {
    let mut stand = stand().await?;
    let (cloud, url) = HostileCloud::listen(&stand, transport).await?;
    let driver = TestDriver::new(DRIVER, HONEST);
    let socket = stand.at("driver.sock");
    let serving = driver.serve(socket.as_ref())?;
    let edge = stand.edge_with("told", &[(DRIVER, &socket)], &["--cloud", &url]).await?;
    let refused = proto::control::hello::Refused { reason: TEXT.into(), protocol: 1, leader: None };
    let mut link = cloud.accept().await?;
    let _ = timeout(SOON, link.next()).await;
    link.send(&Message::Refused(refused)).await?;
    link.close(TEXT).await;
    cloud.accept().await?.close(TEXT).await;
    cloud.welcome_as(TEXT).await?.close(TEXT).await;
    let tasks = Tasks::default();
    let client = caller(cloud.welcome_as(TEXT).await?, DRIVER, &tasks).await?;
    let field = |_: &str| Some(TEXT.to_owned());
    let texts = Texts { secret: "secret", field: &field, map: Some(TEXT) };
    let mut found = Found::default();
    for rpc in spec.rpcs() {
        let request = spec.fill(&rpc.request, &texts);
        let called = timeout(SOON, client.call(&rpc.path, &request)).await;
        found.sent += usize::from(matches!(called, Ok(Ok(_))));
    }
    ensure!(found.sent > 0, "csi-edge answered no call");
    let _ = client.call(Method::CreateVolume.path(), TEXT.as_bytes()).await;
    tasks.stop();
    found.search("csi-edge's log", &String::from_utf8_lossy(&edge.log()));
    edge.stop(STOP).await?;
    serving.stop().await;
    Ok(found.row("a cloud", transport))
}
