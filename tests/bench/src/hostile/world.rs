//! A csi-cloud for hostile peers, and an honest edge that links again and again.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::stand::{Cloud, Stand};
use proto::control::hello::{Driver, Hello, Message, PROTOCOL, Protobuf, Run, True};
use proto::link::endpoint::Endpoint;
use proto::link::tls::{Credentials, Role};
use proto::link::{Event, KeepAlive, Link, NodeNetwork, dial, ws};
use tokio::time::{Instant, sleep, timeout};

use super::memory;
use crate::usage;

/// The driver that csi-cloud serves.
pub(super) const DRIVER: &str = "hostile.test.edge-csi.io";
/// The node that keeps the rules.
pub(super) const HONEST: &str = "honest";
/// The node that does not.
pub(super) const HOSTILE: &str = "hostile";
/// Both transports, as schemes.
pub(super) const TRANSPORTS: [&str; 2] = ["wss", "quic"];
/// The time for something that should take less.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Between two links of the honest edge: of 50 links, 20 may come at once and one a second.
const APART: Duration = Duration::from_millis(200);
const FAR_APART: Duration = Duration::from_secs(1);
const MANY: u32 = 20;

/// csi-cloud, and certificates.
pub(super) struct World {
    pub(super) stand: Stand,
    pub(super) cloud: Cloud,
}

impl World {
    /// A csi-cloud that listens over this transport.
    pub(super) async fn new(transport: &str) -> anyhow::Result<Self> {
        Self::on(Self::stand().await?, transport, &["--store=memory:"]).await
    }

    /// Certificates of both nodes.
    pub(super) async fn stand() -> anyhow::Result<Stand> {
        let mut stand = Stand::new().await?;
        // Otherwise the log of refused connections would be most of the work.
        stand.log("error");
        for node in [HONEST, HOSTILE] {
            stand.run("csi-cloud", &["ca", "issue", node, "--dir", &stand.pki()]).await?;
        }
        Ok(stand)
    }

    /// A csi-cloud with these arguments.
    pub(super) async fn on(stand: Stand, transport: &str, more: &[&str]) -> anyhow::Result<Self> {
        let listen = format!("{transport}://127.0.0.1:0");
        let cloud = memory::hold(stand.cloud(&[&listen], &[DRIVER], more).await?)?;
        Ok(Self { stand, cloud })
    }

    /// Kills csi-cloud. Its store and the certificates stay.
    pub(super) async fn killed(self) -> anyhow::Result<Stand> {
        let Self { stand, cloud } = self;
        cloud.process.kill().await?;
        Ok(stand)
    }

    pub(super) fn url(&self) -> &str {
        self.cloud.urls.first().map_or("", String::as_str)
    }

    pub(super) fn addr(&self) -> anyhow::Result<SocketAddr> {
        let Endpoint { host, port, .. } = self.url().parse()?;
        Ok(format!("{host}:{port}").parse()?)
    }

    pub(super) fn credentials(&self, node: &str) -> anyhow::Result<Credentials> {
        Ok(self.stand.credentials(node, Role::Node)?)
    }

    /// Links as this node, up to its welcome.
    pub(super) async fn link(&self, node: &str) -> anyhow::Result<Link> {
        let mut link = self.dial(node, &ws::tcp()).await?;
        link.send(&Message::Hello(hello(node, Vec::new())?)).await?;
        welcomed(&mut link).await?;
        Ok(link)
    }

    /// Dials as this node. WebSocket goes over this network.
    pub(super) async fn dial(&self, node: &str, network: &NodeNetwork) -> anyhow::Result<Link> {
        let endpoint = self.url().parse()?;
        let credentials = self.credentials(node)?;
        Ok(dial(&endpoint, &credentials, KeepAlive::default(), network).await?)
    }

    /// The longest time of so many links of the honest edge.
    pub(super) async fn relink(&self, times: u32) -> anyhow::Result<Duration> {
        let mut longest = Duration::ZERO;
        for _ in 0..times {
            let begun = Instant::now();
            let linking = timeout(PATIENCE, self.link(HONEST)).await;
            // One that fails has not linked in time.
            let Ok(Ok(link)) = linking else { return Ok(PATIENCE) };
            longest = longest.max(begun.elapsed());
            link.close("done").await;
            sleep(if times > MANY { FAR_APART } else { APART }).await;
        }
        Ok(longest)
    }

    /// The resident memory of csi-cloud, in MiB.
    pub(super) fn resident_mib(&self) -> anyhow::Result<u64> {
        Ok(usage::resident_kib(self.pid()?)? / 1024)
    }

    /// The most that it ever was.
    pub(super) fn peak_mib(&self) -> anyhow::Result<u64> {
        Ok(usage::peak_kib(self.pid()?)? / 1024)
    }

    /// The process of csi-cloud.
    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        self.cloud.process.pid().context("csi-cloud has ended")
    }

    /// Runs a command of csi-cloud against this one, and returns its output.
    pub(super) async fn admin(&self, command: &[&str]) -> anyhow::Result<String> {
        let admin = self.stand.at("cloud/_admin.sock");
        self.stand.run("csi-cloud", &[command, &["--admin", &admin]].concat()).await
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.cloud.process.kill().await
    }
}

/// Waits for the welcome.
pub(super) async fn welcomed(link: &mut Link) -> anyhow::Result<()> {
    let event = timeout(PATIENCE, link.next()).await?;
    ensure!(matches!(event, Event::Message(Message::Welcome(_))), "the cloud did not welcome");
    Ok(())
}

/// Waits until the link is closed.
pub(super) async fn closed(link: &mut Link) {
    while !matches!(link.next().await, Event::Closed(_)) {}
}

/// A hello with these drivers.
pub(super) fn hello(node: &str, drivers: Vec<Driver>) -> anyhow::Result<Hello> {
    Ok(Hello {
        protocol: PROTOCOL,
        node: node.parse()?,
        version: "hostile".into(),
        drivers,
        leases: True,
        not_taken: True,
        expands: false,
        metadata: None,
        takes_node: false,
        begins_within: false,
        reopens_calls: false,
        certificate_on_disk: false,
        trust: None,
        awaits_leader: false,
        run: Run::begin(),
        machine: None,
        takes_watermark: false,
        answers_challenge: false,
        watermark: None,
    })
}

/// A driver of scope `node` or `shared`, by what it says of itself.
pub(super) fn driver(name: &str, is_local: bool) -> anyhow::Result<Driver> {
    use prost::Message as _;
    use proto::csi;

    let info = csi::GetPluginInfoResponse { name: name.into(), ..Default::default() };
    let mut plugin = csi::GetPluginCapabilitiesResponse::default().encode_to_vec().into();
    if is_local {
        plugin = csi::topology::into_plugin_capabilities(&plugin)?;
    }
    let capacity = csi::controller_service_capability::rpc::Type::GetCapacity;
    let capability = csi::ControllerServiceCapability {
        r#type: Some(csi::controller_service_capability::Type::Rpc(
            csi::controller_service_capability::Rpc { r#type: capacity.into() },
        )),
    };
    let controller = csi::ControllerGetCapabilitiesResponse { capabilities: vec![capability] };
    let mut node = csi::NodeGetInfoResponse { node_id: "hostile".into(), ..Default::default() };
    if is_local {
        let segments = [("hostile.example/site".to_owned(), "one".to_owned())].into();
        node.accessible_topology = Some(csi::Topology { segments });
    }
    let answers = [
        ("GetPluginInfo", info.encode_to_vec().into()),
        ("GetPluginCapabilities", plugin),
        ("ControllerGetCapabilities", controller.encode_to_vec().into()),
        ("NodeGetCapabilities", csi::NodeGetCapabilitiesResponse::default().encode_to_vec().into()),
        ("NodeGetInfo", node.encode_to_vec().into()),
    ];
    let answers = answers.map(|(method, bytes)| (method.to_owned(), Protobuf(bytes)));
    Ok(Driver { name: name.parse()?, answers: answers.into(), health: None })
}
