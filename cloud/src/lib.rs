//! csi-cloud: serves CSI in the cloud, one socket per driver, and passes each call to the node it is for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use proto::config::Common;
use proto::host::socket::Socket;
use proto::host::tasks;
use proto::host::tasks::Tasks;
use proto::link::tls::{Credentials, Role};
use proto::names::DriverName;
use tokio::net::TcpListener;

use crate::admin::admin_state::AdminState;
use crate::admin::health::{self, Health};
use crate::config::Config;
use crate::csi::front::Front;
use crate::csi::node_fronts::NodeFronts;
use crate::nodes::accept::Acceptor;
use crate::nodes::links::Links;
use crate::relay::listen::RelayListener;
use crate::state::policy::Policy;
use crate::state::store::measured::Measured;
use crate::state::store::url::StoreAt;
use crate::state::store::writer::Store;
use crate::telemetry::calls::Calls;

pub mod admin;
pub mod cli;
pub mod config;
pub mod csi;
pub mod error;
pub mod kubernetes;
pub mod lease;
pub mod nodes;
pub mod pki;
pub mod relay;
pub mod rewrite;
pub mod state;
pub mod telemetry;

/// How long links may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// Serves until the process is asked to stop; then callers and edges are told to go elsewhere, and calls in
/// flight are finished, for as long as the configured grace.
///
/// # Errors
/// A certificate, an address or a socket cannot be used; the text says which and what to do.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let credentials = Credentials::load(&config.tls, Role::Cloud)?;
    let sockets = bind(&config)?;
    let admin = Socket::bind_for(&config.admin, admin::server::MODE)?;
    // Fronts stop first and the links after them, so that calls in flight are answered. Who watches, watches that.
    let (fronts, edges) = (Tasks::default(), Tasks::default());
    let (keeping, watching) = (Tasks::default(), Tasks::default());
    let health = Arc::new(Health::default());
    if let Some(address) = config.http {
        let cannot = || format!("cannot serve HTTP on {address} (http, --http)");
        let listener = TcpListener::bind(address).await.with_context(cannot)?;
        println!("http {}", listener.local_addr().with_context(cannot)?);
        watching.spawn("http", health::serve(listener, health.clone(), watching.clone()));
    }
    let calls = Arc::new(Calls::default());
    let store = open(config.store, &calls, &keeping).await?;
    let links = Arc::new(
        Links::new(store.clone(), edges.clone(), lease::answer::answer).scoped(&config.policies),
    );
    let Common { grace, keep_alive, workers, .. } = config.common;
    if workers == 1 {
        keeping.spawn_until_stop("awake", calls.awake.clone().run());
    }
    let acceptor = Acceptor::new(links.clone(), config.limits, keep_alive, edges.clone());
    for endpoint in &config.listen {
        acceptor.listen(endpoint, &credentials).await?;
    }
    let mut by_driver = BTreeMap::new();
    for (driver, socket) in sockets {
        let policy = config.policies.get(&driver).cloned();
        let policy = policy.unwrap_or_else(|| Policy::new(config.default_node.as_ref()));
        let front = Front::new(driver.clone(), policy, store.clone(), links.clone(), calls.clone());
        let front = Arc::new(front);
        by_driver.insert(driver, front.clone());
        fronts.spawn("front", front.serve(socket, fronts.clone()));
    }
    if let Some(directory) = config.fronts.as_deref().filter(|_| config.node_fronts) {
        let nodes = NodeFronts::new(directory, by_driver.clone());
        fronts.spawn("node fronts", nodes.keep(fronts.clone()));
    }
    let holders = RelayListener::new(by_driver.clone(), fronts.clone());
    holders.listen(&config.holders, &credentials).await?;
    let policies = config.policies;
    let kubernetes: Option<Arc<kubernetes::published::Published>> =
        config.kubernetes.as_ref().map(|_| Arc::default());
    if let (Some(settings), Some(published)) = (config.kubernetes, &kubernetes) {
        let facts = kubernetes::keeper::Facts {
            store: store.clone(),
            links: links.clone(),
            calls: calls.clone(),
            policies: policies.clone(),
            csidrivers: config.csidrivers,
        };
        kubernetes::run::start(settings, facts, published.clone(), &watching).await?;
    }
    let state =
        AdminState { store, links: links.clone(), calls, policies, fronts: by_driver, kubernetes };
    let state = Arc::new(state);
    health.ready(state.clone());
    watching.spawn("admin", admin::server::serve(state, admin, watching.clone()));
    println!("ready");
    tasks::signal().await.context("cannot listen to signals")?;
    tracing::info!(
        ?grace,
        "stopping: edges are told to go elsewhere, calls in flight are finished"
    );
    health.stopping();
    links.drain();
    fronts.finish_before(tasks::patience(grace)).await;
    edges.finish(GOODBYE).await;
    watching.finish(GOODBYE).await;
    keeping.finish(GOODBYE).await;
    Ok(())
}

/// Opens the store. A large one takes seconds, in which it is said that this process lives.
async fn open(at: StoreAt, calls: &Arc<Calls>, tasks: &Tasks) -> anyhow::Result<Store> {
    let (metrics, tasks) = (calls.clone(), tasks.clone());
    let opening =
        move || Store::open(Box::new(Measured::new(at.open()?, metrics.metrics.commits())), &tasks);
    Ok(tokio::task::spawn_blocking(opening).await.context("the store was not opened")??)
}

/// The drivers, with the sockets of their fronts if there are to be any.
fn bind(config: &Config) -> anyhow::Result<Vec<(DriverName, Option<Socket>)>> {
    let Some(directory) = &config.fronts else {
        return Ok(config.drivers.iter().map(|driver| (driver.clone(), None)).collect());
    };
    let making = || format!("the directory of the fronts, {}, cannot be made", directory.display());
    std::fs::create_dir_all(directory).with_context(making)?;
    let socket = |driver: &DriverName| Socket::bind(&directory.join(format!("{driver}.sock")));
    config.drivers.iter().map(|driver| Ok((driver.clone(), Some(socket(driver)?)))).collect()
}
