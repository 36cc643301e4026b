//! csi-edge: carries calls from the cloud out against the CSI drivers of one node, and serves the same
//! drivers to the node itself.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use proto::link::tls::{Credentials, Role};
use proto::link::{KeepAlive, ws};
use proto::socket::Socket;
use proto::stop::{self, Tasks};

use crate::calls::Calls;
use crate::config::Config;
use crate::dial::Dial;
use crate::drivers::Drivers;

pub mod calls;
pub mod cli;
pub mod config;
pub mod dial;
pub mod drivers;
pub mod front;
pub mod share;

/// How long calls in flight may still take when csi-edge is told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Serves until the process is asked to stop.
///
/// # Errors
/// A certificate or a socket cannot be used; the text says which and what to do.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let credentials = Credentials::load(&config.tls, Role::Node)?;
    let node = credentials.node()?;
    let tasks = Tasks::default();
    let drivers = Arc::new(Drivers::new(config.drivers, drivers::unix()));
    let calls = Arc::new(Calls::new(drivers.all(), tasks.clone()));
    if let Some(fronts) = &config.fronts {
        let making = || format!("the directory of the fronts, {}, cannot be made", fronts.display());
        std::fs::create_dir_all(fronts).with_context(making)?;
        for driver in drivers.all() {
            let socket = Socket::bind(&fronts.join(format!("{}.sock", driver.name)))?;
            tasks.spawn("front", front::serve(driver.name.clone(), calls.clone(), socket, tasks.clone()));
        }
    }
    drivers.keep(&tasks);
    let keep_alive = KeepAlive::default();
    let dial =
        Dial { endpoint: config.cloud, credentials, node, drivers, calls, keep_alive, connect: ws::tcp() };
    tasks.spawn("dial", dial.keep(tasks.clone()));
    stop::signal().await.context("cannot listen to signals")?;
    tracing::info!("stopping");
    tasks.finish(GRACE).await;
    Ok(())
}
