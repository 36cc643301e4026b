//! `csi-edge direct`: shows an operator this node's direct volumes, and changes them.
//!
//! It reads records and entries from the disk, so it works whether csi-edge runs or not.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use edge_direct::admin::reconcile;
use edge_direct::admin::show;
use edge_direct::admin::volumes;
use edge_direct::cdi;
use edge_direct::nri;
use edge_direct::nri::guard::Handlers;
use edge_direct::nri::plugin::Plugin;
use edge_direct::records::published;
use edge_direct::runtimes::prerequisites;
use edge_direct::runtimes::prerequisites::{CheckReport, CheckVerdict, Finding};
use proto::config::places::Places;
use proto::host::tasks;
use serde::Serialize;

use super::place::{At, DirectPlace, host_root};

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Direct {
    /// Show all direct volumes of this node, with who has them.
    List {
        /// Where to look
        #[command(flatten)]
        at: At,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Show all that is known of one volume, and ask its guest for its statistics.
    Inspect {
        /// The volume's id, or the target where it is published
        volume: String,
        /// Where to look
        #[command(flatten)]
        at: At,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Hand over again what was lost, as csi-edge does when it starts, and say what came of it. Not
    /// while csi-edge runs.
    Reconcile {
        /// Where to look
        #[command(flatten)]
        at: At,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Check that the installed runtimes take direct volumes as devices, by their configuration,
    /// and say what to set. Ends with 1 on a fault.
    Check {
        /// The root of the host's files [default: what the configuration says, else /proc/1/root]
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
        /// The configuration of csi-edge [default: /etc/edge-csi/edge.toml, if it is there]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Answer the container runtime before it makes a container (NRI). VFIO and SPDK get typed
    /// mounts, and no container without a VM gets a direct volume.
    Nri(Nri),
    /// Write a file of the Container Device Interface that names the devices of this node's direct
    /// volumes.
    Cdi {
        /// Where to look
        #[command(flatten)]
        at: At,
        /// Where container runtimes read such files
        #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
        dir: PathBuf,
    },
}

/// What `nri` takes.
#[derive(Debug, Args)]
pub struct Nri {
    /// Where to look
    #[command(flatten)]
    pub at: At,
    /// Where the container runtime takes plugins
    #[arg(long, value_name = "PATH", default_value = nri::SOCKET)]
    pub socket: PathBuf,
    /// When it is asked among other plugins: two digits, the lower the sooner
    #[arg(long, value_name = "NN", default_value = "10", value_parser = two_digits)]
    pub index: String,
    /// A handler of the container runtime that runs VMs which take direct volumes; give it once for
    /// each
    #[arg(long = "vm-handler", value_name = "HANDLER", required = true)]
    pub vm: Vec<String>,
    /// One of them that takes a mount's type, as Kata's runtime-rs does; give it once for each
    #[arg(long = "typed-handler", value_name = "HANDLER")]
    pub typed: Vec<String>,
}

/// The form in which a command shows its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people
    Table,
    /// For programs
    Json,
}

fn two_digits(text: &str) -> Result<String, String> {
    let good = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if good { Ok(text.to_owned()) } else { Err("write two digits, for example 10".into()) }
}

/// Runs a command and writes to `out` what it found.
///
/// # Errors
/// Something cannot be read or written; the text says what and why.
pub async fn run(command: Direct, out: &mut impl Write) -> anyhow::Result<()> {
    let places = Places::edge();
    match command {
        Direct::List { at, output } => list(&at.find(&places)?, output, out).await,
        Direct::Inspect { volume, at, output } => {
            inspect(&volume, &at.find(&places)?, output, out).await
        }
        Direct::Reconcile { at, output } => reconcile(&at.find(&places)?, output, out).await,
        Direct::Nri(command) => serve_nri(command, &places).await,
        Direct::Cdi { at, dir } => write_cdi(&at.find(&places)?, &dir, out),
        Direct::Check { root, config, output } => {
            let (root, state) = host_root(root, config, &places)?;
            check(&root, state.as_deref(), output, out)
        }
    }
}

async fn list(at: &DirectPlace, output: Form, out: &mut impl Write) -> anyhow::Result<()> {
    let volumes = volumes::all(&at.state, &at.runtimes()).await?;
    match output {
        Form::Json => json(out, volumes.as_slice()),
        Form::Table => Ok(show::table(out, &volumes)?),
    }
}

async fn inspect(
    volume: &str,
    at: &DirectPlace,
    output: Form,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let runtimes = at.runtimes();
    let mut found = volumes::all(&at.state, &runtimes).await?;
    found.retain(|found| found.volume_id == volume || found.target.as_os_str() == volume);
    anyhow::ensure!(
        !found.is_empty(),
        "{volume} is neither a direct volume of this node nor its target"
    );
    for volume in &mut found {
        volume.ask(&at.state, &runtimes).await?;
    }
    match output {
        Form::Json => json(out, found.as_slice()),
        Form::Table => Ok(show::details(out, &found)?),
    }
}

async fn reconcile(at: &DirectPlace, output: Form, out: &mut impl Write) -> anyhow::Result<()> {
    let changes = reconcile::reconcile(&at.state, at.roots()).await?;
    if output == Form::Json {
        json(out, changes.as_slice())?;
    } else {
        for change in &changes {
            let volume = show::printable(&change.volume_id);
            let damage = change.damage.as_deref().map(|why| format!(": {}", show::printable(why)));
            let damage = damage.unwrap_or_default();
            writeln!(out, "{volume}: {} ({}){damage}", change.did, change.target.display())?;
        }
        writeln!(out, "{} direct volumes", changes.len())?;
    }
    let faults = changes.iter().filter(|change| change.after.is_fault()).count();
    anyhow::ensure!(
        faults == 0,
        "{faults} of {} direct volumes are not as they should be",
        changes.len()
    );
    Ok(())
}

/// The findings about a node's runtimes and the plugin.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeCheck {
    #[serde(flatten)]
    report: CheckReport,
    /// Whether the NRI plugin is connected. `None` if no state directory is known.
    nri_plugin: Option<bool>,
}

fn check(
    root: &Path,
    state: Option<&Path>,
    output: Form,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let nri_plugin = state.map(nri::is_connected).transpose();
    let nri_plugin = nri_plugin.context("whether the NRI plugin is connected is not known")?;
    let report = prerequisites::check(root);
    let checked = NodeCheck { report, nri_plugin };
    match output {
        Form::Json => json(out, &checked)?,
        Form::Table => {
            show::report(out, &checked.report)?;
            if let Some(connected) = nri_plugin {
                let is = if connected { "connected" } else { "not connected" };
                writeln!(out, "NRI plugin   {is}")?;
            }
        }
    }
    if matches!(checked.report.verdict(), CheckVerdict::Failed(_)) {
        anyhow::bail!("a runtime of this node does not take direct volumes");
    }
    anyhow::ensure!(
        !checked.misses_plugin(),
        "runtime-rs is configured here, and it can attach a volume twice; the NRI plugin, which \
         refuses that, is not connected: start `csi-edge direct nri` (`nri` in the chart), and \
         enable NRI in the container runtime"
    );
    Ok(())
}

impl NodeCheck {
    /// True if a runtime here needs the plugin, and none is connected.
    fn misses_plugin(&self) -> bool {
        let needs = |finding: &Finding| finding.runtime == Some("kata-rs");
        self.nri_plugin == Some(false) && self.report.configurations.iter().any(needs)
    }
}

/// Answers the container runtime until told to stop.
async fn serve_nri(command: Nri, places: &Places) -> anyhow::Result<()> {
    let Nri { at, socket, index, vm, typed } = command;
    let at = at.find(places)?;
    let mut handlers =
        Handlers { vm: vm.into_iter().collect(), typed: typed.into_iter().collect() };
    // A handler that takes typed mounts runs VMs.
    handlers.vm.extend(handlers.typed.iter().cloned());
    let runtimes = Arc::new(at.runtimes());
    let plugin = Plugin::new(at.state, index, handlers, runtimes);
    tokio::select! {
        biased;
        end = tasks::signal() => Ok(end?),
        () = plugin.keep(socket) => Ok(()),
    }
}

fn write_cdi(at: &DirectPlace, dir: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let reading = || format!("the records in {}", at.state.display());
    let records = published::all(&at.state).with_context(reading)?;
    let file = dir.join(cdi::FILE);
    let writing = || format!("{} cannot be written", file.display());
    let file = file.display();
    match cdi::write(dir, &records).with_context(writing)? {
        0 => writeln!(out, "there is no device to name, so there is no {file}")?,
        n => writeln!(out, "{file}: direct volumes as devices of {}: {n}", cdi::KIND)?,
    }
    Ok(())
}

fn json(out: &mut impl Write, volumes: &(impl Serialize + ?Sized)) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, volumes)?;
    Ok(writeln!(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_rs_needs_the_plugin_and_the_go_runtime_does_not() {
        for (runtime, nri_plugin, misses) in [
            ("kata-rs", Some(false), true),
            ("kata-rs", Some(true), false),
            ("kata-rs", None, false),
            ("kata-go", Some(false), false),
        ] {
            let finding = Finding { path: "/x".into(), runtime: Some(runtime), fault: None };
            let configurations = vec![finding];
            let report = CheckReport { unread: None, version: None, configurations };
            let checked = NodeCheck { report, nri_plugin };
            assert_eq!(checked.misses_plugin(), misses, "{runtime} {nri_plugin:?}");
        }
    }
}
