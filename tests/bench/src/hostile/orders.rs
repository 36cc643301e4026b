//! A csi-cloud that asks of an edge what csi-cloud never sends: Node RPCs, unknown methods, and
//! paths that climb. One that sends requests without an end.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use drivers::testdriver::{Running, TestDriver};
use futures_util::future::try_join_all;
use h2::SendStream;
use h2::client::ResponseFuture;
use harness::filled::{Spec, Texts};
use harness::hostile_cloud::{HostileCloud, caller, opened};
use harness::process::Process;
use harness::requests::create;
use harness::stand::Stand;
use harness::wait::STOP;
use proto::csi::Method;
use proto::csi::frame::MAX_MESSAGE;
use proto::host::tasks::Tasks;
use proto::link::Io;
use tokio::time::sleep;
use tonic::Code;

use super::fleet::has_got;
use super::meter::Meter;
use super::report::Row;
use super::world::{DRIVER, HONEST, TRANSPORTS, World};
use crate::usage;

/// How often each is asked.
const ROUNDS: usize = 200;
const SHORT: usize = 4;
/// Requests that do not end, and how long they are watched.
const UNENDING: usize = 400;
const WATCHED: Duration = Duration::from_secs(12);
/// How many links are tried until a request has begun.
const LINKS: usize = 10;
/// The memory that csi-edge may have, in MiB.
pub(super) const EDGE_MIB: u64 = 64;
/// The text in each field of each request: a path out of each directory.
const CLIMBING: &str = "/var/lib/kubelet/../../../etc/cron.d/climbs";
/// Methods that CSI does not have, and paths that lead to one of Node.
const UNKNOWN: [&str; 6] = [
    "/csi.v1.Node/NodeFormat",
    "/csi.v1.Controller/Format",
    "/x.y/Z",
    "/csi.v1.Controller/../csi.v1.Node/NodePublishVolume",
    "/csi.v1.Controller/CreateVolume/../../csi.v1.Node/NodePublishVolume",
    "//csi.v1.Node/NodePublishVolume",
];
const ASKED: &str = "0 reach a driver";

/// The answer to a request, and the body of that request, which does not end.
type Begun = (ResponseFuture, SendStream<Bytes>);

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let spec = Spec::read()?;
    let rounds = if short { SHORT } else { ROUNDS };
    let rows_of = TRANSPORTS.map(|transport| ordered(transport, rounds, &spec));
    rows.extend(try_join_all(rows_of).await?);
    let rows_of = TRANSPORTS.map(unending);
    rows.extend(try_join_all(rows_of).await?);
    Ok(())
}

/// A csi-edge with a driver whose csi-cloud is in this process.
pub(super) struct Commanded {
    _stand: Stand,
    pub(super) cloud: HostileCloud,
    pub(super) driver: TestDriver,
    serving: Running,
    pub(super) edge: Process,
}

impl Commanded {
    /// Over this transport, with a log of this level.
    pub(super) async fn new(transport: &str, log: &str) -> anyhow::Result<Self> {
        let mut stand = World::stand().await?;
        stand.log(log);
        let (cloud, url) = HostileCloud::listen(&stand, transport).await?;
        let driver = TestDriver::new(DRIVER, HONEST);
        let socket = stand.at("driver.sock");
        let serving = driver.serve(socket.as_ref())?;
        let edge = stand.edge_with("commanded", &[(DRIVER, &socket)], &["--cloud", &url]).await?;
        Ok(Self { _stand: stand, cloud, driver, serving, edge })
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.edge.stop(STOP).await?;
        self.serving.stop().await;
        Ok(())
    }
}

/// Requests that are nearly whole, and stay so.
async fn unending(transport: &'static str) -> anyhow::Result<Row> {
    let at = Commanded::new(transport, "info").await?;
    let meter = Meter::begin(&at.edge)?;
    let pid = at.edge.pid().context("csi-edge has ended")?;
    let tasks = Tasks::default();
    let mut before = 0;
    let mut kept = Vec::new();
    // csi-edge may end such a connection before the first request, and dials again.
    for _ in 0..LINKS {
        let io = opened(at.cloud.welcome().await?, &tasks).await?;
        before = usage::resident_kib(pid)? / 1024;
        kept = begin_many(io, &tasks).await?;
        if !kept.is_empty() {
            break;
        }
    }
    let begun = kept.len();
    sleep(WATCHED).await;
    let used = meter.end()?;
    drop(kept);
    tasks.stop();
    at.stop().await?;
    Ok(Row {
        case: format!("a cloud that sends {UNENDING} requests of 4 MiB without an end"),
        transport,
        asked: "csi-edge <= 64 MiB, log <= 100 KiB",
        measured: format!("{begun} begun, csi-edge from {before} MiB on: {used}"),
        ok: begun > 0 && used.peak <= EDGE_MIB && used.is_quiet(),
    })
}

/// Begins requests that are nearly whole, until there are enough or csi-edge ends the connection.
async fn begin_many(io: Io, tasks: &Tasks) -> anyhow::Result<Vec<Begun>> {
    let (mut requests, connection) = h2::client::handshake(io).await?;
    tasks.spawn_until_stop("connection", async move { drop(connection.await) });
    let part = Bytes::from(vec![0; MAX_MESSAGE - 1]);
    let mut kept = Vec::new();
    for _ in 0..UNENDING {
        // csi-edge may have ended the connection by now, which is its right.
        let Ok(ready) = requests.ready().await else { break };
        requests = ready;
        let path = format!("http://{DRIVER}{}", Method::CreateVolume.path());
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .body(())?;
        let Ok((answer, mut body)) = requests.send_request(request, false) else { break };
        // A little less than its head promises, so that the edge waits for the rest.
        let length = u32::try_from(MAX_MESSAGE)?.to_be_bytes();
        // The edge may have refused it by now.
        let _ = body.send_data(Bytes::copy_from_slice(&[&[0][..], &length].concat()), false);
        let _ = body.send_data(part.clone(), false);
        kept.push((answer, body));
    }
    Ok(kept)
}

async fn ordered(transport: &'static str, rounds: usize, spec: &Spec) -> anyhow::Result<Row> {
    let at = Commanded::new(transport, "error").await?;
    let tasks = Tasks::default();
    let client = caller(at.cloud.welcome().await?, DRIVER, &tasks).await?;
    let field = |_: &str| Some(CLIMBING.to_owned());
    let texts = Texts { secret: CLIMBING, field: &field, map: Some(CLIMBING) };
    let is_sent = |path: &str| Method::of_path(path).is_some_and(Method::sent);
    let rpcs = spec.rpcs().into_iter().filter(|rpc| !is_sent(&rpc.path));
    let mut asked: Vec<_> =
        rpcs.map(|rpc| (rpc.path.clone(), spec.fill(&rpc.request, &texts))).collect();
    asked.extend(UNKNOWN.map(|path| (path.to_owned(), CLIMBING.as_bytes().to_vec())));
    let mut refused = 0;
    for _ in 0..rounds {
        for (path, request) in &asked {
            let answer = client.call(path, request).await?;
            refused += usize::from(answer.code() == Code::Unimplemented);
        }
    }
    let calls = rounds * asked.len();
    let reached = usize::from(has_got(&at.driver, CLIMBING));
    // What csi-cloud sends reaches it, so that the others could have.
    let answer = client.call(Method::CreateVolume.path(), &create("sent")).await?;
    let is_served = answer.code() == Code::Ok;
    tasks.stop();
    at.stop().await?;
    Ok(Row {
        case: format!("a cloud that asks {} other methods, {calls} calls", asked.len()),
        transport,
        asked: ASKED,
        measured: format!("{refused} UNIMPLEMENTED, {reached} reached a driver"),
        ok: refused == calls && reached == 0 && is_served,
    })
}
