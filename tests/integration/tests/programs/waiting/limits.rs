//! Limits on what an edge, or any client, may use of the cloud. Each test ends with a good edge
//! that is not affected.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use harness::flood;
use harness::flood::{Flood, Sends};
use harness::hostile_cloud;
use harness::requests::controller;
use harness::wait::{START, until};
use harness::world::{NODE, QUIET, TRANSPORTS, World, hello};
use http::StatusCode;
use proto::control::hello::{MAX_BYTES, Message};
use proto::host::publish::{Existing, publish};
use proto::link::tls::{Role, client_config};
use proto::link::{Event, HANDSHAKE, KeepAlive, dial, quic, ws};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tonic::Code;

fn addr(world: &World) -> anyhow::Result<SocketAddr> {
    Ok(world.url().split_once("://").unwrap_or_default().1.parse()?)
}

async fn tls(world: &World) -> anyhow::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let config = client_config(&world.stand.credentials(NODE, Role::Node)?, ws::ALPN)?;
    let tcp = TcpStream::connect(addr(world)?).await?;
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1")?;
    Ok(tokio_rustls::TlsConnector::from(config).connect(name, tcp).await?)
}

async fn quinn_connection(world: &World) -> anyhow::Result<(quinn::Endpoint, quinn::Connection)> {
    let tls = client_config(&world.stand.credentials(NODE, Role::Node)?, quic::ALPN)?;
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls)?;
    let config = quinn::ClientConfig::new(Arc::new(crypto));
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse()?)?;
    let connection = endpoint.connect_with(config, addr(world)?, "127.0.0.1")?.await?;
    Ok((endpoint, connection))
}

/// The good edge is linked and answers.
async fn untouched(world: &World) -> anyhow::Result<()> {
    let front = world.front().await?;
    until("the good edge answers", || async {
        let answer = front.call(&controller("GetCapacity"), &[]).await?;
        anyhow::ensure!(answer.code() == Code::Ok, "{}", answer.status());
        Ok(())
    })
    .await
}

/// A connection that is closed by the other side.
async fn closed(mut connection: impl AsyncReadExt + Unpin) -> anyhow::Result<()> {
    let mut bytes = [0; 1024];
    while let Ok(1..) = connection.read(&mut bytes).await {}
    Ok(())
}

#[tokio::test]
async fn who_dials_and_says_nothing_is_let_go_in_time() -> anyhow::Result<()> {
    let worlds = [World::new(TRANSPORTS[0]).await?, World::new(TRANSPORTS[1]).await?];
    let begun = Instant::now();
    // After TCP; after TLS; in the middle of the upgrade, which is a byte at a time; and after all
    // of it.
    let tcp = TcpStream::connect(addr(&worlds[0])?).await?;
    let after_tls = tls(&worlds[0]).await?;
    let slow = tls(&worlds[0]).await?;
    let wss = worlds[0].dial().await?;
    let (endpoint, silent) = quinn_connection(&worlds[1]).await?;
    let slow = async move {
        let (mut read, mut write) = tokio::io::split(slow);
        let drip = async {
            while tokio::io::AsyncWriteExt::write_all(&mut write, b"G").await.is_ok() {
                tokio::time::sleep(QUIET).await;
            }
        };
        tokio::select! { () = drip => {}, _ = closed(&mut read) => {} }
        anyhow::Ok(())
    };
    let wss = async move {
        let mut wss = wss;
        loop {
            match wss.next().await {
                Event::Closed(_) => return anyhow::Ok(()),
                Event::Message(Message::Refused(refused)) => {
                    assert_eq!(refused.reason, "no hello came in time")
                }
                _ => panic!("what is said to who says nothing?"),
            }
        }
    };
    let all = async { tokio::try_join!(closed(tcp), closed(after_tls), slow, wss) };
    timeout(HANDSHAKE + Duration::from_secs(3), all).await??;
    timeout(Duration::from_secs(3), silent.closed()).await?;
    assert!(
        begun.elapsed() >= HANDSHAKE - Duration::from_millis(100),
        "too soon: {:?}",
        begun.elapsed()
    );
    drop(endpoint);
    for world in worlds {
        world.cloud.process.logged("asked for no link within 4s").await?;
        untouched(&world).await?;
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_address_has_so_many_connections_and_no_more() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let dir = tempfile::tempdir()?;
        let config = dir.path().join("cloud.toml");
        publish(&config, b"[limits]\nconnections_per_address = 2\n", 0o600, Existing::Keep)?;
        let world =
            World::with(transport, &["--config", &config.display().to_string()], &[]).await?;
        let second = world.dial().await?;
        let third = world.dial().await.err();
        let text = third.map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(!text.is_empty(), "a third connection was taken");
        world.cloud.process.logged("127.0.0.1").await?;
        world
            .cloud
            .process
            .logged("has 2 connections, which is the limit (connections_per_address)")
            .await?;
        second.close("done").await;
        let room = until("there is room again", || world.dial()).await?;
        room.close("done").await;
        untouched(&world).await?;
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_edge_that_breaks_the_rules_is_told_which_and_so_is_the_log() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        let mut link = world.dial().await?;
        link.send(&Message::Hello(hello(NODE)?)).await?;
        let Event::Message(Message::Welcome(welcome)) = link.next().await else {
            panic!("not welcome")
        };
        assert_eq!(welcome.backoff_cap_ms, Some(2000), "what a small fleet is told");
        // Only the cloud welcomes.
        link.send(&Message::Welcome(hostile_cloud::welcome("0.1.0"))).await?;
        let reason =
            "an edge may only tell of its drivers and volumes, renew, and say that it leaves";
        match timeout(START, link.next()).await? {
            Event::Closed(error) => assert!(error.to_string().contains(reason), "{error}"),
            _ => panic!("not closed"),
        }
        world.cloud.process.logged(reason).await?;
        untouched(&world).await?;
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_control_message_that_is_too_large_is_named_to_both_sides() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[1]).await?;
    let (_endpoint, connection) = quinn_connection(&world).await?;
    let (mut send, _recv) = connection.open_bi().await?;
    send.write_all(&u32::try_from(MAX_BYTES + 1)?.to_be_bytes()).await?;
    let closed = timeout(START, connection.closed()).await?;
    let reason = "a control message of more than 262144 bytes";
    assert!(closed.to_string().contains(reason), "{closed}");
    world.cloud.process.logged(reason).await?;
    untouched(&world).await?;
    world.stop().await
}

#[tokio::test]
async fn an_edge_opens_one_stream_and_no_bulk_connection_that_nobody_asked_for()
-> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[1]).await?;
    let (_endpoint, connection) = quinn_connection(&world).await?;
    let _first = connection.open_bi().await?;
    assert!(timeout(QUIET, connection.open_bi()).await.is_err(), "a second stream was let in");
    assert!(
        timeout(QUIET, connection.open_uni()).await.is_err(),
        "a stream of one direction was let in"
    );
    assert_eq!(connection.max_datagram_size(), None);
    untouched(&world).await?;
    world.stop().await?;

    let world = World::new(TRANSPORTS[0]).await?;
    let url = format!("wss://{}/bulk/6a0e8c3e-4d6c-4e7c-9d3f-0d1f6f0b9f10", addr(&world)?);
    let (socket, _) = tokio_tungstenite::client_async(url, tls(&world).await?).await?;
    closed(socket.into_inner()).await?;
    world.cloud.process.logged("nobody asked for /bulk/").await?;
    untouched(&world).await?;
    world.stop().await
}

#[tokio::test]
async fn headers_that_are_too_large_end_that_call_only() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    for front in [world.front().await?, world.node_front().await?] {
        let large = "x".repeat(70 * 1024);
        let body = proto::csi::frame::frame(&[]);
        let refused = front.begin(&controller("GetCapacity"), body, &[("large", &large)]).await?;
        assert_eq!(refused.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        assert_eq!(front.call(&controller("GetCapacity"), &[]).await?.code(), Code::Ok);
    }
    let calls = world.driver.calls_of("GetCapacity");
    assert_eq!(calls.len(), 2, "what was refused reached the driver");
    world.stop().await
}

#[tokio::test]
async fn silent_connections_of_many_addresses_keep_no_edge_out() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    let flood = Flood::new(addr(&world)?, 40, 50, Sends::Nothing);
    until("2,000 connections are open", || async {
        anyhow::ensure!(flood.open() >= 1_900, "{} are open", flood.open());
        Ok(())
    })
    .await?;
    let credentials = world.stand.credentials(NODE, Role::Node)?;
    // An address that has linked before, and one that has not.
    for from in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 99)] {
        let network = flood::from(from).into();
        let begun = Instant::now();
        let endpoint = world.url().parse()?;
        let mut link = dial(&endpoint, &credentials, KeepAlive::default(), &network).await?;
        link.send(&Message::Hello(hello(NODE)?)).await?;
        let welcome = timeout(START, link.next()).await?;
        assert!(matches!(welcome, Event::Message(Message::Welcome(_))));
        let elapsed = begun.elapsed();
        assert!(elapsed < Duration::from_secs(2), "{from} linked after {elapsed:?}");
        link.close("done").await;
    }
    // Those that said nothing were let go meanwhile, and others came.
    until("silent connections are let go", || async {
        anyhow::ensure!(flood.made() >= 3_000, "{} were made", flood.made());
        Ok(())
    })
    .await?;
    drop(flood);
    untouched(&world).await?;
    world.stop().await
}
