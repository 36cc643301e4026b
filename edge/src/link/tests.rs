//! What an outage costs: an hour of simulated time without a cloud, or without one that leads.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use edge_calls::drivers;
use edge_calls::drivers::Drivers;
use edge_calls::executor::Executor;
use parking_lot::Mutex;
use proto::control::hello::{Message, PROTOCOL, Refused, Run};
use proto::host::tasks::Tasks;
use proto::link::addresses::Addresses;
use proto::link::tls::{self, Credentials, Role};
use proto::link::{Connect, Event, Io, KeepAlive, Link, NodeNetwork, ws};
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::io::{InspectReader, InspectWriter};

use super::dial::Dial;
use crate::identity::test_ca::Ca;

const HOUR: Duration = Duration::from_secs(3600);
/// What an hour of an outage may write to the log, in bytes.
const LOG_BYTES: usize = 100_000;
/// What an hour of an outage may send and receive, in bytes of IP packets.
const WIRE_BYTES: usize = 1_500_000;
/// The packets of a dial that is swallowed: a SYN and three more within its 8 s, and a question for
/// the name.
const TCP_BYTES: usize = 4 * 60 + 2 * 150;
/// The datagrams of a handshake that is swallowed for 10 s, as counted by `proto/tests/link.rs`,
/// and a question for the name.
const QUIC_BYTES: usize = 9_000 + 2 * 150;
/// The most of a TCP stream in one packet, in bytes.
const PACKET_BYTES: usize = 1_400;
/// The heads of a packet of IP and TCP, with the time stamps.
const HEAD_BYTES: usize = 52;

/// The times of dials, by endpoint.
#[derive(Clone, Default)]
struct Dials(Arc<Mutex<BTreeMap<String, Vec<Instant>>>>);

impl Dials {
    fn add(&self, at: &str) {
        self.0.lock().entry(at.to_owned()).or_default().push(Instant::now());
    }

    /// The dials of an endpoint since then.
    fn since(&self, at: &str, begun: Instant) -> usize {
        self.0.lock().get(at).map_or(0, |all| all.iter().filter(|time| **time >= begun).count())
    }

    /// A network that swallows what is dialed over TCP. What is dialed over QUIC has no address,
    /// because a simulated hour has no UDP.
    fn network(&self) -> NodeNetwork {
        let (tcp, udp) = (self.clone(), self.clone());
        let connect: Connect = Arc::new(move |at| {
            tcp.add(&at);
            Box::pin(async {
                sleep(Duration::from_secs(8)).await;
                Err(io::ErrorKind::TimedOut.into())
            })
        });
        NodeNetwork::from(connect).with_addresses(Addresses::new(Arc::new(move |at| {
            udp.add(&at);
            Box::pin(async {
                sleep(Duration::from_secs(10)).await;
                Err(io::ErrorKind::NotFound.into())
            })
        })))
    }
}

/// A node's dial of these endpoints, with a small fleet's cap.
fn dial(cloud: &[&str], network: NodeNetwork) -> Dial {
    dial_by(&Ca::new(), cloud, network)
}

/// The same with an identity of this CA.
fn dial_by(ca: &Ca, cloud: &[&str], network: NodeNetwork) -> Dial {
    let dir = tempfile::tempdir().unwrap();
    let files = ca.identity(dir.path(), 10).files();
    let credentials = Credentials::load(&files, Role::Node).unwrap();
    let node = credentials.node().unwrap();
    let drivers = Arc::new(Drivers::new(node.clone(), drivers::unix()));
    Dial {
        cloud: cloud.iter().map(|url| url.parse().unwrap()).collect(),
        return_after: Duration::from_secs(30),
        credentials,
        identity: None,
        node,
        executor: Arc::new(Executor::new(drivers.clone(), Tasks::default())),
        drivers,
        scopes: Arc::default(),
        leases: Arc::default(),
        metadata: Arc::default(),
        not_taken: watch::channel(None).1,
        expands: false,
        linked: watch::Sender::default(),
        keep_alive: KeepAlive::default(),
        network,
        answers_challenge: true,
        run: Run::begin(),
        machine: None,
    }
}

/// What was written to the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_hour_without_the_cloud_or_a_leader_costs_little_log_and_little_traffic() {
    let dials = Dials::default();
    let cloud =
        ["quic://a.example:1", "wss://a.example:2", "wss://b.example:2", "quic://b.example:1"];
    let dial = dial(&cloud, dials.network());
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let tasks = Tasks::default();
    let begun = Instant::now();
    tasks.spawn("dial", dial.keep(rand::make_rng(), tasks.clone()));
    sleep(Duration::from_secs(300)).await;
    let quick = dials.since("a.example:2", begun);
    // A dial takes 8 s here, and its delay 30 s at most.
    assert!(quick >= 8, "{quick} dials in the first five minutes");
    sleep(Duration::from_secs(60)).await;
    let (begun, before) = (Instant::now(), log.0.lock().len());
    sleep(HOUR).await;
    let [quic, tcp, other_tcp, other_quic] =
        ["a.example:1", "a.example:2", "b.example:2", "b.example:1"]
            .map(|at| dials.since(at, begun));
    let text = String::from_utf8(log.0.lock().split_off(before)).unwrap();
    tasks.stop();
    assert!((60..=130).contains(&tcp) && tcp.abs_diff(other_tcp) <= 1, "{tcp} and {other_tcp}");
    assert!(quic.abs_diff(other_quic) <= 1 && (quic + other_quic).abs_diff(tcp) <= 1, "in turn");
    let wire = (tcp + other_tcp) * TCP_BYTES + (quic + other_quic) * QUIC_BYTES;
    assert!(wire <= WIRE_BYTES, "{wire} bytes on the wire");
    assert!(text.len() <= LOG_BYTES / 4, "{} bytes of log", text.len());
    let lines = text.lines().count();
    assert!((30..=61).contains(&lines), "{lines} lines:\n{text}");
    hour_without_a_leader().await;
    println!("an hour: {lines} lines, {} bytes of log, {tcp} rounds, {wire} bytes", text.len());
}

/// Counts what was sent at once, with the heads of its packets and their acknowledgement.
fn count(sent: &[u8], bytes: &AtomicUsize) {
    let packets = sent.len().div_ceil(PACKET_BYTES);
    bytes.fetch_add(sent.len() + packets * 2 * HEAD_BYTES, Ordering::Relaxed);
}

/// Takes one link as a csi-cloud that follows and knows no leader.
async fn follow(acceptor: ws::Acceptor, io: DuplexStream) -> Option<()> {
    let greeted = acceptor.greet(Box::new(io)).await.ok()?;
    let (_, link) = acceptor.accept(greeted).await.ok()?.link()?;
    let mut link = Link::from(link);
    let Event::Message(Message::Hello(_)) = link.next().await else { return None };
    sleep(Duration::from_secs(5)).await;
    let (reason, leader) = ("no csi-cloud leads".into(), Some(Vec::new()));
    link.send(&Message::Refused(Refused { protocol: PROTOCOL, reason, leader })).await.ok()?;
    link.close("").await;
    Some(())
}

/// A network of csi-clouds that follow and know no leader; each waits for one as csi-cloud does.
/// The bytes of its packets are counted.
fn followers(ca: &Ca, dials: &Dials, bytes: &Arc<AtomicUsize>, tasks: &Tasks) -> NodeNetwork {
    let tls = tls::server_config(&ca.cloud(), ws::ALPN).unwrap();
    let acceptor = ws::Acceptor::new(tls, KeepAlive::default());
    let (dials, bytes, tasks) = (dials.clone(), bytes.clone(), tasks.clone());
    let connect: Connect = Arc::new(move |at| {
        dials.add(&at);
        // Three packets make a connection, and four end it.
        bytes.fetch_add(7 * HEAD_BYTES, Ordering::Relaxed);
        let (near, far) = tokio::io::duplex(64 * 1024);
        let acceptor = acceptor.clone();
        tasks.spawn("follower", async move {
            let _ = follow(acceptor, far).await;
        });
        let (sent, received) = (bytes.clone(), bytes.clone());
        let near = InspectWriter::new(near, move |bytes: &[u8]| count(bytes, &sent));
        let near = InspectReader::new(near, move |bytes: &[u8]| count(bytes, &received));
        Box::pin(async move { Ok(Box::new(near) as Io) })
    });
    connect.into()
}

/// An hour without a leader. It shares the limits of the log with the hour before, so it is part
/// of that test.
async fn hour_without_a_leader() {
    let (ca, dials, bytes) = (Ca::new(), Dials::default(), Arc::<AtomicUsize>::default());
    let cloud = ["wss://localhost:1", "wss://localhost:2", "wss://localhost:3"];
    let tasks = Tasks::default();
    let dial = dial_by(&ca, &cloud, followers(&ca, &dials, &bytes, &tasks));
    tasks.spawn("dial", dial.keep(rand::make_rng(), tasks.clone()));
    sleep(Duration::from_secs(360)).await;
    let begun = Instant::now();
    bytes.store(0, Ordering::Relaxed);
    sleep(HOUR).await;
    tasks.stop();
    let bytes = bytes.load(Ordering::Relaxed);
    let asked = ["localhost:1", "localhost:2", "localhost:3"].map(|at| dials.since(at, begun));
    println!("an hour of followers: {asked:?} dials, {bytes} bytes");
    assert!(bytes <= WIRE_BYTES, "{bytes} bytes on the wire, {asked:?} dials");
    assert!(asked.iter().all(|dials| (60..=130).contains(dials)), "{asked:?}");
}
