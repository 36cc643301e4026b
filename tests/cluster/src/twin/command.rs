//! The second half of `make twin`: scenarios of claims, side by side.

use std::sync::Arc;

use anyhow::{Context, bail};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use harness::twin::{TwinRow, report};
use proto::host::tasks::signal;

use super::plane::Plane;
use super::scenarios::{ALL, ClaimScenario};
use super::scene::{ClaimScene, driver_of};
use crate::stand::ground::Ground;

/// How a scene reaches its drivers, and the scheme of csi-cloud's URL.
const WAYS: [(&str, Option<&str>); 3] =
    [("alone", None), ("ws", Some("wss")), ("quic", Some("quic"))];
/// Scenarios that run at the same time, each of them in all ways.
const AT_ONCE: usize = 2;

/// Claims at a real API server: a driver at three nodes with external-provisioner next to it at
/// each of them, and with csi-cloud and csi-edge between over both transports.
///
/// It fails where claims are worse behind us than the scenario allows.
#[derive(clap::Args)]
pub struct Args {
    /// Only scenarios whose name has this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// Runs them.
///
/// # Errors
/// Something does not start, or a scenario is worse behind us than it may be.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let of_name = |(_, scenario): &(usize, &ClaimScenario)| scenario.name.contains(&args.only);
    let chosen: Vec<_> = ALL.iter().enumerate().filter(of_name).collect();
    if chosen.is_empty() {
        return report(&[]);
    }
    let dir = tempfile::Builder::new().prefix("ect-").tempdir()?;
    let mut drivers = Vec::new();
    for (number, _) in &chosen {
        drivers.extend(WAYS.map(|(way, _)| driver_of(&scene_name(way, *number))));
    }
    let plane = Arc::new(Plane::start(Ground::new(dir.path())?, &drivers).await?);
    let measuring = stream::iter(chosen)
        .map(|(number, scenario)| measured(scenario, number, &plane))
        .buffered(AT_ONCE)
        .try_collect::<Vec<_>>();
    let rows = tokio::select! {
        biased;
        stopped = signal() => {
            stopped?;
            bail!("stopped");
        }
        rows = measuring => rows,
    };
    plane.stop().await?;
    report(&rows?)
}

async fn measured(
    scenario: &'static ClaimScenario,
    number: usize,
    plane: &Arc<Plane>,
) -> anyhow::Result<TwinRow> {
    let [alone, ws, quic] = WAYS.map(|(way, scheme)| async move {
        let scene = ClaimScene::start(plane.clone(), scene_name(way, number), scheme);
        let what = || format!("{}, {way}", scenario.name);
        measure(scenario, scene.await.with_context(what)?).await.with_context(what)
    });
    let (alone, ws, quic) = tokio::try_join!(alone, ws, quic)?;
    let ClaimScenario { name, unit, bound, .. } = *scenario;
    Ok(TwinRow { name, unit, bound, alone, behind: [ws, quic] })
}

async fn measure(scenario: &ClaimScenario, mut scene: ClaimScene) -> anyhow::Result<f64> {
    let measured = (scenario.run)(&mut scene).await.with_context(|| scene.log_tails());
    let stopped = scene.stop().await;
    measured.and_then(|measured| stopped.map(|()| measured))
}

/// The name of a scene, which no other one has.
fn scene_name(way: &str, number: usize) -> String {
    format!("{way}-{number}")
}
