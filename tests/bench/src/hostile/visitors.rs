//! Strangers attack the port of csi-page, while an honest visitor looks at the page.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use harness::flood::{Flood, Sends};
use harness::stand::Page;
use harness::wait::until;
use http::header::{AUTHORIZATION, HOST};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::frames::flood_with_acks;
use super::meter::Meter;
use super::report::Row;
use super::served::{Served, slack};
use super::world::World;

/// How long each attack lasts.
const TIME: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(5);
/// Between two visits, each over a connection of its own.
const EVERY: Duration = Duration::from_millis(500);
/// A visitor who waits longer goes away.
const PATIENCE: Duration = Duration::from_secs(5);
/// Strangers that flood at a time.
const FLOODERS: usize = 4;
/// Connections that say nothing, of so many addresses.
const SILENT: usize = 1_000;
const ADDRESSES: u32 = 4;
/// The memory that csi-page may have, in MiB.
const MEMORY_MIB: u64 = 64;
/// Who has it may look.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const ASKED: &str = "all visitors get in, honest p99 <= 2 x, log <= 100 KiB, <= 64 MiB";
const SHORT_ASKED: &str =
    "all visitors get in, honest p99 <= 2 x or + 100 ms, log <= 100 KiB, <= 64 MiB";

/// What strangers do at the page's port.
#[derive(Clone, Copy)]
enum Attack {
    /// They acknowledge PINGs that never were.
    Acks,
    /// They say nothing.
    Silence,
}

/// Where the page is.
#[derive(Clone)]
struct Door {
    host: String,
    at: SocketAddr,
    tls: TlsConnector,
}

/// What became of the visits.
struct Visits {
    made: usize,
    shown: usize,
    longest: Duration,
}

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let attacks = [
        (Attack::Acks, format!("{FLOODERS} floods of PING acks at the page's port")),
        (Attack::Silence, format!("{SILENT} silent connections at the page's port")),
    ];
    for (attack, case) in attacks {
        rows.push(measured(attack, case, short).await?);
    }
    Ok(())
}

async fn measured(attack: Attack, case: String, short: bool) -> anyhow::Result<Row> {
    let time = if short { SHORT } else { TIME };
    let mut stand = World::stand().await?;
    stand.log("info");
    let [view, tokens] = [stand.view(), stand.at("tokens")];
    publish(tokens.as_ref(), TOKEN.as_bytes(), 0o600, Existing::Keep)?;
    let mut world = World::on(stand, "wss", &["--store=memory:", "--view", &view]).await?;
    let served = Served::new(&mut world).await?;
    let page = world.stand.page("127.0.0.1:0", &["--tokens", &tokens]).await?;
    let door = Door::of(&world, &page)?;
    until("the page is shown", || door.visit()).await?;
    let quiet = served.load(&world, time / 2).await?;
    let meter = Meter::begin(&page.process)?;
    let tasks = Tasks::default();
    let sent = Arc::new(AtomicU64::new(0));
    let flood = door.attacked(attack, &tasks, &sent).await?;
    let (load, visits) = tokio::join!(served.load(&world, time), door.visits(time));
    let load = load?;
    let used = meter.end()?;
    tasks.stop();
    drop(flood);
    page.process.kill().await?;
    served.stop().await?;
    world.stop().await?;
    let Visits { made, shown, longest } = visits;
    Ok(Row {
        case,
        transport: "https",
        asked: if short { SHORT_ASKED } else { ASKED },
        measured: format!(
            "{shown} of {made} get in, {:.2} s at most, p99 {:.1} -> {:.1} ms, csi-page: {used}",
            longest.as_secs_f64(),
            quiet.p99,
            load.p99
        ),
        ok: made > 0
            && shown == made
            && load.is_near(&quiet, slack(short))
            && used.is_quiet()
            && used.peak <= MEMORY_MIB,
    })
}

impl Door {
    fn of(world: &World, page: &Page) -> anyhow::Result<Self> {
        let host = page.url.strip_prefix("https://").context("no page over TLS")?.to_owned();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(format!("{}/ca.crt", world.stand.pki()))?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let at = host.parse()?;
        Ok(Self { host, at, tls: TlsConnector::from(Arc::new(config)) })
    }

    async fn connect(&self, alpn: &[u8]) -> anyhow::Result<TlsStream<TcpStream>> {
        let mut config = ClientConfig::clone(self.tls.config());
        config.alpn_protocols = vec![alpn.to_vec()];
        let tcp = TcpStream::connect(self.at).await?;
        let name = ServerName::try_from("127.0.0.1")?;
        Ok(TlsConnector::from(Arc::new(config)).connect(name, tcp).await?)
    }

    /// Begins an attack, and returns when it has begun.
    async fn attacked(
        &self,
        attack: Attack,
        tasks: &Tasks,
        sent: &Arc<AtomicU64>,
    ) -> anyhow::Result<Option<Flood>> {
        match attack {
            Attack::Acks => {
                for _ in 0..FLOODERS {
                    tasks.spawn_until_stop("flood", self.clone().flood(sent.clone()));
                }
                until("the flood has begun", || async {
                    ensure!(sent.load(Ordering::Relaxed) > 0, "nothing was sent");
                    Ok(())
                })
                .await?;
                Ok(None)
            }
            Attack::Silence => {
                let each = SILENT / usize::try_from(ADDRESSES)?;
                let flood = Flood::new(self.at, ADDRESSES, each, Sends::Nothing);
                until("as many connections were made", || async {
                    ensure!(flood.made() >= SILENT, "{} of {SILENT}", flood.made());
                    Ok(())
                })
                .await?;
                Ok(Some(flood))
            }
        }
    }

    /// Floods one connection after the other.
    async fn flood(self, sent: Arc<AtomicU64>) {
        loop {
            match self.connect(b"h2").await {
                Ok(io) => flood_with_acks(io, &sent).await,
                Err(_) => sleep(EVERY).await,
            }
        }
    }

    /// Visits the page again and again for so long.
    async fn visits(&self, time: Duration) -> Visits {
        let begun = Instant::now();
        let mut ticks = interval(EVERY);
        let mut visits = Visits { made: 0, shown: 0, longest: Duration::ZERO };
        while begun.elapsed() < time {
            ticks.tick().await;
            let came = Instant::now();
            let visit = timeout(PATIENCE, self.visit()).await;
            visits.made += 1;
            visits.shown += usize::from(matches!(visit, Ok(Ok(()))));
            visits.longest = visits.longest.max(came.elapsed());
        }
        visits
    }

    /// Looks at the page once.
    async fn visit(&self) -> anyhow::Result<()> {
        let io = TokioIo::new(self.connect(b"http/1.1").await?);
        let (mut client, connection) = http1::handshake(io).await?;
        let request = Request::get("/")
            .header(HOST, &self.host)
            .header(AUTHORIZATION, format!("Bearer {TOKEN}"))
            .body(Empty::<Bytes>::new())?;
        let answer = tokio::select! {
            answer = client.send_request(request) => answer?,
            ended = connection => { ended?; bail!("it closed the connection") }
        };
        ensure!(answer.status() == StatusCode::OK, "{}", answer.status());
        Ok(())
    }
}
