//! The programs of a run, stopped in order however it ends, and what drivers left taken away after
//! them.

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use drivers::grpc::identity_client::IdentityClient;
use proto::csi::GetPluginInfoRequest;
use proto::host::publish::{Existing, publish};
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
    /// A shell command with `{endpoint}`, `{state}` and `{node}`, and `{controller}` if its
    /// controller has a socket of its own.
    pub command: String,
    /// More flags of csi-sanity for it.
    pub options: Vec<String>,
}

/// A driver that runs at a node.
pub(super) struct ServedDriver {
    /// Its own name.
    pub(super) name: String,
    /// The socket of all services, or of all but the controller's.
    pub(super) socket: String,
    /// The controller's socket, if it has one of its own.
    pub(super) controller: Option<String>,
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
    ) -> anyhow::Result<ServedDriver> {
        let controller = format!("{socket}.controller");
        let line = driver.command.replace("{endpoint}", &format!("unix://{socket}"));
        let line = line.replace("{controller}", &format!("unix://{controller}"));
        let line =
            line.replace("{state}", &stand.at(&format!("{node}.state"))).replace("{node}", node);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec >&2; exec {line}")]).process_group(0);
        let process = Process::start(&format!("driver-{node}"), command, stand.dir())?;
        let group = process.pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).map(Group);
        self.drivers.push((process, group));
        let (process, _) = self.drivers.last_mut().context("it was just started")?;
        let name = plugin_name(process, socket).await?;
        let has_two = driver.command.contains("{controller}");
        if has_two {
            let second = plugin_name(process, &controller).await?;
            ensure!(name == second, "its sockets are of the drivers {name} and {second}");
        }
        let controller = has_two.then_some(controller);
        Ok(ServedDriver { name, socket: socket.to_owned(), controller })
    }

    /// Starts csi-edge at a node with a driver there, and waits until it is linked.
    ///
    /// # Errors
    /// It does not link; the error holds its log.
    pub(super) async fn edge(
        &mut self,
        stand: &mut Stand,
        node: &str,
        url: &str,
        driver: &ServedDriver,
    ) -> anyhow::Result<()> {
        let ServedDriver { name, socket, controller } = driver;
        let edge = match controller {
            None => stand.edge(node, url, &[(name, socket)]).await?,
            Some(controller) => {
                let config = stand.at(&format!("{node}.toml"));
                let text = format!(
                    "[[drivers]]\nname = \"{name}\"\nsocket = \"{socket}\"\ncontroller_socket = \
                     \"{controller}\"\n"
                );
                publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
                let more = ["--cloud", url, "--config", &config];
                let mut edge = stand.edge_with(node, &[], &more).await?;
                edge.line_starting("linked ", START).await?;
                edge
            }
        };
        self.edges.push(edge);
        Ok(())
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
