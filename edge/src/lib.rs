//! csi-edge: executes calls from the cloud against the CSI drivers of one node, and serves the same
//! drivers to the node itself. This file only wires.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use edge_calls::authority::Authority;
use edge_calls::drivers;
use edge_calls::drivers::Drivers;
use edge_calls::executor::Executor;
use edge_calls::expansions::{Expansions, NodeExpansion};
use edge_calls::introductions::Introductions;
use edge_calls::lease_client::LeaseClient;
use edge_calls::scopes::Scopes;
use edge_direct::device::host::Host;
use edge_direct::{Cloud, Direct, Settings};
use proto::config::Common;
use proto::host::socket::Socket;
use proto::host::tasks;
use proto::host::tasks::Tasks;
use proto::link::tls::{Credentials, Files, Role};
use proto::link::ws;
use proto::names::NodeName;
use tokio::time::Instant;

use crate::config::Config;
use crate::identity::directory::{Directory, IdentityState, NodeIdentity};
use crate::identity::expiry;
use crate::link::dial::Dial;

pub mod cli;
pub mod config;
pub mod front;
pub mod identity;
pub mod link;
pub mod state;

pub use edge_calls::Error;

/// Serves until the process is asked to stop. Then the cloud and the kubelet are told to begin no
/// call here, and calls in flight are finished within the configured grace.
///
/// # Errors
/// A certificate or a socket cannot be used; the text says which and what to do.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let (credentials, identity) = identity(&config).await?;
    let node = credentials.node()?;
    // What brings calls stops first, and what executes them after it.
    let doors = Tasks::default();
    let work = Tasks::default();
    let drivers = Arc::new(Drivers::new(config.drivers, drivers::unix()));
    config.state.as_deref().inspect(|state| state::look(state));
    let scopes = config.state.as_deref().map(Scopes::open);
    let scopes = Arc::new(scopes.unwrap_or_default());
    let leases = Arc::new(LeaseClient::default());
    let boot = Host::default().boot();
    let authority = Authority::open(config.deny, config.state.as_deref(), &boot);
    let introductions = Arc::new(Introductions::open(config.state.as_deref(), node.clone()));
    let by = config.node_expansion;
    let expansions = config.state.as_deref().and_then(|state| {
        let is_direct = Direct::is_direct(state.to_owned());
        Expansions::open(by, state, &boot, scopes.clone(), is_direct)
    });
    let executor = Executor::new(drivers.all(), work.clone())
        .with_scopes(scopes.clone())
        .with_introductions(introductions.clone())
        .with_authority(authority)
        .with_delete_guard(Direct::delete_guard(config.state.clone()))
        .with_expansions(expansions.map(Arc::new));
    let executor = Arc::new(executor);
    let settings = Settings {
        state: config.state,
        roots: config.runtimes,
        checks: config.checks,
        nvme: config.nvme,
        targets: config.targets,
        ..Settings::default()
    };
    let cloud = Cloud { leases: leases.clone(), scopes: scopes.clone() };
    let direct = Arc::new(Direct::open(settings, executor.clone(), cloud, work.clone())?);
    // Before any call: the entries that runtimes read must be true.
    direct.start().await;
    if let Some(fronts) = &config.fronts {
        serve_fronts(fronts, &drivers, &node, &direct, &doors)?;
    }
    drivers.keep(&work);
    work.spawn_until_stop("introductions", introductions.follow(drivers.clone()));
    watch_certificates(&credentials, config.tls, identity.is_some(), &work);
    let Common { grace, keep_alive, workers, .. } = config.common;
    if workers == 1 {
        work.spawn_until_stop("busy-poll", executor.busy_poll().clone().run());
    }
    let dial = Dial {
        cloud: config.cloud,
        return_after: config.return_after,
        credentials,
        identity,
        node,
        drivers,
        executor,
        scopes,
        leases,
        not_taken: direct.not_taken(),
        expands: by == NodeExpansion::Edge,
        keep_alive,
        connect: ws::tcp(),
    };
    doors.spawn("dial", dial.keep(rand::make_rng(), doors.clone()));
    tasks::signal().await.context("cannot listen to signals")?;
    tracing::info!(?grace, "stopping: no more calls are taken, those in flight are finished");
    finish(&doors, &work, grace).await;
    Ok(())
}

/// Ends what brings calls, and then what executes them, within the grace for both.
async fn finish(doors: &Tasks, work: &Tasks, grace: Duration) {
    let end = Instant::now() + grace;
    if doors.finish_before(tasks::patience(grace)).await {
        // Calls without a caller run to their end all the same.
        let left = end.saturating_duration_since(Instant::now());
        work.finish_before(tasks::patience(left)).await;
    }
}

/// Takes changed files, and logs when the certificate ends.
fn watch_certificates(credentials: &Credentials, files: Files, renews: bool, tasks: &Tasks) {
    let current = credentials.clone().keep_current(files, Role::Node);
    tasks.spawn_until_stop("certificates", current);
    tasks.spawn_until_stop("certificate's end", expiry::watch(credentials.clone(), renews));
}

/// The credentials, and the identity behind them if csi-edge renews it. Without an identity, or
/// with one that is over, it joins if it is told how.
async fn identity(config: &Config) -> anyhow::Result<(Credentials, Option<NodeIdentity>)> {
    if !config.tls.is_identity() {
        return Ok((Credentials::load(&config.tls, Role::Node)?, None));
    }
    let dir = config.tls.cert.parent().unwrap_or_else(|| Path::new("."));
    let directory = Directory::new(dir);
    if let (Some(join), IdentityState::Empty | IdentityState::Over) =
        (&config.join, directory.state(SystemTime::now()))
    {
        let node = join.persist(&directory, &ws::tcp()).await;
        tracing::info!(%node, cloud = %join.cloud.endpoint, "joined");
    }
    let credentials = Credentials::load(&config.tls, Role::Node)
        .context("csi-edge has no identity; `csi-edge join --help` says how to get one")?;
    let identity = NodeIdentity::new(directory, credentials.clone());
    Ok((credentials, Some(identity)))
}

/// Serves one socket for each driver in this directory.
fn serve_fronts(
    fronts: &Path,
    drivers: &Drivers,
    node: &NodeName,
    direct: &Arc<Direct>,
    doors: &Tasks,
) -> anyhow::Result<()> {
    let making = || format!("the directory of the fronts, {}, cannot be made", fronts.display());
    std::fs::create_dir_all(fronts).with_context(making)?;
    for driver in drivers.all() {
        let socket = Socket::bind(&fronts.join(format!("{}.sock", driver.name)))?;
        let name = driver.name.clone();
        let front = front::serve(name, node.clone(), direct.clone(), socket, doors.clone());
        doors.spawn("front", front);
    }
    Ok(())
}
