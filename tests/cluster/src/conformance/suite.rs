//! One run of the suite: `ginkgo` with `e2e.test` and a definition of each driver.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use proto::host::publish::{Existing, publish};
use tokio::process::{Child, Command};

use crate::stand::Cluster;

/// Where the definitions of drivers are, in the checkout.
const MANIFESTS: &str = "tests/cluster/src/conformance/manifests";
/// Its claims are filled by a controller of another project, whose image cannot be pulled. Without
/// it each such test waits for minutes, with us and without us.
const POPULATED: &str = "should provision storage with any volume data source";

/// What of the suite is run.
pub(super) struct Selection {
    /// The name of the run, and of its files.
    pub(super) name: &'static str,
    /// A regular expression that the names of tests must match.
    pub(super) focus: String,
    /// Whether no name is left out, so that each driver has tests.
    pub(super) is_whole: bool,
    /// An expression over the labels of tests.
    pub(super) labels: &'static str,
    /// How many tests run at once.
    pub(super) at_once: usize,
    /// How long it may take, as ginkgo says it.
    pub(super) limit: &'static str,
}

/// Starts a run for drivers with their definitions. `key` opens the nodes. Its reports and
/// its log come to `to`.
///
/// # Errors
/// A file cannot be written, or ginkgo cannot be started.
pub(super) fn start(
    cluster: &Cluster,
    selection: &Selection,
    drivers: &[(&str, &str)],
    key: &Path,
    to: &Path,
) -> anyhow::Result<Child> {
    let ground = &cluster.ground;
    std::fs::create_dir_all(to)?;
    let report = report(to, selection.name);
    let _ = std::fs::remove_file(&report);
    let log = std::fs::File::create(to.join(format!("{}.log", selection.name)))?;
    // In a process namespace, because ginkgo does not end its processes when it is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "unshare", "--pid", "--fork", "--mount-proc"]);
    command.args(["--kill-child=KILL", "--"]).arg(ground.tool("ginkgo")).args([
        format!("--procs={}", selection.at_once),
        format!("--focus={}", selection.focus),
        format!("--skip={POPULATED}"),
        format!("--label-filter={}", selection.labels),
        format!("--timeout={}", selection.limit),
        format!("--output-dir={}", to.display()),
        format!("--json-report={}.json", selection.name),
        format!("--junit-report={}.xml", selection.name),
        "--no-color".to_owned(),
        "--silence-skips".to_owned(),
        "--poll-progress-after=0".to_owned(),
    ]);
    command.arg(ground.tool("e2e.test")).arg("--").args([
        format!("-kubeconfig={}", cluster.control.kubeconfig.display()),
        "-provider=local".to_owned(),
        "-allowed-not-ready-nodes=-1".to_owned(),
        "-minStartupPods=0".to_owned(),
        "-dump-logs-on-failure=false".to_owned(),
        "-e2e-verify-service-account=false".to_owned(),
    ]);
    for (driver, definition) in drivers {
        let path = ground.dir().join(format!("{driver}.yaml"));
        let text = ground.source(&format!("{MANIFESTS}/{definition}"))?;
        publish(&path, text.replace("NAME", driver).as_bytes(), 0o644, Existing::Replace)?;
        command.arg(format!("-storage.testdriver={}", path.display()));
    }
    // The suite's kubectl, rather than the machine's.
    let tools = ground.tool("kubectl");
    let tools = tools.parent().context("the tools have no directory")?.display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("KUBE_SSH_KEY_PATH", key).env("KUBE_SSH_USER", "root");
    command.env("PATH", format!("{tools}:{path}"));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
    command.spawn().context("ginkgo cannot be started")
}

/// Where the report of a run is.
pub(super) fn report(to: &Path, name: &str) -> PathBuf {
    to.join(format!("{name}.json"))
}

/// Whether the tools of the suite are built.
///
/// # Errors
/// One is not.
pub(super) fn tools(cluster: &Path) -> anyhow::Result<()> {
    for name in ["agnhost", "e2e.test", "ginkgo", "kubectl", "nodessh"] {
        ensure!(cluster.join(name).exists(), "{name} is not built; run `make conformance`");
    }
    Ok(())
}
