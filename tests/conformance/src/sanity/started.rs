//! The programs of a run, stopped in order however it ends, and what drivers left taken away after
//! them.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use drivers::grpc::identity_client::IdentityClient;
use proto::csi::GetPluginInfoRequest;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::tidy;
use harness::process::Process;
use harness::stand::{Stand, channel};
use harness::wait::{START, until};

/// How long a program may take to end.
const STOP: Duration = Duration::from_secs(10);

/// A driver to be tried.
pub struct Driver {
    /// The label in lines about the driver.
    pub label: String,
    /// A shell command with `{endpoint}`, `{state}` and `{node}`.
    pub command: String,
    /// More flags of csi-sanity for it.
    pub options: Vec<String>,
}

/// The running programs.
#[derive(Default)]
pub(super) struct Started {
    /// They go first.
    pub(super) edges: Vec<Process>,
    pub(super) cloud: Option<Process>,
    drivers: Vec<(Process, Option<Group>)>,
}

/// The driver's process group, because a driver may be a script with children. Dropping it kills
/// the group.
struct Group(Pid);

/// Runs work with the programs that it starts. All have ended when it returns, even after a
/// cancellation.
///
/// # Errors
/// The work's; or it takes too long, is cancelled, or something that it started does not end well.
pub(super) async fn guarded<T>(
    mut stand: Stand,
    limit: Duration,
    cancel: &CancellationToken,
    work: impl AsyncFnOnce(&mut Stand, &mut Started) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut started = Started::default();
    let running = tokio::time::timeout(limit, work(&mut stand, &mut started));
    let result = match cancel.run_until_cancelled(running).await {
        Some(result) => result.unwrap_or_else(|_| bail!("not within {limit:?}")),
        None => Err(anyhow!("stopped")),
    };
    let stopped = started.stop().await;
    tidy::below(stand.dir()).await?;
    let done = result?;
    stopped?;
    Ok(done)
}

impl Started {
    /// Starts the driver of a node at a socket and waits until it answers GetPluginInfo. Its stdout
    /// and stderr go to its log.
    ///
    /// # Errors
    /// It does not answer; the error holds its log.
    pub(super) async fn driver(
        &mut self,
        driver: &Driver,
        stand: &Stand,
        node: &str,
        socket: &str,
    ) -> anyhow::Result<String> {
        let line = driver.command.replace("{endpoint}", &format!("unix://{socket}"));
        let line =
            line.replace("{state}", &stand.at(&format!("{node}.state"))).replace("{node}", node);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {line} >&2")]).process_group(0);
        let process = Process::start(&format!("driver-{node}"), command, stand.dir())?;
        let group = process.pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).map(Group);
        self.drivers.push((process, group));
        let (process, _) = self.drivers.last_mut().context("it was just started")?;
        plugin_name(process, socket).await
    }

    /// Stops all programs, and then returns the first error.
    async fn stop(self) -> anyhow::Result<()> {
        let mut result = Ok(());
        for process in self.edges.into_iter().chain(self.cloud) {
            result = result.and(process.stop(STOP).await);
        }
        for (mut driver, _group) in self.drivers {
            // Any exit code will do: a driver need not handle SIGTERM.
            let ending = driver.signal(Signal::TERM);
            result = result.and(ending).and(driver.ended(STOP).await.map(drop));
        }
        result
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Most often the group is empty.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

/// Waits until the driver answers GetPluginInfo.
async fn plugin_name(driver: &mut Process, socket: &str) -> anyhow::Result<String> {
    let asking = until("GetPluginInfo", || async {
        let mut identity = IdentityClient::new(channel(socket).await?);
        Ok(identity.get_plugin_info(GetPluginInfoRequest {}).await?.into_inner().name)
    });
    let ended = tokio::select! {
        name = tokio::time::timeout(START, asking) => {
            return name.context("the driver does not answer")?;
        }
        ended = driver.ended(START * 2) => ended?,
    };
    bail!("the driver ended with {ended}; its log ends:\n{}", driver.log_tail())
}
