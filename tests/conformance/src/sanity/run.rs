//! csi-sanity against one driver, at its own socket or through both ends of a link.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use drivers::grpc::identity_client::IdentityClient;
use proto::csi::ProbeRequest;
use proto::host::publish::{Existing, publish};
use tokio_util::sync::CancellationToken;

use super::report::Report;
use super::started::{Driver, Started, guarded};
use super::suite::{Part, Suite};
use harness::net::{Net, Shape};
use harness::stand::{Stand, channel};
use harness::wait::until;

/// How long a whole run may take.
const RUN: Duration = Duration::from_secs(300);
/// The same, where every call takes a tenth of a second at least.
const RUN_FAR: Duration = Duration::from_secs(1800);
/// The longest path of a unix socket.
const SOCKET_PATH: usize = 107;
const NODE: &str = "n1";

/// How the suite reaches the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// At its own socket.
    Direct,
    /// Through csi-cloud and csi-edge, linked by a WebSocket.
    Ws,
    /// Through csi-cloud and csi-edge, linked by QUIC.
    Quic,
}

/// The network between csi-cloud and csi-edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// They are on one host.
    Nothing,
    /// A network that is far, slow, loses packets and mixes them up.
    BadNetwork,
}

impl Way {
    /// Where csi-cloud listens, if it is on the way.
    pub(crate) fn listen(self, stand: &Stand) -> Option<String> {
        let scheme = match self {
            Self::Direct => return None,
            Self::Ws => "wss",
            Self::Quic => "quic",
        };
        Some(format!("{scheme}://{}:0", stand.host()))
    }
}

/// Runs the suite. All its programs have ended when it returns, even after a cancellation.
///
/// # Errors
/// Something cannot be started, ends badly, or takes too long; there is no report; or it was
/// cancelled.
pub async fn run(
    driver: &Driver,
    way: Way,
    between: Between,
    go_bin: &Path,
    cancel: &CancellationToken,
) -> anyhow::Result<Report> {
    ensure!(!cancel.is_cancelled(), "stopped before it began");
    let suite = Suite::at(go_bin, &driver.options)?;
    let (stand, limit) = match between {
        Between::BadNetwork if way != Way::Direct => {
            (Stand::over(bad_network().await?).await?, RUN_FAR)
        }
        _ => (Stand::new().await?, RUN),
    };
    guarded(stand, limit, cancel, async |stand, started| {
        through(driver, way, &suite, stand, started).await
    })
    .await
}

/// 100 ms there and back, 20 Mbit/s, and each way one packet of a hundred lost and one overtaken.
async fn bad_network() -> anyhow::Result<Net> {
    let shape = Shape { reorder: 0.01, late_by: Duration::from_millis(10), ..Shape::far(20, 0.01) };
    Net::new(shape, 1).await
}

async fn through(
    driver: &Driver,
    way: Way,
    suite: &Suite,
    stand: &mut Stand,
    started: &mut Started,
) -> anyhow::Result<Report> {
    let socket = stand.at("driver.sock");
    let driver = started.driver(driver, stand, NODE, &socket).await?;
    let Some(listen) = way.listen(stand) else {
        let own = driver.controller.map(|controller| ("controllerendpoint", controller));
        let sockets: Vec<_> = [("endpoint", socket)].into_iter().chain(own).collect();
        return suite.run(stand, Part::All, &sockets).await;
    };
    let name = driver.name.as_str();
    let sockets = split(stand, name, NODE)?;
    // The driver may be a shared one.
    let config = stand.at("cloud.toml");
    let section = format!("[driver.\"{name}\"]\ncontrollers = \"any\"\n");
    publish(config.as_ref(), section.as_bytes(), 0o600, Existing::Keep)?;
    let cloud = stand.cloud(&[&listen], &[name], &["--config", &config]).await?;
    let url = cloud.urls.first().context("csi-cloud listens nowhere")?.clone();
    started.cloud = Some(cloud.process);
    started.edge(stand, NODE, &url, &driver).await?;
    ready(&stand.cloud_front(name)).await?;
    suite.run(stand, Part::All, &sockets).await
}

/// Waits until csi-cloud has recorded what the edge said of the driver.
async fn ready(front: &str) -> anyhow::Result<()> {
    until("the driver's front is ready", || async {
        let mut identity = IdentityClient::new(channel(front).await?);
        let probed = identity.probe(ProbeRequest {}).await?.into_inner();
        ensure!(probed.ready == Some(true), "it says {:?}", probed.ready);
        Ok(())
    })
    .await
}

/// The sockets of the suite's split mode: the controller in the cloud, the rest at a node.
///
/// # Errors
/// A path is too long.
pub(super) fn split(
    stand: &Stand,
    name: &str,
    node: &str,
) -> anyhow::Result<[(&'static str, String); 2]> {
    let cloud_front = stand.cloud_front(name);
    let edge_front = stand.edge_front(node, name);
    for path in [&cloud_front, &edge_front] {
        ensure!(
            path.len() <= SOCKET_PATH,
            "{path} is too long for a socket; set TMPDIR to a shorter path"
        );
    }
    Ok([("endpoint", edge_front), ("controllerendpoint", cloud_front)])
}
