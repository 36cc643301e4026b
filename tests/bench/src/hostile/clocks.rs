//! Certificates that end on a live link, and clocks that are a day off. A clock is not set here: a
//! certificate whose validity is a day off looks the same to who checks it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use futures_util::future::try_join_all;
use harness::hostile_cloud::HostileCloud;
use harness::process::Process;
use harness::stand::Stand;
use proto::control::hello::Message;
use proto::host::chain;
use proto::link::tls::{Credentials, Role};
use proto::link::{Event, KeepAlive, Link, dial, ws};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::time::{Instant, timeout};

use super::report::Row;
use super::world::{DRIVER, HOSTILE, TRANSPORTS, World, hello};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// How long a certificate lives on.
const LIFE: Duration = Duration::from_secs(3);
/// How long a link may live longer than its certificate.
const MOST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(80);
/// What each message must have, so that somebody looks at the clock.
const WORD: &str = "clock";
const ENDS: &str = "closed <= 60 s, told that it may be the clock";
const OFF: &str = "refused, both sides told that it may be the clock";

pub(super) async fn run(rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let ends = TRANSPORTS.map(|transport| async move {
        tokio::try_join!(ends_at_cloud(transport), ends_at_edge(transport))
    });
    for (at_cloud, at_edge) in try_join_all(ends).await? {
        rows.extend([at_cloud, at_edge]);
    }
    for off in [Off::Ahead, Off::Behind] {
        for transport in TRANSPORTS {
            rows.push(off_at_cloud(transport, off).await?);
            rows.push(off_at_edge(transport, off).await?);
        }
    }
    Ok(())
}

/// How a clock is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Off {
    Ahead,
    Behind,
}

impl Off {
    /// When the validity of a certificate begins and ends that looks so.
    fn validity(self) -> (SystemTime, SystemTime) {
        let now = SystemTime::now();
        match self {
            Self::Ahead => (now - 2 * DAY, now - DAY),
            Self::Behind => (now + DAY, now + 2 * DAY),
        }
    }
}

/// A certificate that is valid for a few seconds more.
fn ending() -> (SystemTime, SystemTime) {
    let now = SystemTime::now();
    (now - DAY, now + LIFE)
}

/// How long something lived on after its certificate had ended.
///
/// # Errors
/// It ended while the certificate was valid. The time in a certificate has whole seconds.
fn after_life(lived: Duration, why: &str) -> anyhow::Result<Duration> {
    ensure!(lived + 2 * SECOND >= LIFE, "the certificate had not ended after {lived:?}: {why}");
    Ok(lived.saturating_sub(LIFE))
}

/// A certificate of the world's CA for this end of links.
fn issue(
    world: &Stand,
    role: Role,
    (from, to): (SystemTime, SystemTime),
) -> anyhow::Result<Credentials> {
    let pki = PathBuf::from(world.pki());
    let ca = std::fs::read_to_string(pki.join("ca.crt"))?;
    let ca_key = KeyPair::from_pem(&std::fs::read_to_string(pki.join("ca.key"))?)?;
    let issuer = Issuer::from_ca_cert_pem(&ca, ca_key)?;
    let mut params = CertificateParams::default();
    let (name, usage) = match role {
        Role::Cloud => {
            (SanType::IpAddress(Ipv4Addr::LOCALHOST.into()), ExtendedKeyUsagePurpose::ServerAuth)
        }
        _ => {
            let uri = format!("edge-csi://node/{HOSTILE}");
            (SanType::URI(uri.try_into()?), ExtendedKeyUsagePurpose::ClientAuth)
        }
    };
    params.subject_alt_names = vec![name];
    params.extended_key_usages = vec![usage];
    params.not_before = from.into();
    params.not_after = to.into();
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let ca = CertificateDer::from_pem_slice(ca.as_bytes())?;
    Ok(Credentials::made(ca, certificate.der().clone(), key)?)
}

/// Links to csi-cloud with such a certificate, and returns why the link is not there any more.
async fn told(world: &World, credentials: &Credentials) -> anyhow::Result<String> {
    let endpoint = world.url().parse()?;
    let tcp = ws::tcp();
    let dialing = dial(&endpoint, credentials, KeepAlive::default(), &tcp);
    let mut link = match dialing.await {
        Ok(link) => link,
        Err(error) => return Ok(chain(&error)),
    };
    if let Err(error) = link.send(&Message::Hello(hello(HOSTILE, Vec::new())?)).await {
        return Ok(chain(&error));
    }
    Ok(ended(&mut link).await)
}

/// Waits for the end of a link, and returns why it ended.
async fn ended(link: &mut Link) -> String {
    let end = async {
        loop {
            match link.next().await {
                Event::Message(Message::Refused(refused)) => return refused.reason,
                Event::Closed(error) => return chain(&error),
                Event::Message(_) | Event::Opened(..) => {}
            }
        }
    };
    timeout(LONGEST, end).await.unwrap_or_else(|_| "it is not closed".into())
}

fn row(case: String, transport: &'static str, elapsed: Duration, told: &[&str], ends: bool) -> Row {
    let silent: Vec<_> = told.iter().filter(|told| !told.contains(WORD)).collect();
    let silent = if silent.is_empty() { String::new() } else { format!(", but {silent:?}") };
    let seconds = elapsed.as_secs_f64();
    Row {
        case,
        transport,
        asked: if ends { ENDS } else { OFF },
        ok: silent.is_empty() && elapsed <= MOST,
        measured: format!("after {seconds:.1} s, \"check both clocks\"{silent}"),
    }
}

/// An edge's certificate ends while its link to csi-cloud is there.
async fn ends_at_cloud(transport: &'static str) -> anyhow::Result<Row> {
    let world = World::new(transport).await?;
    let credentials = issue(&world.stand, Role::Node, ending())?;
    let begun = Instant::now();
    let why = told(&world, &credentials).await?;
    let elapsed = after_life(begun.elapsed(), &why)?;
    world.stop().await?;
    Ok(row("the certificate of an edge ends".into(), transport, elapsed, &[&why], true))
}

/// The certificate of a cloud ends while csi-edge has a link to it.
async fn ends_at_edge(transport: &'static str) -> anyhow::Result<Row> {
    let mut stand = World::stand().await?;
    let credentials = issue(&stand, Role::Cloud, ending())?;
    let begun = Instant::now();
    let (cloud, url) = HostileCloud::with(&credentials, transport).await?;
    let driver = stand.at("no-driver.sock");
    let edge = stand.edge_with("ends", &[(DRIVER, &driver)], &["--cloud", &url]).await?;
    let why = ended(&mut cloud.welcome().await?).await;
    let elapsed = after_life(begun.elapsed(), &why)?;
    edge.kill().await?;
    Ok(row("the certificate of a cloud ends".into(), transport, elapsed, &[&why], true))
}

/// csi-cloud's clock is a day off, as it looks to csi-cloud.
async fn off_at_cloud(transport: &'static str, off: Off) -> anyhow::Result<Row> {
    let mut stand = World::stand().await?;
    stand.log("info");
    let world = World::on(stand, transport, &["--store=memory:"]).await?;
    let credentials = issue(&world.stand, Role::Node, off.validity())?;
    let begun = Instant::now();
    let why = told(&world, &credentials).await?;
    let elapsed = begun.elapsed();
    let log = logged(&world.cloud.process).await;
    world.stop().await?;
    Ok(row(format!("csi-cloud's clock a day {off:?}"), transport, elapsed, &[&why, &log], false))
}

/// csi-edge's clock is a day off, as it looks to csi-edge.
async fn off_at_edge(transport: &'static str, off: Off) -> anyhow::Result<Row> {
    let mut stand = World::stand().await?;
    stand.log("info");
    let credentials = issue(&stand, Role::Cloud, off.validity())?;
    let (cloud, url) = HostileCloud::with(&credentials, transport).await?;
    let begun = Instant::now();
    let driver = stand.at("no-driver.sock");
    let edge = stand.edge_with("off", &[(DRIVER, &driver)], &["--cloud", &url]).await?;
    let refused = cloud.accept().await.err().map(|error| format!("{error:#}"));
    let refused = refused.unwrap_or_else(|| "it has linked".into());
    let elapsed = begun.elapsed();
    let log = logged(&edge).await;
    edge.kill().await?;
    Ok(row(format!("csi-edge's clock a day {off:?}"), transport, elapsed, &[&refused, &log], false))
}

/// The end of a log, once it says something of the clock.
async fn logged(process: &Process) -> String {
    match process.logged(WORD).await {
        Ok(()) => WORD.into(),
        Err(error) => format!("{error:#}"),
    }
}
