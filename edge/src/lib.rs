//! csi-edge: executes calls from the cloud against the CSI drivers of one node, and serves the same
//! drivers to the node itself. This file only wires.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use edge_calls::denied_methods::DeniedMethods;
use edge_calls::drivers;
use edge_calls::drivers::{Drivers, FoundBy};
use edge_calls::executor::Executor;
use edge_calls::expansions::{Expansions, NodeExpansion};
use edge_calls::fence::Fence;
use edge_calls::introductions::{Introductions, KeptFor};
use edge_calls::metadata::Metadata;
use edge_calls::scopes::Scopes;
use edge_calls::watermark::NewestWatermark;
use edge_direct::device::host::Host;
use edge_direct::{Cloud, Direct, Settings};
use proto::admin::http1;
use proto::config::Common;
use proto::control::hello::Run;
use proto::control::machine::MachineId;
use proto::host::bind::until_bound;
use proto::host::program;
use proto::host::socket::{Socket, SocketError};
use proto::host::tasks;
use proto::host::tasks::{TaskKind, Tasks};
use proto::link::tls::{Credentials, Files, Role};
use proto::names::NodeName;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::admin::state::AdminState;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::discovery::table::Registrations;
use crate::front::Fronts;
use crate::identity::directory::NodeIdentity;
use crate::identity::expiry;
use crate::identity::machine;
use crate::identity::machine::SYS;
use crate::identity::source::{IdentitySource, Obtained};
use crate::link::dial::{Dial, Linked};
use crate::link::proxies;
use crate::state::first_link::FirstLink;

pub mod admin;
pub mod cli;
pub mod commands;
pub mod config;
pub mod discovery;
pub mod doctor;
pub mod front;
pub mod identity;
pub mod link;
pub mod state;

pub use edge_calls::Error;

/// The time limit for watchers to hear the last answer.
const WATCHING: Duration = Duration::from_secs(1);

/// Serves until the process is asked to stop. Then the cloud and the kubelet are told to begin no
/// call here, and calls in flight are finished within the configured grace.
///
/// # Errors
/// A certificate or a socket cannot be used; the text says which and what to do.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let doors = Tasks::default();
    tokio::select! {
        biased;
        panicked = doors.panicked() => Err(panicked.into()),
        served = serve_until_stop(config, &doors) => served,
    }
}

async fn serve_until_stop(config: Config, doors: &Tasks) -> anyhow::Result<()> {
    proxies::log(&config.proxy, &config.cloud);
    let Some(source) = named(&config, doors).await? else { return Ok(()) };
    let node = source.node().context("the certificate names no node")?;
    // What brings calls stops first, what executes them after it, and what shows it last.
    let (work, watching) = (doors.independent(), doors.independent());
    let drivers = configured(&config, &node)?;
    config.state.as_deref().map_or(Ok(()), state::look)?;
    let discovery = discovery(&config, &drivers);
    let cloud = cloud(config.state.as_deref(), &node);
    let executor = Arc::new(executor(&config, &drivers, &cloud, source.begun(), &work));
    let direct = Direct::open(direct(&config), executor.clone(), cloud.clone(), work.clone())?;
    let direct = Arc::new(direct);
    // Before any call: the entries that runtimes read must be true.
    direct.start().await;
    if let Some(directory) = config.fronts.clone() {
        let (drivers, direct) = (drivers.clone(), direct.clone());
        let fronts = Fronts::open(directory, drivers, direct, source.clone(), doors.clone())?;
        doors.spawn_until_stop(TaskKind::All("fronts"), fronts.keep());
    }
    drivers.keep(&work);
    work.spawn_until_stop(TaskKind::All("introductions"), drivers.clone().keep_introductions());
    work.spawn_until_stop(TaskKind::All("node infos"), executor.clone().ask_node_infos());
    let registrations = discover(discovery, doors);
    let Common { grace, workers, .. } = config.common;
    if workers == 1 {
        work.spawn_until_stop(TaskKind::All("busy-poll"), executor.busy_poll().clone().run());
    }
    let linking = Linking {
        source,
        node,
        drivers,
        executor,
        cloud,
        direct,
        linked: watch::Sender::default(),
        run: Run::begin(),
    };
    let admin = Arc::new(admin_state(&config, &linking, registrations));
    let first_link = admin.first_link.clone().follow(admin.linked.clone());
    work.spawn_until_stop(TaskKind::All("first link"), first_link);
    serve_admin(&config, &admin, &watching)?;
    let (other, is_other) = oneshot::channel();
    let dialing = linking.dial(config, other, doors.clone(), work.clone());
    doors.spawn(TaskKind::All("dial"), dialing);
    tokio::select! {
        biased;
        signalled = tasks::signal() => signalled.context("cannot listen to signals")?,
        Ok(error) = is_other => return Err(error),
    }
    tracing::info!(?grace, "stopping: no more calls are taken, those in flight are finished");
    admin.stop();
    finish(doors, &work, grace).await;
    watching.finish(WATCHING).await;
    Ok(())
}

/// The source of this node's identity, as soon as it is known which node this is; `None` if it was
/// told to stop before.
async fn named(config: &Config, doors: &Tasks) -> anyhow::Result<Option<Arc<IdentitySource>>> {
    let network = config.proxy.network();
    let state = config.state.as_deref();
    let source = IdentitySource::new(config.tls.clone(), config.join.clone(), network).or_kept_for(
        || state.and_then(Introductions::kept_for),
        machine::own_id(Path::new(SYS)).as_deref(),
    );
    if source.node().is_none() && source.joins() {
        let obtained = tokio::select! {
            biased;
            () = doors.stopped() => None,
            signalled = tasks::signal() => {
                signalled.context("cannot listen to signals")?;
                None
            }
            obtained = source.obtain() => Some(obtained),
        };
        if obtained.is_none() {
            return Ok(None);
        }
    } else if source.node().is_none() {
        // The text says what is wrong with the files.
        source.load()?;
    }
    Ok(Some(Arc::new(source)))
}

/// What links this node to the cloud, as soon as its identity can be used. The node is served
/// meanwhile: its kubelet needs no link for the volumes that it has.
struct Linking {
    source: Arc<IdentitySource>,
    node: NodeName,
    drivers: Arc<Drivers>,
    executor: Arc<Executor>,
    cloud: Cloud,
    direct: Arc<Direct>,
    linked: watch::Sender<Option<Linked>>,
    run: Run,
}

impl Linking {
    /// Waits for the identity, and keeps a link until told to stop. `other` gets the error if the
    /// identity is of another node by then.
    async fn dial(
        self,
        config: Config,
        other: oneshot::Sender<anyhow::Error>,
        doors: Tasks,
        work: Tasks,
    ) {
        let obtained = tokio::select! {
            biased;
            () = doors.stopped() => return,
            obtained = self.source.obtain() => obtained,
        };
        let Self { source, node, drivers, executor, cloud, direct, linked, run } = self;
        let Obtained { credentials, identity } = obtained;
        if credentials.node().ok().as_ref() != Some(&node) {
            let named = credentials.node().map(|named| named.to_string()).unwrap_or_default();
            // Nobody listens if it is stopping.
            let _ = other.send(anyhow::anyhow!(
                "the identity is of node {named} now, and this is node {node}; csi-edge ends, to \
                 be started as that node"
            ));
            return;
        }
        watch_certificates(&credentials, &config.tls, identity.as_ref(), &work);
        if let Some(identity) = identity.clone() {
            let joining = async move { source.join_again(&identity).await };
            work.spawn_until_stop(TaskKind::All("join"), joining);
        }
        let dial = Dial {
            cloud: config.cloud.clone(),
            return_after: config.return_after,
            credentials,
            identity,
            node,
            drivers,
            executor,
            scopes: cloud.scopes,
            leases: cloud.leases,
            metadata: cloud.metadata,
            not_taken: direct.not_taken(),
            expands: config.node_expansion == NodeExpansion::Edge,
            linked,
            keep_alive: config.common.keep_alive,
            network: config.proxy.network(),
            answers_challenge: direct.has_state(),
            run,
            machine: machine::own_id(Path::new(SYS)).map(|own| MachineId::new(&own)),
        };
        dial.keep(rand::make_rng(), doors).await;
    }
}

/// The kept settings and metadata from the cloud.
fn cloud(state: Option<&Path>, node: &NodeName) -> Cloud {
    Cloud {
        leases: Arc::default(),
        scopes: Arc::new(state.map(Scopes::open).unwrap_or_default()),
        metadata: Arc::new(Metadata::open(state, node)),
    }
}

/// Executes the calls of these drivers. The node's certificate began then.
fn executor(
    config: &Config,
    drivers: &Arc<Drivers>,
    cloud: &Cloud,
    begun: SystemTime,
    tasks: &Tasks,
) -> Executor {
    let fence = Fence::open(config.state.as_deref(), drivers.node().clone()).not_before(begun);
    let boot = Host::default().boot();
    let denied = DeniedMethods::open(&config.deny, config.state.as_deref(), &boot);
    let expansions = config.state.as_deref().and_then(|state| {
        let is_direct = Direct::is_direct(state.to_owned());
        Expansions::open(config.node_expansion, state, &boot, cloud.scopes.clone(), is_direct)
    });
    let watermark = NewestWatermark::open(config.state.as_deref(), tasks.clone());
    Executor::new(drivers.clone(), tasks.clone())
        .with_watermark(watermark)
        .with_scopes(cloud.scopes.clone())
        .with_denied_methods(denied)
        .with_delete_guard(Direct::delete_guard(config.state.clone()))
        .with_expansions(expansions.map(Arc::new))
        .with_fence(fence)
}

/// The settings of direct volumes.
fn direct(config: &Config) -> Settings {
    Settings {
        state: config.state.clone(),
        roots: config.runtimes.clone(),
        checks: config.checks.clone(),
        nvme: config.nvme,
        targets: config.targets.clone(),
        ..Settings::default()
    }
}

/// The drivers that the configuration names.
fn configured(config: &Config, node: &NodeName) -> anyhow::Result<Arc<Drivers>> {
    let of = KeptFor { node: node.clone(), machine: machine::own_id(Path::new(SYS)) };
    let introductions = Introductions::open(config.state.as_deref(), of);
    let drivers = Drivers::new(node.clone(), drivers::unix()).with_introductions(introductions);
    for (name, sockets) in &config.drivers {
        drivers.add(name.clone(), sockets.clone(), FoundBy::Configuration)?;
    }
    Ok(Arc::new(drivers))
}

/// What finds further drivers, if that is configured. Those that were found before are added.
fn discovery(config: &Config, drivers: &Arc<Drivers>) -> Option<Discovery> {
    let settings = config.discovery.clone()?;
    let discovery = Discovery::new(settings, config.fronts.clone(), drivers.clone());
    Some(discovery.with_state(config.state.as_deref()))
}

/// Finds further drivers from now on.
fn discover(discovery: Option<Discovery>, tasks: &Tasks) -> Arc<Registrations> {
    let Some(discovery) = discovery else { return Arc::default() };
    let found = discovery.found();
    tasks.spawn_until_stop(TaskKind::All("discovery"), discovery.keep());
    found
}

/// The data that admin commands show.
fn admin_state(
    config: &Config,
    linking: &Linking,
    registrations: Arc<Registrations>,
) -> AdminState {
    AdminState {
        drivers: linking.drivers.clone(),
        executor: linking.executor.clone(),
        registrations,
        linked: linking.linked.subscribe(),
        first_link: Arc::new(FirstLink::open(config.state.as_deref(), &config.cloud)),
        identity: Some(linking.source.clone()),
        state: config.state.clone(),
        roots: config.runtimes.clone(),
        kubelets: config.targets.clone(),
        metadata: linking.cloud.metadata.clone(),
        not_taken: linking.direct.not_taken(),
        run: linking.run,
        began: Instant::now(),
        stopping: AtomicBool::default(),
    }
}

/// Serves the admin socket, and monitoring over HTTP, where they are configured. What cannot be
/// bound yet is tried again.
fn serve_admin(config: &Config, state: &Arc<AdminState>, tasks: &Tasks) -> Result<(), SocketError> {
    if let Some(path) = config.admin.clone() {
        let bind = move || Socket::bind_for(&path, http1::MODE);
        let first = match bind() {
            Err(error) if !error.may_pass() => return Err(error),
            first => first,
        };
        let (state, stop) = (state.clone(), tasks.clone());
        tasks.spawn(TaskKind::All("admin"), async move {
            if let Some(socket) = until_bound("the admin socket", first, bind, &stop).await {
                admin::server::serve(state, socket, stop).await;
            }
        });
    }
    if let Some(address) = config.http {
        let (state, stop) = (state.clone(), tasks.clone());
        tasks.spawn(TaskKind::All("http"), async move {
            let served = format!("HTTP on {address} (http, --http)");
            let first = http_listener(address);
            let bound = until_bound(&served, first, || http_listener(address), &stop).await;
            let Some(listener) = bound else { return };
            if let Ok(address) = listener.local_addr() {
                program::tell(format_args!("http {address}"));
            }
            admin::server::serve_http(state, listener, stop).await;
        });
    }
    Ok(())
}

fn http_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Stops the sources of calls, and then their execution, within one grace period.
async fn finish(doors: &Tasks, work: &Tasks, grace: Duration) {
    let end = Instant::now() + grace;
    if doors.finish_before(tasks::patience(grace)).await {
        // Calls without a caller run to their end all the same.
        let left = end.saturating_duration_since(Instant::now());
        work.finish_before(tasks::patience(left)).await;
    }
}

/// Takes changed files, and logs when the certificate ends.
fn watch_certificates(
    credentials: &Credentials,
    files: &Files,
    identity: Option<&NodeIdentity>,
    tasks: &Tasks,
) {
    let current = credentials.clone().keep_current(files.clone(), Role::Node);
    tasks.spawn_until_stop(TaskKind::All("certificates"), current);
    let end = expiry::watch(credentials.clone(), identity.is_some());
    tasks.spawn_until_stop(TaskKind::All("certificate's end"), end);
    if let Some(identity) = identity {
        let written = identity.clone().keep_written();
        tasks.spawn_until_stop(TaskKind::All("certificate on disk"), written);
    }
}
