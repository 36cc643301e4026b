//! The link itself: who may have one, its messages, and how its end is noticed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drivers::testdriver::TestDriver;
use futures_util::{SinkExt, StreamExt};
use harness::raw::RawClient;
use harness::requests::{controller, create};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world;
use harness::world::{DRIVER, NODE, TRANSPORTS, World, ready};
use proto::control::hello;
use proto::control::hello::{Hello, Message, PROTOCOL};
use proto::link;
use proto::link::endpoint::Endpoint;
use proto::link::tls;
use proto::link::tls::{Credentials, Files, Role, client_config};
use proto::link::{Event, KeepAlive, Link, LinkError, quic, ws};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite;
use tonic::Code;

fn hello(node: &str, protocol: u32) -> anyhow::Result<Message> {
    let driver = hello::Driver { name: DRIVER.parse()?, answers: Default::default(), health: None };
    Ok(Message::Hello(Hello { protocol, drivers: vec![driver], ..world::hello(node)? }))
}

#[tokio::test]
async fn a_hello_from_the_future_is_refused_with_what_to_do() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        let mut link = world.dial().await?;
        link.send(&hello(NODE, PROTOCOL + 1)?).await?;
        match link.next().await {
            Event::Message(Message::Refused(refused)) => {
                assert_eq!(refused.protocol, PROTOCOL);
                assert!(refused.reason.contains("upgrade csi-cloud first"), "{}", refused.reason);
            }
            Event::Closed(error) => panic!("closed without a word: {error}"),
            _ => panic!("not refused"),
        }
        assert!(matches!(link.next().await, Event::Closed(_)));
        world.cloud.process.logged("speaks link protocol 2").await?;
        // The good link that was there is untouched.
        assert_eq!(
            world.front().await?.call(&controller("GetCapacity"), &[]).await?.code(),
            Code::Ok
        );
        world.stop().await?;
    }
    Ok(())
}

/// A cloud of a later version refuses our edge; the edge reports it and goes on trying.
#[tokio::test]
async fn an_edge_that_is_refused_says_why() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let tls = tls::server_config(&stand.credentials("cloud", Role::Cloud)?, ws::ALPN)?;
    let acceptor = ws::Acceptor::new(tls, KeepAlive::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("wss://{}", listener.local_addr()?);
    let edge = stand.edge_started(NODE, &url, &[(DRIVER, "/nowhere.sock")]).await?;
    for _ in 0..2 {
        let (tcp, _) = tokio::time::timeout(START, listener.accept()).await??;
        let greeted = acceptor.greet(Box::new(tcp)).await?;
        let accepted = acceptor.accept(greeted).await?.link();
        let (peer, link) = accepted.ok_or_else(|| anyhow::anyhow!("not a link"))?;
        assert_eq!(peer.name.as_str(), NODE);
        let mut link = Link::from(link);
        assert!(matches!(
            link.next().await,
            Event::Message(Message::Hello(hello)) if hello.protocol == PROTOCOL
        ));
        let reason = "upgrade csi-edge".to_owned();
        link.send(&Message::Refused(hello::Refused {
            protocol: PROTOCOL + 1,
            reason,
            leader: None,
        }))
        .await?;
        assert!(matches!(link.next().await, Event::Closed(_)));
    }
    edge.logged("the cloud refused this edge").await?;
    edge.logged("upgrade csi-edge").await?;
    edge.stop(START).await
}

#[tokio::test]
async fn garbage_before_the_hello_ends_that_link_only() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    let tls = client_config(&world.stand.credentials(NODE, Role::Node)?, ws::ALPN)?;
    let at = world.url().trim_start_matches("wss://").to_owned();
    let large = "x".repeat(hello::MAX_BYTES + 1);
    for message in [
        tungstenite::Message::text("{\"hello\":{\"protocol\":1,"),
        tungstenite::Message::text("null"),
        tungstenite::Message::text("{\"drivers\":[]}"),
        tungstenite::Message::text(large),
        tungstenite::Message::binary(b"PRI * HTTP/2.0".to_vec()),
    ] {
        let tcp = tokio::net::TcpStream::connect(&at).await?;
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1")?;
        let stream = tokio_rustls::TlsConnector::from(tls.clone()).connect(name, tcp).await?;
        let (mut socket, _) =
            tokio_tungstenite::client_async(format!("wss://{at}/link"), stream).await?;
        // The cloud may close while a large one is still being sent.
        let _ = socket.send(message).await;
        let closed = async { while let Some(Ok(_)) = socket.next().await {} };
        tokio::time::timeout(Duration::from_secs(5), closed).await?;
    }
    assert_eq!(world.front().await?.call(&controller("GetCapacity"), &[]).await?.code(), Code::Ok);
    world.stop().await
}

#[tokio::test]
async fn garbage_on_quics_first_stream_ends_that_link_only() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[1]).await?;
    let tls = client_config(&world.stand.credentials(NODE, Role::Node)?, quic::ALPN)?;
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls)?;
    let config = quinn::ClientConfig::new(Arc::new(crypto));
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse()?)?;
    let addr = world.url().trim_start_matches("quic://").parse()?;
    let cut = [&[0, 0, 1, 0][..], b"{\"hello\":"].concat();
    for bytes in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x02{}", b"\0\0\0\0", &cut] {
        let connection = endpoint.connect_with(config.clone(), addr, "127.0.0.1")?.await?;
        let (mut send, mut recv) = connection.open_bi().await?;
        send.write_all(bytes).await?;
        send.shutdown().await?;
        let _ = tokio::time::timeout(Duration::from_secs(5), recv.read_to_end(4096)).await?;
        tokio::time::timeout(Duration::from_secs(5), connection.closed()).await?;
    }
    assert_eq!(world.front().await?.call(&controller("GetCapacity"), &[]).await?.code(), Code::Ok);
    world.stop().await
}

#[tokio::test]
async fn the_certificate_says_who_an_edge_is_and_a_newer_link_replaces_the_older()
-> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut world = World::new(transport).await?;
        let front = world.front().await?;
        let url = world.url().to_owned();
        // A second node, whose own driver is another one.
        let socket = world.stand.at("other.sock");
        let other = TestDriver::new(DRIVER, "n2");
        let serving = other.serve(Path::new(&socket))?;
        let second = world.stand.edge("n2", &url, &[(DRIVER, &socket)]).await?;
        // An edge with the certificate of n1 calls itself n2.
        let mut liar = world.dial().await?;
        liar.send(&hello("n2", PROTOCOL)?).await?;
        assert!(matches!(liar.next().await, Event::Message(Message::Welcome(_))));
        let asks = |node: &str| {
            use prost::Message as _;
            let segments = [("topology.edge-csi.io/node".to_owned(), node.to_owned())].into();
            let accessible_topology = Some(proto::csi::Topology { segments });
            proto::csi::GetCapacityRequest { accessible_topology, ..Default::default() }
                .encode_to_vec()
        };
        let answer = front.call(&controller("GetCapacity"), &asks("n2")).await?;
        assert_eq!(answer.code(), Code::Ok, "n2 is still n2's: {}", answer.status());
        assert_eq!(other.calls_of("GetCapacity").len(), 1);
        // n1's older link is gone, since the liar is n1; its edge dials again and is the newer one
        // then.
        until("the edge of n1 is back", || async {
            let answer = front.call(&controller("GetCapacity"), &asks("n1")).await?;
            anyhow::ensure!(answer.code() == Code::Ok, "{}", answer.status());
            Ok(())
        })
        .await?;
        world.cloud.process.logged("calls itself otherwise than its certificate").await?;
        second.stop(START).await?;
        serving.stop().await;
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn who_has_no_certificate_of_our_ca_gets_no_link() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        let foreign = Stand::new().await?;
        foreign.run("csi-cloud", &["ca", "issue", "n9", "--dir", &foreign.pki()]).await?;
        let endpoint: Endpoint = world.url().parse()?;
        // All of it foreign: our side does not take the cloud.
        let all = foreign.credentials("n9", Role::Node)?;
        let error = link::dial(&endpoint, &all, KeepAlive::default(), &ws::tcp()).await.err();
        let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(matches!(error, Some(LinkError::Tls(_))), "{error:?}");
        assert!(text.contains("of another CA"), "{text}");
        // A foreign certificate, but our CA to check the cloud with: the cloud does not take us.
        let files = foreign.files("n9");
        let ca = [std::fs::read(&files.ca)?, std::fs::read(world.stand.files(NODE).ca)?].concat();
        let both = foreign.dir().join("both.crt");
        proto::host::publish::publish(&both, &ca, 0o600, proto::host::publish::Existing::Keep)?;
        let half = Credentials::load(&Files { ca: both, ..files }, Role::Node)?;
        let refused = match link::dial(&endpoint, &half, KeepAlive::default(), &ws::tcp()).await {
            // With TLS 1.3 the dialer finishes before the other side has checked its certificate.
            Ok(mut link) => match link.next().await {
                Event::Closed(error) => error.to_string(),
                _ => panic!("a foreign node got a link"),
            },
            Err(error) => error.to_string(),
        };
        assert!(refused.contains("ours is of another CA"), "{refused}");
        world.cloud.process.logged("refused a connection").await?;
        world.stop().await?;
    }
    Ok(())
}

/// A world whose links end after 2 s of silence.
async fn impatient(transport: &str) -> anyhow::Result<World> {
    World::with(transport, &["--dead-after", "2"], &["--dead-after", "2"]).await
}

#[tokio::test]
async fn an_edge_that_falls_silent_is_given_up_and_comes_back() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = impatient(transport).await?;
        world.edge.signal(Signal::STOP)?;
        let begun = Instant::now();
        world.cloud.process.logged("sign of life").await?;
        let took = begun.elapsed();
        // The rest is the machine's.
        assert!(
            took < Duration::from_millis(4500),
            "{transport}: noticed after {took:?} and not after 2.7 s"
        );
        world.edge.signal(Signal::CONT)?;
        let front = world.front().await?;
        until("the edge is back", || async {
            let answer = front.call(&controller("CreateVolume"), &create("v")).await?;
            anyhow::ensure!(answer.code() == Code::Ok, "{}", answer.status());
            Ok(())
        })
        .await?;
        assert_eq!(world.driver.volumes().len(), 1, "sent again, made twice");
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_cloud_that_falls_silent_is_given_up_by_the_edge() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut world = impatient(transport).await?;
        world.cloud.process.signal(Signal::STOP)?;
        let begun = Instant::now();
        world.edge.logged("no link; dialing again").await?;
        world.edge.logged("sign of life").await?;
        let took = begun.elapsed();
        assert!(
            took < Duration::from_millis(3500),
            "{transport}: noticed after {took:?} and not after 2 s"
        );
        world.cloud.process.signal(Signal::CONT)?;
        world.edge.line_starting("linked ", START).await?;
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_edge_dials_again_when_the_cloud_is_back() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let World { stand, cloud, mut edge, driver, serving } = World::new(transport).await?;
        let url = cloud.urls[0].clone();
        cloud.process.kill().await?;
        // The stale socket of the killed one is replaced.
        let cloud = stand.cloud(&[&url], &[DRIVER], &[]).await?;
        edge.line_starting("linked ", START).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        until("it has learned again", || ready(&front)).await?;
        assert_eq!(front.call(&controller("CreateVolume"), &create("v")).await?.code(), Code::Ok);
        assert_eq!(driver.volumes().len(), 1);
        edge.stop(START).await?;
        cloud.process.stop(START).await?;
        serving.stop().await;
    }
    Ok(())
}

/// A small call does not wait for large answers, because they use another byte stream.
#[tokio::test]
async fn a_large_answer_does_not_stand_before_a_small_call() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        world.driver.fill(1000, 3000);
        let front = world.front().await?;
        let path = controller("ListVolumes");
        let lists = futures_util::future::join_all((0..8).map(|_| front.call(&path, &[])));
        let small = async {
            let mut worst = Duration::ZERO;
            for _ in 0..20 {
                let begun = Instant::now();
                assert_eq!(front.call(&controller("GetCapacity"), &[]).await?.code(), Code::Ok);
                worst = worst.max(begun.elapsed());
            }
            anyhow::Ok(worst)
        };
        let (lists, worst) = tokio::join!(lists, small);
        for list in lists {
            let list = list?;
            assert!(list.body.len() > 3_000_000, "{} bytes, {}", list.body.len(), list.status());
        }
        assert!(worst? < Duration::from_secs(2));
        world.stop().await?;
    }
    Ok(())
}

/// Callers that take every descriptor do not keep a node away: the last ones are the link's.
#[tokio::test]
async fn an_edge_with_too_many_callers_links_again() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut world = World::new(transport).await?;
        let pid = world.edge.pid().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let limit = Rlimit { current: Some(64), maximum: Some(64) };
        prlimit(pid, Resource::Nofile, limit)?;
        let front = world.stand.edge_front(NODE, DRIVER);
        let mut callers = Vec::new();
        for _ in 0..80 {
            callers.push(tokio::net::UnixStream::connect(&front).await?);
        }
        world.edge.logged("file descriptors are kept for the link").await?;
        let url = world.url().to_owned();
        world.cloud.process.signal(Signal::KILL)?;
        world.cloud.process.ended(START).await?;
        world.cloud = world.stand.cloud(&[&url], &[DRIVER], &[]).await?;
        world.edge.line_starting("linked ", START).await?;
        drop(callers);
        world.stop().await?;
    }
    Ok(())
}
