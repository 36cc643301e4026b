//! `make demo`: a cloud and three edges, one over QUIC, and a volume's whole life at each.

pub mod life;

use std::path::PathBuf;

use self::life::{Life, Table};
use anyhow::Context;
use drivers::grpc::identity_client::IdentityClient;
use harness::process::Process;
use harness::stand::{Stand, channel};
use harness::wait::{START, STOP, until};
use proto::csi;

const DRIVER: &str = "hostdir.edge-csi.io";
const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// The node that is taken away.
const AWAY: usize = 2;

/// Starts csi-cloud and three csi-edge with a real driver each, one over QUIC. A volume goes
/// through its life at each node: create, attach, stage, mount, write, and back.
///
/// # Errors
/// A step failed.
pub async fn main() -> anyhow::Result<()> {
    let mut table = Table::default();
    let mut stand = table
        .step("csi-cloud ca init", "", async { Ok((Stand::new().await?, "a CA".into())) })
        .await?;
    let listen = ["wss://127.0.0.1:0", "quic://127.0.0.1:0"];
    let starting = async {
        let cloud = stand.cloud(&listen, &[DRIVER], &[]).await?;
        let urls = cloud.urls.join(" ");
        Ok((cloud, urls))
    };
    let cloud = table.step("csi-cloud serve", "", starting).await?;
    let mut drivers = Vec::new();
    let mut edges = Vec::new();
    for (node, url) in NODES.iter().zip([&cloud.urls[0], &cloud.urls[0], &cloud.urls[1]]) {
        drivers.push(table.step("hostdir", node, start_driver(&stand, node)).await?);
        let socket = stand.at(&format!("{node}.sock"));
        let linking = async {
            Ok((stand.edge(node, url, &[(DRIVER, &socket)]).await?, format!("linked {url}")))
        };
        edges.push(table.step("csi-edge serve", node, linking).await?);
    }
    table.step("Probe until ready", "", probe(&stand)).await?;
    let mut lives = Vec::new();
    for (node, driver) in NODES.iter().zip(&drivers) {
        let pid = driver.pid().context("the driver has ended")?;
        let cloud = channel(&stand.cloud_front(DRIVER)).await?;
        let front = channel(&stand.edge_front(node, DRIVER)).await?;
        let mounts = stand.dir().join(format!("mounts-{node}"));
        lives.push(Life::new(
            cloud,
            front,
            node,
            mounts,
            PathBuf::from(format!("/proc/{pid}/root")),
        ));
    }
    for life in &mut lives {
        life.begin(&mut table).await?;
    }
    take_away(&mut table, &mut stand, &mut edges, &mut lives[AWAY], &cloud.urls[1]).await?;
    for life in &mut lives {
        life.end(&mut table).await?;
    }
    let tearing_down = async {
        for process in edges.into_iter().chain(drivers) {
            process.stop(STOP).await?;
        }
        cloud.process.stop(STOP).await?;
        Ok(((), "all ended by themselves".into()))
    };
    table.step("stop everything", "", tearing_down).await?;
    let (steps, took) = table.total();
    println!("\n{steps} steps in {:.1} s, nothing left behind", took.as_secs_f64());
    Ok(())
}

async fn start_driver(stand: &Stand, node: &str) -> anyhow::Result<(Process, String)> {
    let mut command = stand.program("hostdir")?;
    let endpoint = format!("unix://{}", stand.at(&format!("{node}.sock")));
    command.args([
        "--endpoint",
        &endpoint,
        "--node-id",
        node,
        "--state",
        &stand.at(&format!("state-{node}")),
    ]);
    command.arg("--private-mounts");
    let mut driver = Process::start(&format!("hostdir-{node}"), command, stand.dir())?;
    driver.line_starting("ready", START).await?;
    Ok((driver, endpoint))
}

async fn probe(stand: &Stand) -> anyhow::Result<((), String)> {
    let identity = IdentityClient::new(channel(&stand.cloud_front(DRIVER)).await?);
    until("the cloud learns of the driver", || async {
        let answer = identity.clone().probe(csi::ProbeRequest::default()).await?.into_inner();
        anyhow::ensure!(answer.ready == Some(true), "not ready");
        Ok(())
    })
    .await?;
    Ok(((), "ready".into()))
}

/// Stops one edge, shows what callers see, and brings it back.
async fn take_away(
    table: &mut Table,
    stand: &mut Stand,
    edges: &mut Vec<Process>,
    life: &mut Life,
    url: &str,
) -> anyhow::Result<()> {
    let node = NODES[AWAY];
    let edge = edges.remove(AWAY);
    table
        .step("stop csi-edge", node, async { Ok((edge.stop(STOP).await?, "away".into())) })
        .await?;
    table.step("ControllerGetVolume", node, life.refused()).await?;
    let mut identity = IdentityClient::new(channel(&stand.cloud_front(DRIVER)).await?);
    let asking = async {
        let info =
            identity.get_plugin_info(csi::GetPluginInfoRequest::default()).await?.into_inner();
        Ok(((), format!("{} {}, answered by the cloud", info.name, info.vendor_version)))
    };
    table.step("GetPluginInfo", "", asking).await?;
    let socket = stand.at(&format!("{node}.sock"));
    let linking =
        async { Ok((stand.edge(node, url, &[(DRIVER, &socket)]).await?, format!("linked {url}"))) };
    edges.push(table.step("csi-edge serve", node, linking).await?);
    Ok(())
}
