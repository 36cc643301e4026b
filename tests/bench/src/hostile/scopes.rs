//! Edges that change all the time what csi-cloud tells all edges.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use cloud::pki::ca::CertificateAuthority;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use proto::control::hello::Message;
use proto::link::tls::Credentials;
use proto::link::{Event, KeepAlive, Link, dial, ws};
use proto::names::NodeName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::time::{Instant, interval, timeout_at};

use super::report::Row;
use super::world::{DRIVER, TRANSPORTS, World, driver, hello, welcomed};

/// Honest links.
const LINKS: usize = 2_000;
const SHORT: usize = 50;
/// Edges that change their drivers, each this often: 1,000 a second in all.
const CHANGING: usize = 55;
const EVERY: Duration = Duration::from_millis(55);
/// How long they do.
const TIME: Duration = Duration::from_secs(8);
/// Dials at a time.
const AT_ONCE: usize = 64;
const ASKED: &str = "<= 1 message/s for a link";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let links = if short { SHORT } else { LINKS };
    if short {
        // So few links use little of a core.
        rows.extend(try_join_all(TRANSPORTS.map(|transport| changed(transport, links))).await?);
        return Ok(());
    }
    for transport in TRANSPORTS {
        rows.push(changed(transport, links).await?);
    }
    Ok(())
}

async fn changed(transport: &'static str, links: usize) -> anyhow::Result<Row> {
    let world = World::new(transport).await?;
    let edges = Edges::of(&world)?;
    let dialing = stream::iter(0..links + CHANGING).map(|number| edges.link(number));
    let mut all: Vec<Link> = dialing.buffered(AT_ONCE).try_collect().await?;
    let changing = all.split_off(links);
    let end = Instant::now() + TIME;
    let hearing = try_join_all(all.into_iter().map(|link| hear(link, end)));
    let told = Arc::<AtomicU64>::default();
    let telling = changing.into_iter().map(|link| change(link, end, told.clone()));
    let (heard, _) = tokio::try_join!(hearing, try_join_all(telling))?;
    world.stop().await?;
    let most = heard.into_iter().max().unwrap_or_default();
    let told = told.load(Ordering::Relaxed);
    let seconds = TIME.as_secs();
    Ok(Row {
        case: format!("{told} changes in {seconds} s, {links} links"),
        transport,
        asked: ASKED,
        measured: format!("{most} messages at most in {seconds} s"),
        ok: most <= seconds + 1 && told > 0,
    })
}

/// Counts the messages until `end`.
async fn hear(mut link: Link, end: Instant) -> anyhow::Result<u64> {
    let mut messages = 0;
    while let Ok(event) = timeout_at(end, link.next()).await {
        match event {
            Event::Message(_) => messages += 1,
            Event::Closed(error) => return Err(error.into()),
            Event::Opened(..) => {}
        }
    }
    Ok(messages)
}

/// Tells other drivers again and again, and counts how often.
pub(super) async fn change(
    mut link: Link,
    end: Instant,
    counted: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let mut ticks = interval(EVERY);
    let mut told = 0;
    while Instant::now() < end {
        tokio::select! {
            _ = ticks.tick() => {
                link.send(&Message::Drivers(vec![driver(DRIVER, told % 2 == 0)?])).await?;
                told += 1;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            event = link.next() => if let Event::Closed(error) = event {
                return Err(error.into());
            },
        }
    }
    Ok(())
}

/// Edges with certificates of their own.
struct Edges {
    authority: CertificateAuthority,
    ca: CertificateDer<'static>,
    url: String,
}

impl Edges {
    fn of(world: &World) -> anyhow::Result<Self> {
        let pki = PathBuf::from(world.stand.pki());
        let ca = CertificateDer::from_pem_file(pki.join("ca.crt"))?;
        Ok(Self { authority: CertificateAuthority::open(&pki)?, ca, url: world.url().to_owned() })
    }

    async fn link(&self, number: usize) -> anyhow::Result<Link> {
        let name = format!("edge-{number}");
        let node: NodeName = name.parse()?;
        let (certificate, key) = self.authority.node(&node, 1)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let credentials = Credentials::made(self.ca.clone(), certificate.der().clone(), key)?;
        let endpoint = self.url.parse()?;
        let dialing = dial(&endpoint, &credentials, KeepAlive::default(), &ws::tcp()).await;
        let mut link = dialing.with_context(|| format!("{name} does not link"))?;
        link.send(&Message::Hello(hello(&name, Vec::new())?)).await?;
        welcomed(&mut link).await?;
        Ok(link)
    }
}
