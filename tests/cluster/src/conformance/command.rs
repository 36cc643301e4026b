//! `make conformance`: starts a stand, runs the suite, and compares.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use proto::host::publish::{Existing, publish};
use tokio::time::Instant;

use super::kubelets::Kubelets;
use super::straight::Straight;
use super::suite::{self, Selection};
use super::{LAYOUT, PAIRS, Pair, images, report, together};
use crate::stand::{Cluster, objects};

/// How often the sidecars are looked after.
const TENDED: Duration = Duration::from_millis(500);

/// Kubernetes' own storage suite, with us and without us. All kinds of tests run at the same time,
/// each kind on a stand of its own
#[derive(clap::Args)]
pub struct Args {
    /// Where reports and logs come to, in a directory for each kind of tests
    #[arg(long, default_value = "target/conformance")]
    to: PathBuf,
    /// Only tests whose names match this regular expression
    #[arg(long, default_value = "")]
    focus: String,
    /// How many tests run at once, of those that do not stop kubelets
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// Only some quick tests of hostdir, for continuous integration
    #[arg(long, conflicts_with_all = ["focus", "only"])]
    short: bool,
    /// Only the tests of one kind, on one stand
    #[arg(long)]
    only: Option<Kind>,
}

/// The tests of [`Args::short`]: eight of each driver.
const SHORT: &str = "Driver: (hostdir|straight)[.].*Dynamic PV .default fs.. \
                     (volumes should (store data|allow exec)|subPath should support \
                     (non-existent path|existing directory|existing single file|\
                     file as subpath|readOnly directory|readOnly file))";

/// Kinds of tests, each a run on a stand of its own.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Those that disturb no other
    Suite,
    /// Those that need the stand for themselves; one at a time
    Serial,
    /// Those that stop kubelets; one at a time
    Disruptive,
}

impl Kind {
    /// All of them; the longest run comes first.
    const ALL: [Self; 3] = [Self::Suite, Self::Disruptive, Self::Serial];

    /// Its name as an argument.
    fn name(self) -> &'static str {
        match self {
            Self::Suite => "suite",
            Self::Serial => "serial",
            Self::Disruptive => "disruptive",
        }
    }
}

impl Args {
    /// Goes into a network namespace of the stand's own. It must be called before any thread is
    /// started.
    ///
    /// # Errors
    /// As for [`crate::stand::layout::Layout::enter`].
    pub fn enter(&self) -> anyhow::Result<()> {
        match self.kind() {
            Some(_) => LAYOUT.enter(),
            None => Ok(()),
        }
    }

    /// The kind of tests; none for all.
    fn kind(&self) -> Option<Kind> {
        if self.short { Some(Kind::Suite) } else { self.only }
    }

    fn selection(&self, kind: Kind) -> Selection {
        let wanted = if self.short { SHORT } else { &self.focus };
        let (labels, at_once, limit) = match kind {
            Kind::Suite => ("!Disruptive && !Serial", self.at_once, "90m"),
            Kind::Serial => ("Serial && !Disruptive", 1, "90m"),
            Kind::Disruptive => ("Disruptive", 1, "90m"),
        };
        let name = if self.short { "short" } else { kind.name() };
        let focus = format!("External.Storage.*{wanted}");
        let is_whole = !self.short && self.focus.is_empty();
        Selection { name, focus, is_whole, labels, at_once, limit }
    }
}

/// Runs the suite on a stand of its own, or on one for each kind of tests.
///
/// # Errors
/// A test ends worse with us than without us, or the suite did not run to its end. The stand does
/// not come up, or left something behind.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let Some(kind) = args.kind() else {
        let options = [format!("--focus={}", args.focus), format!("--at-once={}", args.at_once)];
        return together::run(&Kind::ALL.map(Kind::name), &args.to, &options).await;
    };
    let selection = args.selection(kind);
    let to = std::path::absolute(&args.to)?.join(selection.name);
    let cluster = Arc::new(Cluster::of(LAYOUT).await?);
    let outcome = tokio::select! {
        outcome = judged(&cluster, &selection, &to) => outcome,
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

async fn judged(cluster: &Arc<Cluster>, selection: &Selection, to: &Path) -> anyhow::Result<()> {
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
    let outcome = ran(cluster, &beside, selection, to).await;
    beside.kubelets.stop().await;
    beside.straight.stop().await;
    outcome?;
    let mut worse = 0;
    let mut passed = 0;
    for pair in &PAIRS {
        let compared = compared(pair, selection, to)?;
        worse += compared.worse;
        passed += usize::from(compared.has_passed);
    }
    let expected = if selection.is_whole { PAIRS.len() } else { 1 };
    ensure!(passed >= expected, "only of {passed} drivers any test passed both ways");
    ensure!(worse == 0, "{worse} tests end worse with us than without us");
    Ok(())
}

/// What the comparison of a driver's two ways came to.
struct Compared {
    /// How many tests end worse with us.
    worse: usize,
    /// Whether any test passed on each way.
    has_passed: bool,
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

/// Prints a driver's results, and compares them.
fn compared(pair: &Pair, selection: &Selection, to: &Path) -> anyhow::Result<Compared> {
    let report = suite::report(to, selection.name);
    let with_us = report::read(&report, pair.with_us)?;
    let without_us = report::read(&report, pair.without_us)?;
    let (table, worse) = report::compare(&with_us, &without_us);
    let has_passed = report::has_passed(&with_us) && report::has_passed(&without_us);
    if with_us.is_empty() && without_us.is_empty() {
        return Ok(Compared { worse, has_passed });
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
    Ok(Compared { worse, has_passed })
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
