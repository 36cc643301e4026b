//! csi-edge: carries calls from the cloud out against the CSI drivers of one node, and serves the same
//! drivers to the node itself.

use std::sync::Arc;

use anyhow::Context;
use proto::config::Common;
use proto::host::socket::Socket;
use proto::host::tasks;
use proto::host::tasks::Tasks;
use proto::link::tls::{Credentials, Role};
use proto::link::ws;
use tokio::time::Instant;

use crate::calls::Calls;
use crate::config::Config;
use crate::dial::Dial;
use crate::direct::alone::Alone;
use crate::direct::{Direct, Places};
use crate::drivers::Drivers;
use crate::scopes::Scopes;

pub mod calls;
pub mod cli;
pub mod config;
pub mod dial;
pub mod direct;
pub mod drivers;
pub mod front;
pub mod scopes;
pub mod share;
mod topology;

/// Serves until the process is asked to stop; then the cloud and the kubelet are told to begin no call here, and
/// those in flight are finished, for as long as the configured grace.
///
/// # Errors
/// A certificate or a socket cannot be used; the text says which and what to do.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let credentials = Credentials::load(&config.tls, Role::Node)?;
    let node = credentials.node()?;
    // What brings calls stops first, and what carries them out after it.
    let (doors, work) = (Tasks::default(), Tasks::default());
    let drivers = Arc::new(Drivers::new(config.drivers, drivers::unix()));
    let scopes = config.state.as_deref().map(Scopes::open).transpose()?.unwrap_or_default();
    let calls = Calls::new(drivers.all(), work.clone()).scoped(scopes).keeping(config.state.clone());
    let calls = Arc::new(calls);
    let _alone = config.state.as_deref().map(Alone::on).transpose()?;
    let places = Places { state: config.state, roots: config.runtimes, ..Places::default() };
    let direct = Arc::new(Direct::new(calls.clone(), places, work.clone()));
    // Before anybody can ask: what the runtime is told must be true.
    direct.reconcile().await;
    direct.settle_owners();
    work.spawn_until_stop("owners", direct.clone().keep_owners());
    if let Some(fronts) = &config.fronts {
        let making = || format!("the directory of the fronts, {}, cannot be made", fronts.display());
        std::fs::create_dir_all(fronts).with_context(making)?;
        for driver in drivers.all() {
            let socket = Socket::bind(&fronts.join(format!("{}.sock", driver.name)))?;
            let (name, node) = (driver.name.clone(), node.clone());
            doors.spawn("front", front::serve(name, node, direct.clone(), socket, doors.clone()));
        }
    }
    drivers.keep(&work);
    let (cloud, return_after, connect) = (config.cloud, config.return_after, ws::tcp());
    let Common { grace, keep_alive, workers, .. } = config.common;
    if workers == 1 {
        work.spawn_until_stop("awake", calls.awake().clone().keep());
    }
    let dial = Dial { cloud, return_after, credentials, node, drivers, calls, keep_alive, connect };
    doors.spawn("dial", dial.keep(rand::make_rng(), doors.clone()));
    tasks::signal().await.context("cannot listen to signals")?;
    tracing::info!(?grace, "stopping: no more calls are taken, those in flight are finished");
    let end = Instant::now() + grace;
    if doors.finish_before(tasks::patience(grace)).await {
        // Calls that nobody waits for any more; they run to their end all the same.
        work.finish_before(tasks::patience(end.saturating_duration_since(Instant::now()))).await;
    }
    Ok(())
}
