//! `csi-edge direct`: what an operator sees of this node's direct volumes, and does about them.
//!
//! It reads the records and the contract's entries from the disk, so that it works whether csi-edge runs or not.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use proto::host::tasks::Tasks;
use serde::Serialize;

use super::Places;
use super::alone::Alone;
use super::look::Standing;
use super::nri;
use super::nri::Plugin;
use super::nri::guard::Handlers;
use super::published;
use super::runtime::{PATIENCE, Roots, Runtimes};
use super::{cdi, look};
use crate::calls::Calls;

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
    /// Hand over again what was lost, as csi-edge does when it starts, and say what came of it. Not while csi-edge runs.
    Reconcile {
        /// Where to look
        #[command(flatten)]
        at: At,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Answer the container runtime before it makes a container (NRI): typed mounts for VFIO and SPDK, and no direct
    /// volume in a container that is no VM's.
    Nri(Nri),
    /// Write a file of the Container Device Interface that names the devices of this node's direct volumes.
    Cdi {
        /// Where to look
        #[command(flatten)]
        at: At,
        /// Where container runtimes read such files
        #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
        dir: PathBuf,
    },
}

/// Where a node has its things.
#[derive(Debug, Args)]
pub struct At {
    /// The state directory of csi-edge, as in `serve --state`
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// The entries that runtimes read
    #[arg(long, value_name = "DIR", default_value_os_t = Roots::default().entries)]
    pub entries: PathBuf,
    /// The sandboxes of Kata's Go runtime
    #[arg(long, value_name = "DIR", default_value_os_t = Roots::default().kata_go)]
    pub kata_go: PathBuf,
    /// The sandboxes of Kata's runtime-rs
    #[arg(long, value_name = "DIR", default_value_os_t = Roots::default().kata_rs)]
    pub kata_rs: PathBuf,
    /// The sandboxes of runtimes that serve our own contract
    #[arg(long, value_name = "DIR", default_value_os_t = Roots::default().reference)]
    pub sandboxes: PathBuf,
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
    /// A handler of the container runtime that runs VMs which take direct volumes; give it once for each
    #[arg(long = "vm-handler", value_name = "HANDLER", required = true)]
    pub vm: Vec<String>,
    /// One of them that takes a mount's type, as Kata's runtime-rs does; give it once for each
    #[arg(long = "typed-handler", value_name = "HANDLER")]
    pub typed: Vec<String>,
}

/// How a command shows what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people
    Table,
    /// For programs
    Json,
}

impl At {
    fn runtimes(&self) -> Runtimes {
        Runtimes::new(self.roots(), PATIENCE)
    }

    fn roots(&self) -> Roots {
        let (kata_go, kata_rs) = (self.kata_go.clone(), self.kata_rs.clone());
        Roots { entries: self.entries.clone(), kata_go, kata_rs, reference: self.sandboxes.clone() }
    }
}

fn two_digits(text: &str) -> Result<String, String> {
    let good = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if good { Ok(text.to_owned()) } else { Err("write two digits, for example 10".into()) }
}

/// Runs a command and writes to `out` what it found.
///
/// # Errors
/// What it is about cannot be read or written; the text says what and why.
pub async fn run(command: Direct, out: &mut impl Write) -> anyhow::Result<()> {
    let (Direct::List { at, .. }
    | Direct::Inspect { at, .. }
    | Direct::Reconcile { at, .. }
    | Direct::Nri(Nri { at, .. })
    | Direct::Cdi { at, .. }) = &command;
    // Of a wrong path it would be said that there is nothing.
    anyhow::ensure!(
        at.state.is_dir(),
        "{} is no directory; where has csi-edge its state?",
        at.state.display()
    );
    match command {
        Direct::List { at, output } => {
            let volumes = look::all(&at.state, &at.runtimes()).await?;
            match output {
                Form::Json => json(out, volumes.as_slice()),
                Form::Table => Ok(look::table(out, &volumes)?),
            }
        }
        Direct::Inspect { volume, at, output } => {
            let runtimes = at.runtimes();
            let volumes = look::all(&at.state, &runtimes).await?;
            let of_it = |v: &look::Volume| v.volume_id == volume || v.target.as_os_str() == volume.as_str();
            let mut found: Vec<_> = volumes.into_iter().filter(of_it).collect();
            anyhow::ensure!(
                !found.is_empty(),
                "{volume} is neither a direct volume of this node nor its target"
            );
            for volume in &mut found {
                volume.ask(&at.state, &runtimes).await?;
            }
            match output {
                Form::Json => json(out, found.as_slice()),
                Form::Table => Ok(look::details(out, &found)?),
            }
        }
        Direct::Reconcile { at, output } => reconcile(&at, output, out).await,
        Direct::Nri(command) => nri(command).await,
        Direct::Cdi { at, dir } => {
            let state = at.state.display();
            let records = published::all(&at.state).with_context(|| format!("the records in {state}"))?;
            let file = dir.join(cdi::FILE);
            let writing = || format!("{} cannot be written", file.display());
            match cdi::write(&dir, &records).with_context(writing)? {
                0 => writeln!(out, "there is no device to name, so there is no {}", file.display())?,
                n => writeln!(out, "{}: direct volumes as devices of {}: {n}", file.display(), cdi::KIND)?,
            }
            Ok(())
        }
    }
}

/// Answers the container runtime until told to stop.
async fn nri(Nri { at, socket, index, vm, typed }: Nri) -> anyhow::Result<()> {
    let mut handlers = Handlers { vm: vm.into_iter().collect(), typed: typed.into_iter().collect() };
    // Who takes typed mounts runs VMs.
    handlers.vm.extend(handlers.typed.iter().cloned());
    let runtimes = Arc::new(at.runtimes());
    let plugin = Plugin { state: at.state, index, handlers, runtimes };
    tokio::select! {
        biased;
        end = proto::host::tasks::signal() => Ok(end?),
        () = plugin.keep(socket) => Ok(()),
    }
}

/// What became of a volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    volume_id: String,
    driver: String,
    target: PathBuf,
    before: Standing,
    after: Standing,
    did: &'static str,
}

async fn reconcile(at: &At, output: Form, out: &mut impl Write) -> anyhow::Result<()> {
    let _alone = Alone::on(&at.state)?;
    let (runtimes, tasks) = (at.runtimes(), Tasks::default());
    let before = look::all(&at.state, &runtimes).await?;
    let places = Places { state: Some(at.state.clone()), roots: at.roots(), ..Places::default() };
    // No driver is asked, so none is known.
    let calls = Arc::new(Calls::new(&[], tasks.clone()));
    super::Direct::new(calls, places, tasks).reconcile().await;
    let after = look::all(&at.state, &runtimes).await?;
    let ours = before.into_iter().filter(|volume| volume.standing != Standing::Foreign);
    let changes: Vec<_> = ours.map(|volume| change(volume, &after)).collect();
    if output == Form::Json {
        return json(out, changes.as_slice());
    }
    for Change { volume_id, target, did, .. } in &changes {
        writeln!(out, "{}: {did} ({})", look::printable(volume_id), target.display())?;
    }
    Ok(writeln!(out, "{} direct volumes", changes.len())?)
}

fn change(volume: look::Volume, after: &[look::Volume]) -> Change {
    let look::Volume { volume_id, driver, target, standing: before, .. } = volume;
    let now = after.iter().find(|now| now.target == target).map_or(before, |now| now.standing);
    let did = match (before, now) {
        (Standing::Lost, Standing::Published) => "handed over again",
        (Standing::Published, Standing::Lost) => "taken back, its device is not there; publish it again",
        (Standing::Lost, Standing::Lost) => "cannot be handed over; the log says why, publish it again",
        (Standing::Fenced, _) => "taken from this node by an operator; delete its pod",
        (Standing::Begun, _) => {
            "its publication was interrupted; the kubelet ends or takes back what was begun"
        }
        _ => "as it should be",
    };
    Change { volume_id, driver, target, before, after: now, did }
}

fn json(out: &mut impl Write, volumes: &(impl Serialize + ?Sized)) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, volumes)?;
    Ok(writeln!(out)?)
}
