//! One run of csi-sanity: the driver, the two ends of the link if there is one, and the suite, each a process.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::ValueEnum;
use proto::csi::GetPluginInfoRequest;
use proto::csi::identity_client::IdentityClient;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::report::Report;
use super::tidy;
use crate::net::{Net, Shape};
use crate::process::Process;
use crate::stand::{START, Stand, channel, until};

/// How long a whole run may take.
const RUN: Duration = Duration::from_secs(300);
/// The same, where every call takes a tenth of a second at least.
const RUN_FAR: Duration = Duration::from_secs(1800);
/// How long a program may take to end.
const STOP: Duration = Duration::from_secs(10);
/// The longest path of a unix socket.
const SOCKET_PATH: usize = 107;
const NODE: &str = "n1";

/// How the suite reaches the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// At its own socket.
    Direct,
    /// Through csi-cloud and csi-edge, linked by a WebSocket.
    Ws,
    /// Through csi-cloud and csi-edge, linked by QUIC.
    Quic,
}

/// What is between csi-cloud and csi-edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// They are on one host.
    Nothing,
    /// A network that is far, slow, loses packets and mixes them up.
    BadNetwork,
}

/// A driver to be tried.
pub struct Driver {
    /// What lines about it call it.
    pub label: String,
    /// A shell command with `{endpoint}`, `{state}` and `{node}`.
    pub command: String,
}

/// What runs, in the order in which it is to be stopped.
#[derive(Default)]
struct Started {
    ends: Vec<Process>,
    driver: Option<Process>,
    group: Option<Group>,
}

/// The driver's process group, for what a driver that is a script has started. Dropping it kills it.
struct Group(Pid);

/// Runs the suite. Everything that it starts has ended when it comes back, also when it is cancelled.
///
/// # Errors
/// Something cannot be started, ends badly, or takes too long; there is no report; or it was cancelled.
pub async fn run(
    driver: &Driver,
    way: Way,
    between: Between,
    go_bin: &Path,
    cancel: &CancellationToken,
) -> anyhow::Result<Report> {
    ensure!(!cancel.is_cancelled(), "stopped before it began");
    let suite = std::path::absolute(go_bin.join("csi-sanity"))?;
    ensure!(suite.exists(), "{} is not there; `make sanity` builds it", suite.display());
    let (mut stand, limit) = match between {
        Between::BadNetwork if way != Way::Direct => (Stand::over(bad_network().await?).await?, RUN_FAR),
        _ => (Stand::new().await?, RUN),
    };
    let mut started = Started::default();
    let running = tokio::time::timeout(limit, try_driver(driver, way, &suite, &mut stand, &mut started));
    let result = match cancel.run_until_cancelled(running).await {
        Some(result) => result.unwrap_or_else(|_| bail!("not within {limit:?}")),
        None => Err(anyhow!("stopped")),
    };
    let stopped = started.stop().await;
    tidy::below(stand.dir()).await?;
    let report = result?;
    stopped?;
    Ok(report)
}

/// 100 ms there and back, 20 Mbit/s, and each way one packet of a hundred lost and one overtaken.
async fn bad_network() -> anyhow::Result<Net> {
    let shape = Shape { reorder: 0.01, late_by: Duration::from_millis(10), ..Shape::far(20, 0.01) };
    Net::new(shape, 1).await
}

async fn try_driver(
    driver: &Driver,
    way: Way,
    suite: &Path,
    stand: &mut Stand,
    started: &mut Started,
) -> anyhow::Result<Report> {
    let socket = stand.at("driver.sock");
    let process = started.driver.insert(start(driver, stand, &socket)?);
    started.group = process.pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).map(Group);
    let name = plugin_name(process, &socket).await?;
    let scheme = match way {
        Way::Direct => return check(suite, stand, &[("endpoint", socket)]).await,
        Way::Ws => "wss",
        Way::Quic => "quic",
    };
    let (cloud_front, edge_front) = (stand.cloud_front(&name), stand.edge_front(NODE, &name));
    for path in [&cloud_front, &edge_front] {
        ensure!(path.len() <= SOCKET_PATH, "{path} is too long for a socket; set TMPDIR to a shorter path");
    }
    let cloud = stand.cloud(&[&format!("{scheme}://{}:0", stand.host())], &[&name], &[]).await?;
    let url = cloud.urls.first().context("csi-cloud listens nowhere")?.clone();
    started.ends.push(cloud.process);
    // The edge goes first.
    started.ends.insert(0, stand.edge(NODE, &url, &[(&name, &socket)]).await?);
    check(suite, stand, &[("endpoint", edge_front), ("controllerendpoint", cloud_front)]).await
}

/// The driver's stdout goes to its log, as its stderr does: it may print what it likes.
fn start(driver: &Driver, stand: &Stand, socket: &str) -> anyhow::Result<Process> {
    let line = driver.command.replace("{endpoint}", &format!("unix://{socket}"));
    let line = line.replace("{state}", &stand.at("state")).replace("{node}", NODE);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {line} >&2")]).process_group(0);
    Process::start("driver", command, stand.dir())
}

/// Waits until the driver tells its name.
async fn plugin_name(driver: &mut Process, socket: &str) -> anyhow::Result<String> {
    let asking = until("GetPluginInfo", || async {
        let mut identity = IdentityClient::new(channel(socket).await?);
        Ok(identity.get_plugin_info(GetPluginInfoRequest {}).await?.into_inner().name)
    });
    let ended = tokio::select! {
        name = tokio::time::timeout(START, asking) => return name.context("the driver does not answer")?,
        ended = driver.ended(START * 2) => ended?,
    };
    bail!("the driver ended with {ended}; its log ends:\n{}", driver.log_tail())
}

/// Runs the suite at these sockets.
async fn check(suite: &Path, stand: &Stand, sockets: &[(&str, String)]) -> anyhow::Result<Report> {
    let (mutable, report, log) = (stand.at("mutable.yaml"), stand.at("report.json"), stand.at("sanity.log"));
    tokio::fs::write(&mutable, "mutableKey: v\n").await?;
    let output = std::fs::File::create(&log)?;
    let mut command = Command::new(suite);
    command.args(sockets.iter().map(|(flag, socket)| format!("--csi.{flag}=unix://{socket}")));
    command.arg(format!("--csi.mountdir={}", stand.at("mount")));
    command.arg(format!("--csi.stagingdir={}", stand.at("stage")));
    command.arg(format!("--csi.testvolumemutableparameters={mutable}"));
    command.args(["--csi.testnodevolumeattachlimit", "--ginkgo.no-color"]);
    command.arg(format!("--ginkgo.json-report={report}"));
    command.current_dir(stand.dir()).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    // It fails when a spec does; the report says more.
    let status = command.kill_on_drop(true).status().await?;
    match tokio::fs::read(&report).await {
        Ok(json) => Report::parse(&json),
        Err(error) => {
            let said = tokio::fs::read_to_string(&log).await.unwrap_or_default();
            bail!("csi-sanity ended with {status} and left no report ({error}):\n{said}")
        }
    }
}

impl Started {
    /// Stops everything, and only then tells what did not end well.
    async fn stop(self) -> anyhow::Result<()> {
        let mut result = Ok(());
        for process in self.ends {
            result = result.and(process.stop(STOP).await);
        }
        if let Some(mut driver) = self.driver {
            // Any exit code will do: a driver need not handle SIGTERM.
            let ending = driver.signal(Signal::TERM);
            result = result.and(ending).and(driver.ended(STOP).await.map(drop));
        }
        result
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Most often nobody is left in it.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}
