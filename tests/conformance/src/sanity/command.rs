//! `make sanity`: csi-sanity against drivers directly and through both links, and whether the link
//! changes anything.

use std::path::{Path, PathBuf};
use std::pin::pin;

use super::nodes::{Case, run_nodes};
use super::report::{Counts, Report};
use super::run::{Between, Way, run};
use super::started::Driver;
use super::suite::Part;
use super::tied::{TIED, spread_differences};
use anyhow::{Context, bail};
use harness::programs::Programs;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The required counts of our own driver, which implements all of CSI. The suite itself switches
/// one spec off.
const ALL: Counts = Counts { passed: 102, failed: 0, skipped: 0, pending: 1 };
/// Small volumes for them: csi-sanity's own are of 10 GiB, which hostdir refuses on a fuller disk.
const SMALL: [&str; 2] = ["--csi.testvolumesize=67108864", "--csi.testvolumeexpandsize=134217728"];

/// Runs csi-sanity against drivers, directly and through csi-cloud and csi-edge.
///
/// Every spec must end through a link as it does directly. Needs root if the drivers do.
#[derive(clap::Args)]
pub struct Args {
    /// A driver's shell command with {endpoint}, and {controller}, {state} and {node} if it needs
    /// them
    ///
    /// {endpoint} becomes `unix:///path`, {state} a path where the driver may make a directory,
    /// {node} a node id. {controller} becomes the socket of a controller that is not served at
    /// {endpoint}. [default: hostdir and Kubernetes' mock driver]
    #[arg(long, value_name = "COMMAND")]
    driver: Option<String>,
    /// More flags of csi-sanity for that driver, such as
    /// `--csi.testvolumeparameters=parameters.yaml` or `--csi.secrets=secrets.yaml`
    #[arg(long, value_name = "FLAGS", requires = "driver", allow_hyphen_values = true)]
    options: Option<String>,
    /// The label of that driver in the output
    #[arg(long, default_value = "driver")]
    name: String,
    /// How to reach the driver; may be given more than once. `direct` comes first in any case: it
    /// is the measure
    #[arg(long = "way", value_enum, default_values = ["direct", "ws", "quic"])]
    ways: Vec<Way>,
    /// Put a network between csi-cloud and csi-edge that is far and slow, loses packets and mixes
    /// them up; needs root
    #[arg(long, conflicts_with = "nodes")]
    bad_network: bool,
    /// How many nodes have the driver; with more than one it is ours that is tried, unless --driver
    /// says another
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=20))]
    nodes: u8,
    /// The placements to run with several nodes; may be given more than once
    #[arg(
        long = "case",
        value_enum,
        default_values = ["pinned", "rebuilt", "spread"],
        requires = "nodes"
    )]
    cases: Vec<Case>,
    /// Where csi-sanity and the mock driver are
    #[arg(long, default_value = "tests/go/bin")]
    go_bin: PathBuf,
}

/// Runs the suite. A signal ends what runs, in order.
///
/// # Errors
/// A spec ends otherwise than it must, or something cannot be started.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let cancel = CancellationToken::new();
    let mut work = pin!(all(args, &cancel));
    loop {
        tokio::select! {
            result = &mut work => return result,
            _ = term.recv() => cancel.cancel(),
            _ = interrupt.recv() => cancel.cancel(),
        }
    }
}

async fn all(args: Args, cancel: &CancellationToken) -> anyhow::Result<()> {
    let mut drivers = match &args.driver {
        Some(command) => {
            let options = args.options.iter().flat_map(|of| of.split_whitespace());
            let driver = Driver {
                label: args.name.clone(),
                command: command.clone(),
                options: options.map(str::to_owned).collect(),
            };
            vec![(driver, None)]
        }
        None => own_drivers(&args.go_bin)?,
    };
    if args.nodes > 1 {
        drivers.truncate(1);
    }
    let mut problems = Vec::new();
    for (driver, expected) in &drivers {
        problems.extend(one(driver, *expected, &args, cancel).await);
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("not as it should be:\n  {}", problems.join("\n  "))
}

/// Runs a driver over every path and returns the faults. Specs through a link must end as in the
/// direct run.
async fn one(
    driver: &Driver,
    expected: Option<Counts>,
    args: &Args,
    cancel: &CancellationToken,
) -> Vec<String> {
    let direct = match tried(driver, Way::Direct, args, cancel).await {
        Ok(direct) => direct,
        Err(error) => return vec![format!("{error:#}")],
    };
    for line in direct.details() {
        println!("  {line}");
    }
    let mut problems = Vec::new();
    if let Some(expected) = expected.filter(|expected| *expected != direct.counts()) {
        problems.push(format!("sanity {} direct: expected {expected}", driver.label));
        problems.extend(direct.details().into_iter().take(5).map(|line| format!("  {line}")));
    }
    if args.nodes > 1 {
        problems.extend(several(driver, &direct, args, cancel).await);
        return problems;
    }
    for way in linked(args) {
        let title = title(driver, way, args);
        match tried(driver, way, args, cancel).await {
            Ok(report) => {
                let differences = report.differences(&direct).into_iter();
                problems.extend(differences.map(|line| format!("{title}: {line}")));
            }
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    problems
}

/// The ways with a link that are wanted.
fn linked(args: &Args) -> impl Iterator<Item = Way> {
    [Way::Ws, Way::Quic].into_iter().filter(|way| args.ways.contains(way))
}

/// Runs a driver at several nodes over every path and returns the faults.
async fn several(
    driver: &Driver,
    direct: &Report,
    args: &Args,
    cancel: &CancellationToken,
) -> Vec<String> {
    let cases = [Case::Pinned, Case::Rebuilt, Case::Spread].into_iter();
    let cases: Vec<_> = cases.filter(|case| args.cases.contains(case)).collect();
    let mut problems = Vec::new();
    for (way, case) in linked(args).flat_map(|way| cases.iter().map(move |case| (way, *case))) {
        let title = format!("{} with {} nodes, {}", title(driver, way, args), args.nodes, of(case));
        let ran = run_nodes(driver, way, args.nodes.into(), case, &args.go_bin, cancel).await;
        let report = match ran.with_context(|| title.clone()) {
            Ok(report) => report,
            Err(error) => {
                problems.push(format!("{error:#}"));
                continue;
            }
        };
        println!("{title}: {}", report.counts());
        let differences = match case {
            Case::Pinned | Case::Rebuilt => report.differences(direct),
            Case::Spread => spread_differences(&report, direct),
        };
        problems.extend(differences.into_iter().map(|line| format!("{title}: {line}")));
    }
    if cases.contains(&Case::Spread) {
        let all = direct.filtered(|spec| Part::Controller.has(spec)).counts();
        println!("  spread runs the controller's specs alone, direct: {all}; of these must fail:");
        for (name, why) in TIED {
            println!("  {name}: {why}");
        }
    }
    problems
}

fn of(case: Case) -> &'static str {
    match case {
        Case::Pinned => "pinned",
        Case::Rebuilt => "pinned, the store deleted half-way",
        Case::Spread => "spread",
    }
}

/// Runs one and prints its result.
async fn tried(
    driver: &Driver,
    way: Way,
    args: &Args,
    cancel: &CancellationToken,
) -> anyhow::Result<Report> {
    let title = title(driver, way, args);
    let between = if args.bad_network { Between::BadNetwork } else { Between::Nothing };
    let report =
        run(driver, way, between, &args.go_bin, cancel).await.with_context(|| title.clone())?;
    println!("{title}: {}", report.counts());
    Ok(report)
}

fn title(driver: &Driver, way: Way, args: &Args) -> String {
    let way = match (way, args.bad_network) {
        (Way::Direct, _) => "direct",
        (Way::Ws, false) => "ws",
        (Way::Quic, false) => "quic",
        (Way::Ws, true) => "ws over a bad network",
        (Way::Quic, true) => "quic over a bad network",
    };
    format!("sanity {} {way}", driver.label)
}

/// Our own driver, which implements everything, and a foreign one.
fn own_drivers(go_bin: &Path) -> anyhow::Result<Vec<(Driver, Option<Counts>)>> {
    let hostdir = Programs::beside_this()?.built("hostdir")?;
    let mock = std::path::absolute(go_bin.join("mockdriver"))?;
    let driver = |label: &str, program: PathBuf, more: &str| Driver {
        label: label.to_owned(),
        command: format!(
            "'{}' --endpoint {{endpoint}} --node-id {{node}}{more}",
            program.display()
        ),
        options: SMALL.map(str::to_owned).to_vec(),
    };
    let flags = " --state {state} --attach-limit 2";
    let one = driver("hostdir", hostdir.clone(), flags);
    let two = driver("hostdir-two", hostdir, &format!("{flags} --controller {{controller}}"));
    Ok(vec![(one, Some(ALL)), (two, Some(ALL)), (driver("mock", mock, ""), None)])
}
