//! Peers with a valid certificate that break the rules on purpose.

use drivers::testdriver::TestDriver;
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::{controller, create};
use harness::stand::Stand;
use harness::wait::START;
use harness::world::{DRIVER, NODE, TRANSPORTS};
use proto::control::hello::{Message, PROTOCOL, Welcome};
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use proto::link::tls::{Role, server_config};
use proto::link::{Event, KeepAlive, Kind, Link, quic, ws};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::Code;

/// A csi-cloud of the test's own.
enum HostileCloud {
    Ws(TcpListener, ws::Acceptor),
    Quic(quic::Acceptor),
}

impl HostileCloud {
    async fn listen(stand: &Stand, transport: &str) -> anyhow::Result<(Self, String)> {
        let credentials = stand.credentials("cloud", Role::Cloud)?;
        let keep_alive = KeepAlive::default();
        if transport.starts_with("wss") {
            let acceptor = ws::Acceptor::new(server_config(&credentials, ws::ALPN)?, keep_alive);
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let url = format!("wss://{}", listener.local_addr()?);
            return Ok((Self::Ws(listener, acceptor), url));
        }
        let acceptor = quic::Acceptor::bind("127.0.0.1:0".parse()?, &credentials, keep_alive)?;
        let url = format!("quic://{}", acceptor.local_addr()?);
        Ok((Self::Quic(acceptor), url))
    }

    async fn accept(&self) -> anyhow::Result<Link> {
        let link = async {
            match self {
                Self::Ws(listener, acceptor) => {
                    let (tcp, _) = listener.accept().await?;
                    let link = acceptor.accept(acceptor.greet(Box::new(tcp)).await?).await?;
                    let link = link.ok_or_else(|| anyhow::anyhow!("no link"))?.1;
                    anyhow::Ok(Link::from(link))
                }
                Self::Quic(acceptor) => {
                    let incoming = acceptor.accept().await;
                    let incoming = incoming.ok_or_else(|| anyhow::anyhow!("closed"))?;
                    Ok(Link::from(quic::authenticate(incoming).await?.1))
                }
            }
        };
        timeout(START, link).await?
    }

    /// Welcomes an edge.
    async fn welcome(&self) -> anyhow::Result<Link> {
        let mut link = self.accept().await?;
        anyhow::ensure!(matches!(link.next().await, Event::Message(Message::Hello(_))));
        let welcome = Welcome {
            protocol: PROTOCOL,
            version: "hostile".into(),
            backoff_cap_ms: None,
            scopes: Default::default(),
            leases: false,
            not_taken: false,
        };
        link.send(&Message::Welcome(welcome)).await?;
        Ok(link)
    }
}

/// Calls the driver of an edge over its link, which is driven meanwhile.
async fn caller(mut link: Link, tasks: &Tasks) -> anyhow::Result<RawClient> {
    let opening = link.open(Kind::Calls);
    let io = {
        let mut opening = std::pin::pin!(opening);
        loop {
            tokio::select! {
                io = &mut opening => break io?,
                event = link.next() => {
                    anyhow::ensure!(!matches!(event, Event::Closed(_)), "the edge closed the link");
                }
            }
        }
    };
    tasks.spawn_until_stop("link", async move {
        while !matches!(link.next().await, Event::Closed(_)) {}
    });
    RawClient::over(io, DRIVER).await
}

struct Edge {
    process: Process,
    driver: TestDriver,
    _serving: drivers::testdriver::Running,
}

async fn edge(stand: &mut Stand, url: &str, more: &[&str]) -> anyhow::Result<Edge> {
    let driver = TestDriver::new(DRIVER, NODE);
    let socket = stand.at("driver.sock");
    let serving = driver.serve(socket.as_ref())?;
    let more = [&["--cloud", url], more].concat();
    let process = stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
    Ok(Edge { process, driver, _serving: serving })
}

#[tokio::test]
async fn a_cloud_gets_what_csi_cloud_sends_and_nothing_else_to_a_driver() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut stand = Stand::new().await?;
        let (cloud, url) = HostileCloud::listen(&stand, transport).await?;
        let edge = edge(&mut stand, &url, &[]).await?;
        let tasks = Tasks::default();
        let client = caller(cloud.welcome().await?, &tasks).await?;
        let mut climbing = vec![];
        prost::Message::encode(
            &proto::csi::NodePublishVolumeRequest {
                volume_id: "v".into(),
                target_path: "/etc/cron.d/../../root/.ssh".into(),
                ..Default::default()
            },
            &mut climbing,
        )?;
        let all = proto::csi::Method::ALL.iter().filter(|method| !method.sent());
        let paths = all.map(|method| method.path());
        let unknown = ["/csi.v1.Node/NodeFormat", "/csi.v1.Controller/Format", "/x.y/Z"];
        for path in paths.chain(unknown) {
            let answer = client.call(path, &climbing).await?;
            assert_eq!(answer.code(), Code::Unimplemented, "{path}: {}", answer.status());
            edge.process.logged(path).await?;
        }
        let reached = edge.driver.calls().into_iter().find(|call| call.message == climbing);
        assert!(reached.is_none(), "one reached the driver");
        let answer = client.call(&controller("CreateVolume"), &create("v")).await?;
        assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
        tasks.stop();
        edge.process.stop(START).await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_the_node_denies_reaches_no_driver_and_changes_no_capability() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let config = stand.at("deny.toml");
    let text = b"deny = [\"ControllerExpandVolume\"]\n";
    publish(config.as_ref(), text, 0o600, Existing::Keep)?;
    let (cloud, url) = HostileCloud::listen(&stand, TRANSPORTS[0]).await?;
    let edge = edge(&mut stand, &url, &["--config", &config]).await?;
    let tasks = Tasks::default();
    let client = caller(cloud.welcome().await?, &tasks).await?;
    let request =
        proto::csi::ControllerExpandVolumeRequest { volume_id: "v".into(), ..Default::default() };
    let request = prost::Message::encode_to_vec(&request);
    let expand = controller("ControllerExpandVolume");
    let answer = client.call(&expand, &request).await?;
    // Not final: an earlier csi-edge, which did not deny it, may have begun a run.
    assert_eq!(answer.code(), Code::Unavailable, "{}", answer.status());
    assert!(answer.status().message().contains("is denied at this node"), "{}", answer.status());
    edge.process.logged("is denied at this node").await?;
    assert!(edge.driver.calls_of("ControllerExpandVolume").is_empty());
    // The node's own callers see the capability, and their calls reach the driver.
    let front = RawClient::connect(&stand.edge_front(NODE, DRIVER)).await?;
    let capabilities = controller("ControllerGetCapabilities");
    let of_driver = RawClient::connect(&stand.at("driver.sock")).await?;
    assert_eq!(
        front.call(&capabilities, &[]).await?.body,
        of_driver.call(&capabilities, &[]).await?.body
    );
    let _ = front.call(&expand, &request).await?;
    assert_eq!(edge.driver.calls_of("ControllerExpandVolume").len(), 1);
    tasks.stop();
    edge.process.stop(START).await
}
