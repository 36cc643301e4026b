//! A csi-cloud that asks of an edge what csi-cloud never sends: Node RPCs, unknown methods, and
//! paths that climb.

use drivers::testdriver::TestDriver;
use futures_util::future::try_join_all;
use harness::filled::{Spec, Texts};
use harness::hostile_cloud::{HostileCloud, caller};
use harness::requests::create;
use harness::wait::STOP;
use proto::csi::Method;
use proto::host::tasks::Tasks;
use tonic::Code;

use super::fleet::has_got;
use super::report::Row;
use super::world::{DRIVER, HONEST, TRANSPORTS, World};

/// How often each is asked.
const ROUNDS: usize = 200;
const SHORT: usize = 4;
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

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let spec = Spec::read()?;
    let rounds = if short { SHORT } else { ROUNDS };
    let rows_of = TRANSPORTS.map(|transport| ordered(transport, rounds, &spec));
    rows.extend(try_join_all(rows_of).await?);
    Ok(())
}

async fn ordered(transport: &'static str, rounds: usize, spec: &Spec) -> anyhow::Result<Row> {
    let mut stand = World::stand().await?;
    let (cloud, url) = HostileCloud::listen(&stand, transport).await?;
    let driver = TestDriver::new(DRIVER, HONEST);
    let socket = stand.at("driver.sock");
    let serving = driver.serve(socket.as_ref())?;
    let edge = stand.edge_with("ordered", &[(DRIVER, &socket)], &["--cloud", &url]).await?;
    let tasks = Tasks::default();
    let client = caller(cloud.welcome().await?, DRIVER, &tasks).await?;
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
    let reached = usize::from(has_got(&driver, CLIMBING));
    // What csi-cloud sends reaches it, so that the others could have.
    let answer = client.call(Method::CreateVolume.path(), &create("sent")).await?;
    let is_served = answer.code() == Code::Ok;
    tasks.stop();
    edge.stop(STOP).await?;
    serving.stop().await;
    Ok(Row {
        case: format!("a cloud that asks {} other methods, {calls} calls", asked.len()),
        transport,
        asked: ASKED,
        measured: format!("{refused} UNIMPLEMENTED, {reached} reached a driver"),
        ok: refused == calls && reached == 0 && is_served,
    })
}
