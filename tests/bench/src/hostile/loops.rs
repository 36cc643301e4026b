//! Peers that do again and again what csi-cloud logs, or what costs them nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use harness::process::Process;
use proto::control::hello::Message;
use proto::host::tasks::Tasks;
use proto::link::endpoint::Endpoint;
use proto::link::tls::{Credentials, client_config};
use proto::link::{KeepAlive, dial, ws};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::report::Row;
use super::served::Served;
use super::world::{HOSTILE, PATIENCE, World, hello, welcomed};

/// How long each attack lasts.
const TIME: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(10);
/// What an attack may write into the log in this time, in KiB.
const LOG_KIB: usize = 100;
/// The memory that csi-cloud may have, in MiB.
const MEMORY_MIB: u64 = 128;
/// What callers of a debug build may wait longer, in ms: other programs use the machine too.
const SHORT_MORE: f64 = 100.0;
/// Attackers at a time.
const ATTACKERS: usize = 4;
/// Until an attack has begun.
const EVERY: Duration = Duration::from_millis(50);
const ASKED: &str = "log <= 100 KiB, honest p99 <= 2 x, <= 128 MiB";
const SHORT_ASKED: &str = "log <= 100 KiB, honest p99 <= 2 x or + 100 ms, <= 128 MiB";

/// An empty frame that continues a message, and one that begins it. RFC 6455, 5.2.
const CONTINUED: [u8; 6] = [0x00, 0x80, 0, 0, 0, 0];
const BEGUN: [u8; 6] = [0x02, 0x80, 0, 0, 0, 0];

#[derive(Clone, Copy)]
enum Attack {
    /// Connections that send no TLS.
    Junk,
    /// One node that links and leaves.
    Links,
    /// Fragments of one WebSocket message.
    Fragments,
}

/// What an attacker has.
#[derive(Clone)]
struct Attacker {
    at: SocketAddr,
    url: Endpoint,
    credentials: Arc<Credentials>,
    tls: Arc<rustls::ClientConfig>,
    done: Arc<AtomicU64>,
}

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let attacks = [
        (Attack::Junk, "junk at the main port"),
        (Attack::Links, "one node links and leaves"),
        (Attack::Fragments, "fragments of a WebSocket message"),
    ];
    for (attack, case) in attacks {
        rows.push(measured(attack, case, short).await.context(case)?);
    }
    Ok(())
}

async fn measured(attack: Attack, case: &str, short: bool) -> anyhow::Result<Row> {
    let mut stand = World::stand().await?;
    // The log is what is measured.
    stand.log("info");
    let mut world = World::on(stand, "wss", &["--store=memory:"]).await?;
    let served = Served::new(&mut world).await?;
    let time = if short { SHORT } else { TIME };
    let quiet = served.load(&world, time / 2).await?;
    let before = logged(&world.cloud.process);
    let credentials = world.credentials(HOSTILE)?;
    let attacker = Attacker {
        at: world.addr()?,
        url: world.url().parse()?,
        tls: client_config(&credentials, ws::ALPN)?,
        credentials: Arc::new(credentials),
        done: Arc::default(),
    };
    let tasks = Tasks::default();
    for _ in 0..ATTACKERS {
        tasks.spawn_until_stop("attack", attacker.clone().attack(attack));
    }
    let begun = timeout(PATIENCE, async {
        while attacker.done.load(Ordering::Relaxed) == 0 {
            sleep(EVERY).await;
        }
    });
    begun.await.context("the attack does not begin")?;
    let load = served.load(&world, time).await;
    tasks.stop();
    let load = load?;
    let log = logged(&world.cloud.process).saturating_sub(before);
    let peak = world.peak_mib()?;
    let done = attacker.done.load(Ordering::Relaxed);
    served.stop().await?;
    world.stop().await?;
    let is_near = load.is_near(&quiet, if short { SHORT_MORE } else { 0.0 });
    Ok(Row {
        case: case.into(),
        transport: "wss",
        asked: if short { SHORT_ASKED } else { ASKED },
        measured: format!(
            "log {:.1} KiB in {} s, p99 {:.1} -> {:.1} ms, {:.0} -> {:.0} % of a core, {peak} MiB, \
             {done} times",
            log as f64 / 1024.0,
            time.as_secs(),
            quiet.p99,
            load.p99,
            quiet.cores * 100.0,
            load.cores * 100.0
        ),
        ok: log <= LOG_KIB * 1024 && is_near && peak <= MEMORY_MIB,
    })
}

/// The bytes of a program's log.
fn logged(process: &Process) -> usize {
    process.log().len()
}

impl Attacker {
    /// Attacks without end.
    async fn attack(self, attack: Attack) {
        loop {
            let done = match attack {
                Attack::Junk => self.junk().await,
                Attack::Links => self.link().await,
                Attack::Fragments => self.fragments().await,
            };
            match done {
                Ok(()) => {}
                // It was refused, which is the right answer.
                Err(_) => tokio::task::yield_now().await,
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn junk(&self) -> anyhow::Result<()> {
        let mut tcp = TcpStream::connect(self.at).await?;
        tcp.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let mut answer = Vec::new();
        tcp.read_to_end(&mut answer).await?;
        Ok(())
    }

    async fn link(&self) -> anyhow::Result<()> {
        let connect = ws::tcp();
        let dialed = dial(&self.url, &self.credentials, KeepAlive::default(), &connect);
        let mut link = timeout(PATIENCE, dialed).await??;
        link.send(&Message::Hello(hello(HOSTILE, Vec::new())?)).await?;
        welcomed(&mut link).await?;
        link.close("again").await;
        Ok(())
    }

    /// Sends fragments until the connection ends.
    async fn fragments(&self) -> anyhow::Result<()> {
        let tcp = TcpStream::connect(self.at).await?;
        let name = ServerName::try_from("127.0.0.1")?;
        let mut tls = TlsConnector::from(self.tls.clone()).connect(name, tcp).await?;
        let upgrade = "GET /link HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\
            Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        tls.write_all(upgrade.as_bytes()).await?;
        tls.write_all(&BEGUN).await?;
        let fragments = CONTINUED.repeat(2_000);
        loop {
            tls.write_all(&fragments).await?;
        }
    }
}
