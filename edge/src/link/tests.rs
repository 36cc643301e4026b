//! What an outage costs: an hour of simulated time without a cloud.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use edge_calls::drivers;
use edge_calls::drivers::Drivers;
use edge_calls::executor::Executor;
use parking_lot::Mutex;
use proto::control::hello::Run;
use proto::host::tasks::Tasks;
use proto::link::addresses::Addresses;
use proto::link::tls::{Credentials, Role};
use proto::link::{Connect, KeepAlive, NodeNetwork};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

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
    let dir = tempfile::tempdir().unwrap();
    let files = Ca::new().identity(dir.path(), 10).files();
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
async fn an_hour_without_the_cloud_costs_little_log_and_little_traffic() {
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
    println!("an hour: {lines} lines, {} bytes of log, {tcp} rounds, {wire} bytes", text.len());
}
