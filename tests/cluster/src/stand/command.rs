//! `make stand`: a whole Kubernetes that stays up for a person to play with; `make stand-down` ends
//! it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use proto::host::publish::{Existing, publish};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::process::Command;

use super::Cluster;
use super::layout::{Layout, Tool};
use super::objects::within;

/// How long a stand may take to start, and to end.
const START: Duration = Duration::from_secs(300);

/// The process id of the stand's program, if it runs.
fn running(at: &Path) -> Option<Pid> {
    let text = std::fs::read_to_string(at.join("pid")).ok()?;
    Pid::from_raw(text.trim().parse().ok()?).filter(|pid| test_kill_process(*pid).is_ok())
}

/// Starts a stand and leaves it up. It is remembered in the directory `at`.
///
/// # Errors
/// One is up already, or it does not come up.
pub async fn up(at: &Path, deployed: Option<Tool>) -> anyhow::Result<()> {
    ensure!(running(at).is_none(), "a stand is up already; `make stand-down` ends it");
    std::fs::create_dir_all(at)?;
    let _ = std::fs::remove_file(at.join("hint"));
    let log = std::fs::File::create(at.join("log"))?;
    let mut command = Command::new("setsid");
    command.arg(std::env::current_exe()?).arg("--at").arg(at).arg("run");
    command.args(deployed.map(|tool| format!("--deployed={}", tool.name())));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = command.spawn().context("setsid cannot be started")?;
    let mut shown = 0;
    let ready = || {
        let log = std::fs::read_to_string(at.join("log")).unwrap_or_default();
        eprint!("{}", log.get(shown..).unwrap_or_default());
        shown = log.len();
        let ended = child.try_wait();
        async move {
            if let Ok(Some(status)) = ended {
                return Ok(Err(status));
            }
            std::fs::read_to_string(at.join("hint")).map(Ok).context("it is not up")
        }
    };
    match within("the stand", START, ready).await? {
        Ok(hint) => println!("{hint}"),
        Err(status) => bail!("it ended with {status}; see {}", at.join("log").display()),
    }
    Ok(())
}

/// Ends the stand.
///
/// # Errors
/// None is up, or it left something behind.
pub async fn down(at: &Path) -> anyhow::Result<()> {
    let pid = running(at).context("no stand is up")?;
    kill_process(pid, Signal::TERM)?;
    let ended = || async {
        ensure!(test_kill_process(pid).is_err(), "it still runs");
        Ok(())
    };
    within("the stand's end", START, ended).await?;
    let log = std::fs::read_to_string(at.join("log")).unwrap_or_default();
    let last = log.lines().last().unwrap_or_default();
    ensure!(last.ends_with("nothing is left"), "{last}; see {}", at.join("log").display());
    println!("the stand has ended, nothing is left");
    Ok(())
}

/// Starts a stand and ends it with this program.
///
/// # Errors
/// It does not come up, or left something behind.
pub async fn run(at: &Path, layout: Layout) -> anyhow::Result<()> {
    std::fs::create_dir_all(at)?;
    let pid = std::process::id().to_string();
    publish(&at.join("pid"), pid.as_bytes(), 0o644, Existing::Replace)?;
    // Before anything is started, so that a signal while it starts ends what was.
    let stop = proto::host::tasks::signal();
    tokio::pin!(stop);
    let cluster = tokio::select! {
        cluster = Cluster::of(layout) => cluster?,
        _ = &mut stop => bail!("told to stop before it was up"),
    };
    let hint = match layout.deployed {
        Some(_) => deployed(&cluster),
        None => hint(&cluster),
    };
    publish(&at.join("hint"), hint.as_bytes(), 0o644, Existing::Replace)?;
    stop.await?;
    std::fs::remove_file(at.join("hint"))?;
    std::fs::remove_file(at.join("pid"))?;
    cluster.down().await?;
    eprintln!("nothing is left");
    Ok(())
}

/// The stand and its nodes are in a network namespace of the stand's own.
fn deployed(cluster: &Cluster) -> String {
    let config = cluster.control.kubeconfig.display();
    format!(
        "nsenter --net=/proc/{}/ns/net -- env KUBECONFIG={config} bash\n\
         kubectl -n edge-csi get pods -o wide\n\
         kubectl -n edge-csi exec csi-cloud-0 -- csi-cloud nodes\n\
         logs: {}/logs; end it with: make stand-down",
        std::process::id(),
        cluster.ground.dir().display(),
    )
}

fn hint(cluster: &Cluster) -> String {
    let config = cluster.control.kubeconfig.display();
    let dir = cluster.ground.dir().display();
    let cloud = cluster.ground.program("csi-cloud");
    format!(
        "export KUBECONFIG={config}\n\
         kubectl get nodes,csinodes,storageclasses   # a pod here has the image {}\n\
         {} volumes --admin {dir}/{}\n\
         logs: {dir}/logs; end it with: make stand-down",
        super::image::IMAGE,
        cloud.display(),
        super::cloud::ADMIN,
    )
}
