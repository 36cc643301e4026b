//! A real etcd of one member, on free ports, with its data in a temporary directory.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use crate::etcd::client::Client;
use crate::etcd::request;
use crate::etcd::settings::EtcdSettings;
use crate::state::store::etcd_at::EtcdAt;

/// Debian's program.
const PROGRAM: &str = "/usr/bin/etcd";
/// Where its ports are.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// How long it may take to answer.
const START: Duration = Duration::from_secs(30);

/// A running etcd. It ends when it is dropped.
pub(crate) struct EtcdServer {
    dir: tempfile::TempDir,
    child: Child,
    scheme: &'static str,
    client: u16,
    peer: u16,
}

impl EtcdServer {
    /// Starts one; none if it is not installed, which must not be so in CI.
    pub(crate) fn start(options: &[&str]) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            // Not println!: the test harness would keep that to itself.
            let _ = writeln!(std::io::stderr(), "tier skipped: a real etcd: it is not installed");
            let may = std::env::var("CI").as_deref() != Ok("true")
                || std::env::var_os("WITHOUT_KUBERNETES").is_some();
            assert!(may, "no tier may be skipped in CI but as .ci/run says");
            return None;
        }
        Some(Self::over("http", options))
    }

    /// Starts one with TLS.
    pub(crate) fn start_secured(options: &[&str]) -> Option<Self> {
        Self::start(&[]).map(|_| Self::over("https", options))
    }

    fn over(scheme: &'static str, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let client = free_port();
        let peer = free_port();
        let child = spawn(dir.path(), (scheme, client, peer), options);
        Self { dir, child, scheme, client, peer }
    }

    /// Ends it and starts it again with these options, with its data and ports.
    pub(crate) fn restart(&mut self, options: &[&str]) {
        self.stop();
        self.child = spawn(self.dir.path(), (self.scheme, self.client, self.peer), options);
    }

    /// Ends it.
    pub(crate) fn stop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// A store below this prefix.
    pub(crate) fn at(&self, prefix: &str) -> EtcdAt {
        format!("etcd://127.0.0.1:{}/{prefix}", self.client).parse().unwrap()
    }

    /// A client of it.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.at("x").hosts, &EtcdSettings::default()).unwrap()
    }

    /// A channel to it, for requests that csi-cloud never makes.
    pub(crate) fn channel(&self) -> Channel {
        let url = format!("http://{}", self.at("x").hosts[0]);
        Endpoint::from_shared(url).unwrap().connect_lazy()
    }

    /// Waits until it answers.
    pub(crate) async fn ready(&self) {
        let answers = async {
            while self.client().range(request::get(b"x")).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(START, answers).await.expect("etcd does not answer");
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A port below those that the system gives to connections. A client that dials before etcd listens
/// would be given such a one, and be connected to itself.
fn free_port() -> u16 {
    let ports = std::iter::repeat_with(|| rand::random_range(PORTS)).take(100);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.into_iter().find(is_free).unwrap()
}

fn spawn(dir: &Path, at: (&str, u16, u16), options: &[&str]) -> Child {
    let (scheme, client, peer) = at;
    let client = format!("{scheme}://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    Command::new(PROGRAM)
        .arg("--data-dir")
        .arg(dir.join("data"))
        .args(["--name", "m", "--initial-cluster", &format!("m={peer}")])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--log-level", "error"])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
