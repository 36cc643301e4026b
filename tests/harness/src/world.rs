//! The usual world of a test: csi-cloud, csi-edge at one node, and a [`TestDriver`] inside the
//! test.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use prost::Message;
use proto::control::hello::{Hello, PROTOCOL, Run, True};
use proto::csi;
use proto::link;
use proto::link::tls::Role;
use proto::link::{KeepAlive, Link, ws};

use crate::process::Process;
use crate::raw::RawClient;
use crate::stand::{Cloud, Stand};
use crate::wait::{START, STOP, until};
use drivers::testdriver::{Running, TestDriver};

/// The name of the driver.
pub const DRIVER: &str = "test.edge-csi.io";
/// The name of the node.
pub const NODE: &str = "n1";
/// Both transports, as `--listen` takes them. Tests of calls run once for each.
pub const TRANSPORTS: [&str; 2] = ["wss://127.0.0.1:0", "quic://127.0.0.1:0"];

/// The section of a driver with this scope, `node` or `shared`. Any node may be elected.
pub fn section(driver: &str, scope: &str) -> String {
    let controllers = if scope == "shared" { "controllers = \"any\"\n" } else { "" };
    format!("[driver.\"{driver}\"]\nscope = \"{scope}\"\n{controllers}")
}

/// Everything, up and linked.
pub struct World {
    /// Starts further programs, and knows where their sockets are.
    pub stand: Stand,
    /// csi-cloud, with a front for [`DRIVER`].
    pub cloud: Cloud,
    /// csi-edge at [`NODE`].
    pub edge: Process,
    /// The driver.
    pub driver: TestDriver,
    /// The driver's socket.
    pub serving: Running,
}

impl World {
    /// A world whose link runs over this transport; the cloud has learned of the driver.
    ///
    /// # Errors
    /// A program does not start; the error holds its log.
    pub async fn new(listen: &str) -> anyhow::Result<Self> {
        Self::with(listen, &[], &[]).await
    }

    /// A world whose programs are given further arguments.
    ///
    /// # Errors
    /// A program does not start; the error holds its log.
    pub async fn with(listen: &str, cloud: &[&str], edge: &[&str]) -> anyhow::Result<Self> {
        Self::at(Stand::new().await?, listen, cloud, edge).await
    }

    /// A world whose driver is shared: all its calls pass through.
    ///
    /// # Errors
    /// As for [`World::new`].
    pub async fn shared(listen: &str) -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let config = stand.at("shared.toml");
        let text = section(DRIVER, "shared");
        proto::host::publish::publish(
            config.as_ref(),
            text.as_bytes(),
            0o600,
            proto::host::publish::Existing::Keep,
        )?;
        Self::at(stand, listen, &["--config", &config], &[]).await
    }

    /// A world on this stand, whose link uses this scheme, `wss` or `quic`.
    ///
    /// # Errors
    /// As for [`World::new`].
    pub async fn over(stand: Stand, scheme: &str) -> anyhow::Result<Self> {
        let listen = format!("{scheme}://{}:0", stand.host());
        Self::at(stand, &listen, &[], &[]).await
    }

    /// A world on this stand, whose csi-cloud listens so and whose csi-edge is given further
    /// arguments.
    ///
    /// # Errors
    /// As for [`World::new`].
    pub async fn behind(stand: Stand, listen: &str, edge: &[&str]) -> anyhow::Result<Self> {
        Self::at(stand, listen, &[], edge).await
    }

    /// A world on this stand, whose csi-cloud listens so and is given further arguments.
    ///
    /// # Errors
    /// As for [`World::new`].
    pub async fn on(stand: Stand, listen: &str, cloud: &[&str]) -> anyhow::Result<Self> {
        Self::at(stand, listen, cloud, &[]).await
    }

    async fn at(
        mut stand: Stand,
        listen: &str,
        cloud: &[&str],
        edge: &[&str],
    ) -> anyhow::Result<Self> {
        let driver = TestDriver::new(DRIVER, NODE);
        let socket = stand.at("driver.sock");
        let serving = driver.serve(Path::new(&socket))?;
        let cloud = stand.cloud(&[listen], &[DRIVER], cloud).await?;
        let url = cloud.urls.first().context("no listener")?.clone();
        let more = [&["--cloud", url.as_str()], edge].concat();
        let mut edge = stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
        edge.line_starting("linked ", START).await?;
        let world = Self { stand, cloud, edge, driver, serving };
        world.learned().await?;
        world.driver.forget_calls();
        Ok(world)
    }

    /// Waits until the cloud knows what the driver can do.
    ///
    /// # Errors
    /// It does not learn it in time.
    pub async fn learned(&self) -> anyhow::Result<()> {
        let front = self.front().await?;
        until("the cloud learns of the driver", || ready(&front)).await
    }

    /// A connection to the cloud's front.
    ///
    /// # Errors
    /// Nobody serves it.
    pub async fn front(&self) -> anyhow::Result<RawClient> {
        RawClient::connect(&self.stand.cloud_front(DRIVER)).await
    }

    /// A connection to the node's front.
    ///
    /// # Errors
    /// Nobody serves it.
    pub async fn node_front(&self) -> anyhow::Result<RawClient> {
        RawClient::connect(&self.stand.edge_front(NODE, DRIVER)).await
    }

    /// A connection to the driver itself.
    ///
    /// # Errors
    /// Nobody serves it.
    pub async fn direct(&self) -> anyhow::Result<RawClient> {
        RawClient::connect(&self.stand.at("driver.sock")).await
    }

    /// Dials as an edge of the test's own, with the node's certificate.
    ///
    /// # Errors
    /// There is no link.
    pub async fn dial(&self) -> anyhow::Result<Link> {
        let credentials = self.stand.credentials(NODE, Role::Node)?;
        Ok(link::dial(&self.url().parse()?, &credentials, KeepAlive::default(), &ws::tcp()).await?)
    }

    /// Where the edge dials.
    pub fn url(&self) -> &str {
        self.cloud.urls.first().map_or("", String::as_str)
    }

    /// Stops both programs as an operator does, and checks that they end well.
    ///
    /// # Errors
    /// One does not, or left its socket.
    pub async fn stop(self) -> anyhow::Result<()> {
        let fronts = [self.stand.cloud_front(DRIVER), self.stand.edge_front(NODE, DRIVER)];
        self.edge.stop(STOP).await?;
        self.cloud.process.stop(STOP).await?;
        for front in fronts {
            anyhow::ensure!(!Path::new(&front).exists(), "{front} was left behind");
        }
        Ok(())
    }
}

/// The hello of an edge of the test's own: it has no drivers.
///
/// # Errors
/// That is no node's name.
pub fn hello(node: &str) -> anyhow::Result<Hello> {
    Ok(Hello {
        protocol: PROTOCOL,
        node: node.parse()?,
        version: "test".into(),
        drivers: Vec::new(),
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

/// Succeeds when the front's Probe says that it is ready.
///
/// # Errors
/// It is not ready yet.
pub async fn ready(front: &RawClient) -> anyhow::Result<()> {
    let answer = front.call("/csi.v1.Identity/Probe", &[]).await?;
    let probe = csi::ProbeResponse::decode(answer.message().context("Probe failed")?)?;
    anyhow::ensure!(probe.ready == Some(true), "not ready");
    Ok(())
}

/// How long a test waits for an event that must not happen. The event would happen sooner.
pub const QUIET: Duration = Duration::from_millis(300);
