//! `make conformance`: starts a stand, runs the suite, and compares.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use proto::host::publish::{Existing, publish};
use tokio::time::Instant;

use super::kubelets::Kubelets;
use super::report::Ends;
use super::straight::Straight;
use super::suite::{self, Selection};
use super::{LAYOUT, PAIRS, Pair, images, report};
use crate::stand::{Cluster, objects};

/// How often the sidecars are looked after.
const TENDED: Duration = Duration::from_millis(500);

/// Kubernetes' own storage suite, with us and without us
#[derive(clap::Args)]
pub struct Args {
    /// Where reports and logs come to
    #[arg(long, default_value = "target/conformance")]
    to: PathBuf,
    /// Only tests whose names match this regular expression
    #[arg(long, default_value = "")]
    focus: String,
    /// How many tests run at once, of those that do not stop kubelets
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// Only some quick tests of hostdir, for continuous integration
    #[arg(long, conflicts_with = "focus")]
    short: bool,
    /// Only the tests of one kind
    #[arg(long)]
    only: Option<Kind>,
}

/// The tests of [`Args::short`]: eight of each driver.
const SHORT: &str = "Driver: (hostdir|straight)[.].*Dynamic PV .default fs.. \
                     (volumes should (store data|allow exec)|subPath should support \
                     (non-existent path|existing directory|existing single file|\
                     file as subpath|readOnly directory|readOnly file))";

/// Kinds of tests, each a run of its own.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Those that disturb no other
    Suite,
    /// Those that need the stand for themselves; one at a time
    Serial,
    /// Those that stop kubelets; one at a time
    Disruptive,
}

impl Args {
    /// Goes into a network namespace of the stand's own. It must be called before any thread is
    /// started.
    ///
    /// # Errors
    /// As for [`crate::stand::layout::Layout::enter`].
    pub fn enter(&self) -> anyhow::Result<()> {
        LAYOUT.enter()
    }

    fn selections(&self) -> Vec<Selection> {
        let wanted = if self.short { SHORT } else { &self.focus };
        let focus = format!("External.Storage.*{wanted}");
        let suite = Selection {
            name: "suite",
            focus: focus.clone(),
            labels: "!Disruptive && !Serial",
            at_once: self.at_once,
            limit: "55m",
        };
        let alone = |name, labels, limit| Selection {
            name,
            focus: focus.clone(),
            labels,
            at_once: 1,
            limit,
        };
        let serial = alone("serial", "Serial && !Disruptive", "60m");
        let disruptive = alone("disruptive", "Disruptive", "40m");
        match self.only {
            None if self.short => vec![suite],
            None => vec![suite, serial, disruptive],
            Some(Kind::Suite) => vec![suite],
            Some(Kind::Serial) => vec![serial],
            Some(Kind::Disruptive) => vec![disruptive],
        }
    }
}

/// Runs the suite on a stand of its own.
///
/// # Errors
/// A test passes without us and does not with us, or the stand does not come up or left something
/// behind.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let to = std::path::absolute(&args.to)?;
    let cluster = Arc::new(Cluster::of(LAYOUT).await?);
    let outcome = tokio::select! {
        outcome = judged(&cluster, &args, &to) => outcome,
        stopped = proto::host::tasks::signal() => match stopped {
            Ok(()) => Err(anyhow!("stopped")),
            Err(error) => Err(error.into()),
        },
    };
    keep_logs(&cluster, &to)?;
    let cluster = Arc::into_inner(cluster).context("the stand is still in use")?;
    cluster.down().await?;
    outcome
}

async fn judged(cluster: &Arc<Cluster>, args: &Args, to: &Path) -> anyhow::Result<()> {
    suite::tools(&cluster.ground.tool(""))?;
    let classes = cluster.ground.source("tests/cluster/src/conformance/manifests/classes.yaml")?;
    objects::apply(&cluster.client, "default", &classes).await?;
    images::import(cluster).await?;
    cluster.cloud.snapshots.reargue(|args| args.push(DISTRIBUTED.to_owned())).await?;
    cluster.cloud.snapshots.restart().await?;
    let beside = Beside {
        straight: Straight::start(cluster).await?,
        kubelets: Kubelets::start(cluster).await?,
    };
    let selections = args.selections();
    let mut outcome = Ok(());
    for selection in &selections {
        outcome = outcome.and(ran(cluster, &beside, selection, to).await);
    }
    beside.kubelets.stop().await;
    beside.straight.stop().await;
    outcome?;
    let mut worse = 0;
    for pair in &PAIRS {
        worse += compared(pair, &selections, to)?;
    }
    ensure!(worse == 0, "{worse} tests pass without us and do not with us");
    Ok(())
}

/// It labels the contents of snapshots with their node.
const DISTRIBUTED: &str = "--enable-distributed-snapshotting=true";

/// What runs beside the suite.
struct Beside {
    straight: Straight,
    kubelets: Kubelets,
}

/// Runs the tests of a selection.
async fn ran(
    cluster: &Arc<Cluster>,
    beside: &Beside,
    selection: &Selection,
    to: &Path,
) -> anyhow::Result<()> {
    let names = |pair: &Pair| [pair.with_us, pair.without_us].map(|name| (name, pair.definition));
    let drivers: Vec<_> = PAIRS.iter().flat_map(names).collect();
    let begun = Instant::now();
    let mut child = suite::start(cluster, selection, &drivers, beside.kubelets.key(), to)?;
    let status = loop {
        if let Ok(status) = tokio::time::timeout(TENDED, child.wait()).await {
            break status?;
        }
        beside.straight.tend().await?;
        beside.kubelets.tend(cluster).await?;
    };
    let seconds = begun.elapsed().as_secs();
    println!("{} ended with {status} after {seconds} s", selection.name);
    Ok(())
}

/// Prints a driver's results, and returns how many tests pass without us alone.
fn compared(pair: &Pair, selections: &[Selection], to: &Path) -> anyhow::Result<usize> {
    let mut with_us = Ends::new();
    let mut without_us = Ends::new();
    for selection in selections {
        let report = suite::report(to, selection.name);
        with_us.extend(report::read(&report, pair.with_us)?);
        without_us.extend(report::read(&report, pair.without_us)?);
    }
    let (table, worse) = report::compare(&with_us, &without_us);
    if with_us.is_empty() && without_us.is_empty() {
        return Ok(0);
    }
    let text = format!(
        "== {}\nwithout us: {}with us: {}without | with    | test\n{table}",
        pair.title,
        report::summary(&without_us),
        report::summary(&with_us)
    );
    print!("{text}");
    let file = to.join(format!("{}.txt", pair.with_us));
    publish(&file, text.as_bytes(), 0o644, Existing::Replace)?;
    Ok(worse)
}

/// Keeps the logs of the stand's programs beside the reports.
fn keep_logs(cluster: &Cluster, to: &Path) -> anyhow::Result<()> {
    let logs = to.join("logs");
    let _ = std::fs::remove_dir_all(&logs);
    std::fs::create_dir_all(&logs)?;
    for entry in std::fs::read_dir(cluster.ground.logs())? {
        let entry = entry?;
        std::fs::copy(entry.path(), logs.join(entry.file_name()))?;
    }
    Ok(())
}
