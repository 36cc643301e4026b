//! A real etcd of one member or several, on free ports, with its data in a temporary directory.
//!
//! Members reach each other through relays, so that a test cuts the wires between them. Commits are
//! synchronized with the disk, as in life.

use std::path::Path;

use anyhow::{Context, ensure};
use tokio::process::Command;

use crate::http;
use crate::port;
use crate::process::Process;
use crate::relay::Relay;
use crate::tier;
use crate::wait::until;

/// Debian's program.
const PROGRAM: &str = "/usr/bin/etcd";
/// The most bytes that it keeps: enough for a million volumes.
const QUOTA: &str = "8589934592";

/// Whether etcd is installed. If not, this tier is skipped by name.
///
/// # Errors
/// It is not installed, and no tier may be skipped here.
pub fn is_installed(tier: &str) -> anyhow::Result<bool> {
    if Path::new(PROGRAM).exists() {
        return Ok(true);
    }
    tier::skipped(tier, "etcd is not installed", tier::is_without_kubernetes())?;
    Ok(false)
}

/// A running etcd.
pub struct EtcdServer {
    members: Vec<Member>,
    logs: std::path::PathBuf,
    cluster: String,
}

struct Member {
    name: String,
    /// Its ports for clients and for members.
    client: u16,
    peer: u16,
    /// How others reach its port for members.
    wire: Relay,
    process: Option<Process>,
}

impl Member {
    fn peer_url(&self) -> String {
        self.wire.url().replace("tcp://", "http://")
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client)
    }
}

impl EtcdServer {
    /// Starts one of this many members, with its data and logs below `dir`, and waits for it.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn start(dir: &Path, members: usize) -> anyhow::Result<Self> {
        let mut made = Vec::new();
        for number in 0..members {
            let client = port::free()?;
            let peer = port::free()?;
            let wire = Relay::to(&format!("tcp://127.0.0.1:{peer}")).await?;
            let name = format!("etcd{number}");
            made.push(Member { name, client, peer, wire, process: None });
        }
        let all: Vec<_> =
            made.iter().map(|member| format!("{}={}", member.name, member.peer_url())).collect();
        let mut etcd = Self { members: made, logs: dir.to_owned(), cluster: all.join(",") };
        for place in 0..members {
            etcd.run(place)?;
        }
        for place in 0..members {
            etcd.ready(place).await?;
        }
        Ok(etcd)
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Where clients reach each member: `HOST:PORT`.
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(Member::address).collect()
    }

    /// The URL of a store below this prefix.
    pub fn url(&self, prefix: &str) -> String {
        format!("etcd://{}/{prefix}", self.addresses().join(","))
    }

    /// Runs a member that does not run, and does not wait.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run(&mut self, place: usize) -> anyhow::Result<()> {
        let member = self.members.get_mut(place).context("no such member")?;
        let client = format!("http://127.0.0.1:{}", member.client);
        let peer = format!("http://127.0.0.1:{}", member.peer);
        let mut command = Command::new(PROGRAM);
        command.arg("--data-dir").arg(self.logs.join(&member.name));
        command.args(["--name", &member.name, "--initial-cluster", &self.cluster]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer]);
        command.args(["--initial-advertise-peer-urls", &member.peer_url()]);
        command.args(["--log-level", "error", "--quota-backend-bytes", QUOTA]);
        member.process = Some(Process::start(&member.name, command, &self.logs)?);
        Ok(())
    }

    /// Waits until a member answers, and knows a leader.
    ///
    /// # Errors
    /// It does not in time.
    pub async fn ready(&self, place: usize) -> anyhow::Result<()> {
        let member = self.members.get(place).context("no such member")?;
        let healthy = || async {
            let answer = http::get(&member.address(), "/health").await?;
            ensure!(answer.contains(r#""health":"true""#), "{answer}");
            Ok(())
        };
        let ready = until("a member of etcd is ready", healthy).await;
        ready.with_context(|| member.process.as_ref().map(Process::log_tail).unwrap_or_default())
    }

    /// The member that leads, as the members say.
    pub async fn leader(&self) -> Option<usize> {
        for (place, member) in self.members.iter().enumerate() {
            let leads = http::metric(&member.address(), "etcd_server_is_leader").await;
            if leads.is_ok_and(|leads| leads > 0.0) {
                return Some(place);
            }
        }
        None
    }

    /// A member's program.
    ///
    /// # Errors
    /// It does not run.
    pub fn process(&self, place: usize) -> anyhow::Result<&Process> {
        let member = self.members.get(place).context("no such member")?;
        member.process.as_ref().context("it does not run")
    }

    /// Kills a member. Its data stays.
    ///
    /// # Errors
    /// It does not run.
    pub async fn kill(&mut self, place: usize) -> anyhow::Result<()> {
        let member = self.members.get_mut(place).context("no such member")?;
        member.process.take().context("it does not run")?.kill().await
    }

    /// Cuts what others send to a member. The wire between two members is cut with both of them.
    pub fn cut(&self, place: usize) {
        if let Some(member) = self.members.get(place) {
            member.wire.cut();
        }
    }

    /// Lets others reach a member again.
    pub fn mend(&self, place: usize) {
        if let Some(member) = self.members.get(place) {
            member.wire.mend();
        }
    }
}
