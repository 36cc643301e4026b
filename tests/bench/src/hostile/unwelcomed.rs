//! Peers with a certificate that dial without end and never ask for a link, or never say hello.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use harness::flood;
use proto::link::tls::client_config;
use proto::link::{ByteStream, ws};
use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::report::Row;
use super::world::{HOSTILE, TRANSPORTS, World, closed};

/// Connections in all.
const CONNECTIONS: u32 = 5_000;
const SHORT: u32 = 200;
/// Connections at a time.
const AT_ONCE: usize = 500;
/// Addresses that they come from.
const ADDRESSES: u32 = 40;
/// No row takes longer.
const LONGEST: Duration = Duration::from_secs(60);
/// The memory that may remain, in MiB: an allocator keeps some.
const REMAINS: u64 = 48;
const ASKED: &str = "closed <= 20 s, RSS returns";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    if short {
        // So few connections use little of a core, and each waits for its end.
        let [wss, quic] = TRANSPORTS;
        let (upgrade, wss, quic) =
            tokio::try_join!(no_upgrade(SHORT), no_hello(wss, SHORT), no_hello(quic, SHORT))?;
        rows.extend([upgrade, wss, quic]);
        return Ok(());
    }
    rows.push(no_upgrade(CONNECTIONS).await?);
    for transport in TRANSPORTS {
        rows.push(no_hello(transport, CONNECTIONS).await?);
    }
    Ok(())
}

/// After TLS, nothing.
async fn no_upgrade(connections: u32) -> anyhow::Result<Row> {
    let world = World::new("wss").await?;
    world.relink(1).await?;
    let tls = client_config(&world.credentials(HOSTILE)?, ws::ALPN)?;
    let before = world.resident_mib()?;
    let url = world.addr()?.to_string();
    let lives = stream::iter(0..connections)
        .map(|number| without_upgrade(number, url.clone(), tls.clone()))
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let row = row("no upgrade", "wss", &world, before, lives)?;
    world.stop().await?;
    Ok(row)
}

/// After the upgrade or QUIC's handshake, no hello.
async fn no_hello(transport: &'static str, connections: u32) -> anyhow::Result<Row> {
    let world = World::new(transport).await?;
    world.relink(1).await?;
    let before = world.resident_mib()?;
    let lives = stream::iter(0..connections)
        .map(|number| without_hello(number, &world))
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let row = row("no hello", transport, &world, before, lives)?;
    world.stop().await?;
    Ok(row)
}

/// How long a connection is open; none if it was not made.
type Life = Option<Duration>;

async fn without_upgrade(number: u32, at: String, tls: Arc<rustls::ClientConfig>) -> Life {
    let begun = Instant::now();
    let connect = flood::from(flood::address(number % ADDRESSES));
    let open = async {
        let io: Box<dyn ByteStream> = connect(at).await.ok()?;
        let name = ServerName::try_from("127.0.0.1").ok()?;
        let mut stream = TlsConnector::from(tls).connect(name, io).await.ok()?;
        let mut answer = [0; 64];
        while let Ok(1..) = stream.read(&mut answer).await {}
        Some(())
    };
    timeout(LONGEST, open).await.map_or(Some(LONGEST), |made| made.map(|()| begun.elapsed()))
}

async fn without_hello(number: u32, world: &World) -> Life {
    let begun = Instant::now();
    let network = flood::from(flood::address(number % ADDRESSES)).into();
    let open = async {
        let mut link = world.dial(HOSTILE, &network).await.ok()?;
        closed(&mut link).await;
        Some(())
    };
    timeout(LONGEST, open).await.map_or(Some(LONGEST), |made| made.map(|()| begun.elapsed()))
}

fn row(
    case: &str,
    transport: &'static str,
    world: &World,
    before: u64,
    lives: Vec<Life>,
) -> anyhow::Result<Row> {
    let made = lives.iter().flatten().count();
    let longest = lives.iter().flatten().max().copied().unwrap_or_default();
    let after = world.resident_mib()?;
    let grown = after.saturating_sub(before);
    Ok(Row {
        case: format!("{case}, {} times", lives.len()),
        transport,
        asked: ASKED,
        measured: format!(
            "{:.1} s at most, {made} were let in, {before} -> {after} MiB",
            longest.as_secs_f64()
        ),
        ok: longest.as_secs_f64() <= 20.0 && made > 0 && grown <= REMAINS,
    })
}
