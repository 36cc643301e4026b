//! `make twin`: the scenarios with the driver alone and behind us, side by side.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use futures_util::future::TryFutureExt;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use harness::twin::{TwinRow, report};

use super::habits::HABITS;
use super::places::PLACES;
use super::scenarios::{ALL, Scenario};
use super::scene::Scene;
use crate::sanity::run::Way;

/// Scenarios that run at the same time.
const AT_ONCE: usize = 3;

/// Runs scenarios of the field with a driver on grpc-go that is called directly, and through
/// csi-cloud and csi-edge over both transports.
///
/// It fails where the driver is worse behind us than the scenario allows.
#[derive(clap::Args)]
pub struct Args {
    /// Only scenarios whose name has this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Where the driver is
    #[arg(long, default_value = "tests/go/bin")]
    go_bin: PathBuf,
}

/// Runs them.
///
/// # Errors
/// Something does not start, or a scenario is worse behind us than it may be.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let of_name = |scenario: &&Scenario| scenario.name.contains(&args.only);
    // The longest one is first.
    let chosen: Vec<_> = HABITS.iter().chain(PLACES).chain(ALL).filter(of_name).collect();
    // They wait most of the time, so all ways of all scenarios run at once, a few at a time.
    let numbered = chosen.into_iter().enumerate().map(|(number, scenario)| {
        let measured = measured(scenario, &args.go_bin);
        measured.map_ok(move |row| (number, row))
    });
    let measured = stream::iter(numbered).buffer_unordered(AT_ONCE);
    let rows: BTreeMap<_, _> = measured.try_collect().await?;
    report(&rows.into_values().collect::<Vec<_>>())
}

async fn measured(scenario: &'static Scenario, go_bin: &Path) -> anyhow::Result<TwinRow> {
    let of = |way| measure(scenario, way, go_bin);
    let (alone, ws, quic) = tokio::try_join!(of(Way::Direct), of(Way::Ws), of(Way::Quic))?;
    let Scenario { name, unit, bound, .. } = *scenario;
    Ok(TwinRow { name, unit, bound, alone, behind: [ws, quic] })
}

async fn measure(scenario: &Scenario, way: Way, go_bin: &Path) -> anyhow::Result<f64> {
    let what = || format!("{}, {way:?}", scenario.name);
    let Scenario { flags, nodes, .. } = scenario;
    let mut scene = Scene::start(way, go_bin, flags, nodes).await.with_context(what)?;
    if !scenario.is_start {
        scene.ready().await.with_context(what)?;
    }
    let took = (scenario.run)(&mut scene).await.with_context(what);
    scene.stop().await.with_context(what)?;
    took
}
