//! Peers that do again and again what csi-cloud logs, or what costs them nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use proto::control::base64::Base64;
use proto::control::certificate::Renew;
use proto::control::hello::{Hello, Message};
use proto::control::join::{Answer, Join, Token};
use proto::host::tasks::Tasks;
use proto::link::endpoint::Endpoint;
use proto::link::tls::{Credentials, Files, Pin, Role, client_config};
use proto::link::ws::join;
use proto::link::{Event, KeepAlive, Link, dial, ws};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::harm::Watch;
use super::report::Row;
use super::served::Served;
use super::threads::Threads;
use super::tokens::guess;
use super::world::{HOSTILE, PATIENCE, World, hello, welcomed};

/// How long each attack lasts.
const TIME: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(10);
/// Attackers at a time.
const ATTACKERS: usize = 4;
/// Until an attack has begun.
const EVERY: Duration = Duration::from_millis(50);
/// Where the certificates of a node are that joined twice, the older one first.
const JOINED: [&str; 2] = ["older", "newer"];

const ASKED: &str = "log <= 100 KiB, honest p99 <= 2 x, <= 128 MiB, nothing got";
const SHORT_ASKED: &str = "log <= 100 KiB, honest p99 <= 2 x or + 100 ms, <= 128 MiB, nothing got";

/// An empty frame that continues a message, and one that begins it. RFC 6455, 5.2.
const CONTINUED: [u8; 6] = [0x00, 0x80, 0, 0, 0, 0];
const BEGUN: [u8; 6] = [0x02, 0x80, 0, 0, 0, 0];

#[derive(Clone, Copy)]
enum Attack {
    /// Connections that send no TLS.
    Junk,
    /// Copies of one certificate, each with its own csi-edge, that link and leave.
    Links,
    /// A node's older certificate, which would be renewed.
    Renewals,
    /// Fragments of one WebSocket message.
    Fragments,
    /// Tokens that nobody made.
    Tokens,
}

/// What an attacker has.
#[derive(Clone)]
struct Attacker {
    at: SocketAddr,
    url: Endpoint,
    credentials: Arc<Credentials>,
    tls: Arc<rustls::ClientConfig>,
    ca: Pin,
    /// One that nobody made.
    token: Token,
    done: Arc<AtomicU64>,
    /// What it got that nobody may have.
    got: Arc<AtomicU64>,
}

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let attacks = [
        (Attack::Junk, "junk at the main port"),
        (Attack::Links, "4 csi-edges of one certificate link and leave"),
        (Attack::Renewals, "an older certificate of a node is renewed"),
        (Attack::Fragments, "fragments of a WebSocket message"),
        (Attack::Tokens, "joins with wrong tokens"),
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
    let config = stand.issuing("")?;
    let more = ["--store=memory:", "--config", &config];
    let mut world = World::on(stand, "wss", &more).await?;
    let served = Served::new(&mut world).await?;
    let time = if short { SHORT } else { TIME };
    let credentials = match attack {
        Attack::Renewals => older_certificate(&world).await?,
        _ => world.credentials(HOSTILE)?,
    };
    let command = world.admin(&["token", "create", HOSTILE, "--cloud", world.url()]).await?;
    let attacker = Attacker {
        at: world.addr()?,
        url: world.url().parse()?,
        tls: client_config(&credentials, ws::ALPN)?,
        ca: Pin::of(&CertificateDer::from_pem_file(format!("{}/ca.crt", world.stand.pki()))?),
        token: Token::new(&guess(&command)?),
        credentials: Arc::new(credentials),
        done: Arc::default(),
        got: Arc::default(),
    };
    let watch = Watch::begin(&world, &served, time).await?;
    let tasks = Tasks::default();
    let threads = Threads::start()?;
    for _ in 0..ATTACKERS {
        threads.spawn(&tasks, attacker.clone().attack(attack));
    }
    let begun = timeout(PATIENCE, async {
        while attacker.done.load(Ordering::Relaxed) == 0 {
            sleep(EVERY).await;
        }
    });
    begun.await.context("the attack does not begin")?;
    let harm = watch.end().await;
    tasks.stop();
    let harm = harm?;
    let [done, got] = [&attacker.done, &attacker.got].map(|count| count.load(Ordering::Relaxed));
    served.stop().await?;
    world.stop().await?;
    Ok(Row {
        case: case.into(),
        transport: "wss",
        asked: if short { SHORT_ASKED } else { ASKED },
        measured: format!("{harm}, {done} times, {got} got"),
        ok: harm.is_small(short) && got == 0,
    })
}

/// A request for a certificate of a new key.
fn request() -> anyhow::Result<Base64> {
    let csr = CertificateParams::default().serialize_request(&KeyPair::generate()?)?;
    Ok(Base64(csr.der().to_vec().into()))
}

/// A certificate of a node that has linked with a newer one since.
async fn older_certificate(world: &World) -> anyhow::Result<Credentials> {
    let mut joined = Vec::new();
    for name in JOINED {
        let command = world.admin(&["token", "create", HOSTILE, "--cloud", world.url()]).await?;
        world.stand.join(command.trim(), name).await?;
        let files = Files::identity(Path::new(&world.stand.at(name)));
        joined.push(Credentials::load(&files, Role::Node)?);
    }
    let newer = joined.pop().context("it joined once")?;
    let mut link = dial(&world.url().parse()?, &newer, KeepAlive::default(), &ws::tcp()).await?;
    let hello = Hello { certificate_on_disk: true, ..hello(HOSTILE, Vec::new())? };
    link.send(&Message::Hello(hello)).await?;
    welcomed(&mut link).await?;
    link.close("it has linked").await;
    joined.pop().context("it joined once")
}

impl Attacker {
    /// Attacks without end.
    async fn attack(self, attack: Attack) {
        loop {
            let done = match attack {
                Attack::Junk => self.junk().await,
                Attack::Links => self.link().await,
                Attack::Renewals => self.renewal().await,
                Attack::Fragments => self.fragments().await,
                Attack::Tokens => self.join().await,
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

    async fn dial(&self) -> anyhow::Result<Link> {
        let connect = ws::tcp();
        let dialed = dial(&self.url, &self.credentials, KeepAlive::default(), &connect);
        Ok(timeout(PATIENCE, dialed).await??)
    }

    /// Asks for a new certificate with another key, before any hello.
    async fn renewal(&self) -> anyhow::Result<()> {
        let mut link = self.dial().await?;
        link.send(&Message::Renew(Renew { csr: request()?, machine: None })).await?;
        match timeout(PATIENCE, link.next()).await? {
            Event::Message(Message::Renewed(_)) => self.got.fetch_add(1, Ordering::Relaxed),
            Event::Message(Message::NotRenewed(_)) => 0,
            _ => bail!("no answer"),
        };
        Ok(())
    }

    /// Asks for a certificate with a token that nobody made.
    async fn join(&self) -> anyhow::Result<()> {
        let question = Join { token: self.token.clone(), csr: request()? };
        let network = ws::tcp();
        let asked = join::ask(&self.url, self.ca, &question, &network);
        if let Answer::Certificate(_) = timeout(PATIENCE, asked).await?? {
            self.got.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn link(&self) -> anyhow::Result<()> {
        let mut link = self.dial().await?;
        link.send(&Message::Hello(hello(HOSTILE, Vec::new())?)).await?;
        welcomed(&mut link).await?;
        link.close("again").await;
        Ok(())
    }

    /// Sends fragments until csi-cloud ends the connection. It does at the first one: what comes
    /// after some more is not sent, as it would only fill the kernel's buffers of this machine.
    async fn fragments(&self) -> anyhow::Result<()> {
        let tcp = TcpStream::connect(self.at).await?;
        let name = ServerName::try_from("127.0.0.1")?;
        let mut tls = TlsConnector::from(self.tls.clone()).connect(name, tcp).await?;
        let upgrade = "GET /link HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\
            Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        tls.write_all(upgrade.as_bytes()).await?;
        tls.write_all(&BEGUN).await?;
        let (mut answers, mut sending) = tokio::io::split(tls);
        let fragments = CONTINUED.repeat(2_000);
        let mut answer = Vec::new();
        let (_, _) = tokio::join!(sending.write_all(&fragments), answers.read_to_end(&mut answer));
        Ok(())
    }
}
