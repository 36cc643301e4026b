//! csi-cloud: serves CSI in the cloud, one socket per driver, and passes each call to its node.
//! This file only wires.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use proto::admin::http1;
use proto::config::Common;
use proto::host::clock;
use proto::host::program;
use proto::host::program::StartAgain;
use proto::host::socket::Socket;
use proto::host::tasks;
use proto::host::tasks::{TaskKind, Tasks};
use proto::link::tls;
use proto::link::tls::{Credentials, Files};
use proto::names::DriverName;
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::admin::admin_state::AdminState;
use crate::admin::health::{self, Health};
use crate::config::Config;
use crate::csi::front::Front;
use crate::csi::node_fronts::NodeFronts;
use crate::kubernetes::csidriver::CsiDriverSettings;
use crate::kubernetes::keeper::KeeperSources;
use crate::kubernetes::published::Published;
use crate::kubernetes::settings::Kubernetes;
use crate::kubernetes::{objects, token_review, trust, volumes};
use crate::nodes::accept::Acceptor;
use crate::nodes::connections;
use crate::nodes::links::Links;
use crate::nodes::published_topology::ByNode;
use crate::pki::enrolment;
use crate::pki::enrolment::Enrolment;
use crate::pki::issuers::Issuers;
use crate::pki::own;
use crate::relay::listen::RelayListener;
use crate::state::known::State;
use crate::state::listed;
use crate::state::policy::Policy;
use crate::state::store::leadership::{Leadership, Role};
use crate::state::store::measured::{CommitMetrics, Measured};
use crate::state::store::replicated::Joining;
use crate::state::store::url::Opened;
use crate::state::store::writer::Store;
use crate::telemetry::calls::Calls;
use crate::telemetry::metrics::Commits;

pub mod admin;
pub mod cli;
pub mod config;
pub mod csi;
pub mod error;
pub mod etcd;
pub mod explain;
pub mod kubernetes;
pub mod lease;
pub mod metadata;
pub mod nodes;
pub mod pki;
pub mod relay;
pub mod rewrite;
pub mod state;
pub mod telemetry;
pub mod view;

/// The time limit for calls when one of several csi-clouds ends. Calls of relays are given back
/// after half a second.
const HANDOVER: Duration = Duration::from_millis(700);
/// The time limit for goodbyes of links.
const GOODBYE: Duration = Duration::from_secs(2);

/// The tasks of csi-cloud, in the order in which they end.
struct Groups {
    /// Fronts end first, so that calls in flight are answered.
    fronts: Tasks,
    /// The links, which calls in flight need.
    edges: Tasks,
    /// The tasks of watchers, until the last link is gone.
    watching: Tasks,
    /// The store.
    keeping: Tasks,
}

impl Groups {
    /// Groups that end one after another, and with which the program ends if one panics.
    fn new() -> Self {
        let fronts = Tasks::default();
        let [edges, watching, keeping] = [(); 3].map(|()| fronts.independent());
        Self { fronts, edges, watching, keeping }
    }
}

/// Serves until the process is asked to stop. Then callers and edges are told to go elsewhere, and
/// calls in flight are finished within the configured grace.
///
/// # Errors
/// A certificate, an address or a socket cannot be used; the text says which and what to do.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    // From the beginning: a start may wait for the store, and process 1 has no other way to end.
    let stop = tasks::stop_signal().context("cannot listen to signals")?;
    let groups = Groups::new();
    let fate = groups.fronts.independent();
    tokio::select! {
        biased;
        panicked = fate.panicked() => Err(panicked.into()),
        served = serve_until(stop, groups, config) => served,
    }
}

async fn serve_until(
    stop: impl Future<Output = ()>,
    groups: Groups,
    config: Config,
) -> anyhow::Result<()> {
    tokio::pin!(stop);
    let grace = config.common.grace;
    let new_leases = config.new_leases;
    let started = tokio::select! {
        biased;
        () = &mut stop => None,
        started = start(config, &groups) => Some(started?),
    };
    let Some((state, health)) = started else {
        info!("told to stop before it was ready");
        groups.keeping.finish(GOODBYE).await;
        return Ok(());
    };
    program::tell("ready");
    let ended = tokio::select! {
        biased;
        () = stop => Ok(()),
        () = state.store.leadership().resigning() => Ok(()),
        () = state.store.writable_again() => Err(StartAgain(
            "a commit failed, and the disk of the store takes changes again"
        ).into()),
        ended = lead(&state, new_leases) => ended,
    };
    finish(groups, &state, &health, grace).await;
    ended
}

/// Starts all that serves, and waits for the store.
async fn start(
    mut config: Config,
    groups: &Groups,
) -> anyhow::Result<(Arc<AdminState>, Arc<Health>)> {
    let installation = config.installation();
    let (credentials, issuers) = identity(&mut config)?;
    let sockets = bind(&config)?;
    let admin = Socket::bind_for(&config.admin, http1::MODE)?;
    let view = bind_view(&config)?;
    let health = Arc::new(Health::default());
    serve_http(config.http, &health, &groups.watching).await?;
    warn_of_calls(&config);
    let calls = Arc::new(Calls::default());
    let store = open(&config, &calls, &health, &groups.keeping).await?;
    let store = store.with_quotas(config.quotas).with_creates_held(!config.new_leases);
    let roles = follow_roles(store.leadership().clone(), calls.clone());
    groups.watching.spawn_until_stop(TaskKind::All("roles"), roles);
    if store.leadership().leads() {
        judge_store(&store, config.new_leases).await?;
    }
    let secrets = store.secrets().await.context("csi-cloud has no secret keys")?;
    let credentials =
        credentials.with_secret(*secrets.resets.expose()).with_admit(enrolment::admit(&store));
    let links = links(&config, &store, issuers, &groups.edges);
    let Common { keep_alive, workers, .. } = config.common;
    if workers == 1 {
        groups.keeping.spawn_until_stop(TaskKind::All("busy-poll"), calls.busy_poll.clone().run());
    }
    let acceptor = Acceptor::new(links.clone(), config.limits, keep_alive, groups.edges.clone());
    for endpoint in &config.listen {
        acceptor.listen(endpoint, &credentials).await?;
    }
    let fronts = serve_fronts(&config, sockets, &store, &links, &calls, &groups.fronts);
    let relays = RelayListener::new(fronts.clone(), store.clone(), groups.fronts.clone());
    relays.with_drivers_of(config.drivers_of_relays).listen(&config.relays, &credentials).await?;
    keep_certificate(&credentials, &config.tls, &links, &groups.watching);
    let state = AdminState {
        store,
        links,
        calls,
        policies: config.policies,
        fronts,
        credentials: Some(credentials),
        advertise: config.advertise,
        kubernetes: None,
        doctor: None,
        installation: Some(installation),
    };
    if let Some(settings) = config.kubernetes.as_ref().filter(|_| config.first_start.is_some()) {
        trust::start(settings, state.links.enrolment(), &state.calls, &groups.watching).await?;
    }
    let settings = config.kubernetes;
    let state = publish(settings, state, config.csidrivers, &groups.watching).await?;
    let state = Arc::new(state);
    health.ready(state.clone());
    let watching = groups.watching.clone();
    groups.watching.spawn(
        TaskKind::All("admin"),
        admin::server::serve(state.clone(), admin, watching.clone()),
    );
    serve_view(view, &state, &watching);
    Ok((state, health))
}

/// The certificate of csi-cloud and its CA, which are made at the first start if they are to be.
fn identity(config: &mut Config) -> anyhow::Result<(Credentials, Option<Issuers>)> {
    if let Some((first_start, ca)) = config.first_start.as_ref().zip(config.ca.as_ref()) {
        first_start.prepare(ca, &config.tls)?;
    }
    let issuers = config.ca.take().map(|ca| Issuers::open(ca, &config.tls)).transpose();
    if let Ok(Some(issuers)) = &issuers {
        own::begin_earlier(issuers);
    }
    let credentials = Credentials::load(&config.tls, tls::Role::Cloud)?;
    let issuers = issuers?;
    Ok((credentials, issuers))
}

/// Binds the socket `view`, if there is to be one.
fn bind_view(config: &Config) -> anyhow::Result<Option<Socket>> {
    let bind = |path| Socket::bind_for(path, proto::admin::view::MODE);
    Ok(config.view.as_deref().map(bind).transpose()?)
}

/// Serves the socket `view`.
fn serve_view(socket: Option<Socket>, state: &Arc<AdminState>, tasks: &Tasks) {
    if let Some(socket) = socket {
        tasks.spawn(
            TaskKind::All("view"),
            view::server::serve(state.clone(), socket, tasks.clone()),
        );
    }
}

/// Warns of a setting that has no effect since 0.3.0.
fn warn_of_calls(config: &Config) {
    if config.calls.is_some() {
        warn!(
            "`calls` (--calls) has no effect: csi-cloud keeps the calls that ended in memory only. \
             Remove it from the configuration, and delete its file and STORE.calls beside a store \
             that is a file"
        );
    }
}

/// Leads as soon as this csi-cloud may.
///
/// # Errors
/// The first records of a leader are not durable, or another csi-cloud may lead now.
async fn lead(state: &AdminState, new_leases: bool) -> anyhow::Result<()> {
    let AdminState { store, links, fronts, .. } = state;
    let leadership = store.leadership();
    leadership.leading().await;
    if !links.leading().has_begun() {
        judge_store(store, new_leases).await?;
        fronts.values().for_each(|front| front.begin());
        links.take_over();
    }
    leadership.deposed().await;
    anyhow::bail!(
        "this csi-cloud led, and its lease is over or another one leads; it gives back what it was \
         doing and ends, so that whoever runs it starts it again as a follower. If this comes \
         often, its store is slow or away: `csi-cloud replicas`"
    )
}

/// Logs and counts which part this csi-cloud has among several.
async fn follow_roles(leadership: Leadership, calls: Arc<Calls>) {
    let mut roles = leadership.roles();
    loop {
        let role = roles.borrow_and_update().clone();
        let name = match &role {
            Role::Alone(_) => return calls.metrics.role("alone"),
            Role::Leading(epoch) => {
                info!(%epoch, "this csi-cloud leads");
                "leading"
            }
            Role::Following(leader) => {
                let leader = leader.as_ref().map(|leader| leader.name.to_string());
                info!(leader, "this csi-cloud follows");
                "following"
            }
            Role::Deposed => {
                warn!("this csi-cloud led, and another one may lead now");
                "deposed"
            }
        };
        calls.metrics.role(name);
        if roles.changed().await.is_err() {
            return;
        }
    }
}

/// Looks at the store before this csi-cloud leads. A clock that is before the latest time in it is
/// not believed, and that nodes were listed is forgotten if the operator says that the store may be
/// an older copy.
async fn judge_store(store: &Store, new_leases: bool) -> anyhow::Result<()> {
    clock::doubt(SystemTime::UNIX_EPOCH + Duration::from_millis(store.read(State::latest)));
    if new_leases {
        return Ok(());
    }
    listed::forget(store).await.context("cannot clear the record of which nodes were listed")
}

/// Takes changed files, and renews csi-cloud's own certificate where it has the CA.
fn keep_certificate(credentials: &Credentials, files: &Files, links: &Arc<Links>, tasks: &Tasks) {
    let current = credentials.clone().keep_current(files.clone(), tls::Role::Cloud);
    tasks.spawn_until_stop(TaskKind::All("certificates"), current);
    let informed = links.clone();
    let issued = move |ca| informed.issued_by(ca);
    let upkeep = own::keep(links.enrolment().clone(), credentials.clone(), issued);
    tasks.spawn_until_stop(TaskKind::All("csi-cloud's certificate"), upkeep);
}

/// The links, none yet, and the issuer of certificates to their nodes.
fn links(config: &Config, store: &Store, issuers: Option<Issuers>, tasks: &Tasks) -> Arc<Links> {
    let enrolment = Arc::new(Enrolment::new(store.clone(), issuers));
    let links = Links::new(store.clone(), tasks.clone(), lease::answer::answer);
    let links = Arc::new(links.scoped(&config.policies).enrolling(enrolment));
    if let Some(handlers) = config.kubernetes.as_ref().and_then(|api| api.metadata.clone()) {
        // Before the first edge links, which is told whether it gets any.
        links.metadata().begin(handlers);
    }
    let watched = links.clone();
    let watch = async move { watched.watch().await };
    tasks.spawn_until_stop(TaskKind::All("watch of links"), watch);
    let swept = links.clone();
    let sweep = async move { swept.end_idle_connections(connections::IDLE).await };
    tasks.spawn_until_stop(TaskKind::All("idle connections"), sweep);
    let labelled = links.clone();
    tasks.spawn_until_stop(TaskKind::All("labels"), async move { labelled.follow_labels().await });
    links
}

/// Tells everybody to leave, and finishes calls in flight within the grace. Of several csi-clouds
/// the next leader waits for this one to end, and answers what it gives back.
async fn finish(groups: Groups, state: &AdminState, health: &Health, grace: Duration) {
    let is_alone = matches!(state.store.leadership().role(), Role::Alone(_));
    let grace = if is_alone { grace } else { grace.min(HANDOVER) };
    info!(?grace, "stopping: edges are told to go elsewhere, calls in flight are finished");
    health.stopping();
    state.links.drain();
    groups.fronts.finish_before(tasks::patience(grace)).await;
    if !is_alone {
        groups.keeping.finish(GOODBYE).await;
    }
    groups.edges.finish(GOODBYE).await;
    groups.watching.finish(GOODBYE).await;
    groups.keeping.finish(GOODBYE).await;
}

/// Serves health and metrics, if there is an address for them.
async fn serve_http(
    address: Option<SocketAddr>,
    health: &Arc<Health>,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let Some(address) = address else { return Ok(()) };
    let cannot = || format!("cannot serve HTTP on {address} (http, --http)");
    let listener = TcpListener::bind(address).await.with_context(cannot)?;
    program::tell(format_args!("http {}", listener.local_addr().with_context(cannot)?));
    tasks.spawn(TaskKind::All("http"), health::serve(listener, health.clone(), tasks.clone()));
    Ok(())
}

/// Serves the front of each driver, and those of the nodes if they are wanted.
fn serve_fronts(
    config: &Config,
    sockets: Vec<(DriverName, Option<Socket>)>,
    store: &Store,
    links: &Arc<Links>,
    calls: &Arc<Calls>,
    tasks: &Tasks,
) -> BTreeMap<DriverName, Arc<Front>> {
    let mut fronts = BTreeMap::new();
    for (driver, socket) in sockets {
        let policy = config.policies.get(&driver).cloned();
        let policy = policy.unwrap_or_else(|| Policy::new(config.default_node.as_ref()));
        let front = Front::new(driver.clone(), policy, store.clone(), links.clone(), calls.clone());
        let front = Arc::new(front);
        fronts.insert(driver, front.clone());
        tasks.spawn(TaskKind::All("front"), front.serve(socket, tasks.clone()));
    }
    if let Some(directory) = config.fronts.as_deref().filter(|_| config.node_fronts) {
        let nodes = NodeFronts::new(directory, fronts.clone());
        tasks.spawn(TaskKind::All("node fronts"), nodes.keep(tasks.clone()));
    }
    fronts
}

/// Begins the work in Kubernetes, if it is configured, and keeps the doctor.
async fn publish(
    settings: Option<Kubernetes>,
    mut state: AdminState,
    csidrivers: BTreeMap<DriverName, CsiDriverSettings>,
    tasks: &Tasks,
) -> anyhow::Result<AdminState> {
    let Some(settings) = settings else {
        // Nobody else takes back what edges were told before.
        state.links.publishes_topology(ByNode::new());
        return Ok(state);
    };
    if let Some(review) = token_review::reviewer(&settings, state.calls.clone()).await? {
        state.links.enrolment().review_by(review);
    }
    state.links.look_up_by(volumes::lookup(&settings, state.calls.clone(), tasks.clone()).await?);
    state.links.read_claims_by(objects::claim_reader(&settings, state.calls.clone()).await?);
    let published = Arc::<Published>::default();
    let facts = KeeperSources {
        store: state.store.clone(),
        links: state.links.clone(),
        calls: state.calls.clone(),
        policies: state.policies.clone(),
        csidrivers,
    };
    let doctor = kubernetes::run::start(settings, facts, published.clone(), tasks).await?;
    state.kubernetes = Some(published);
    state.doctor = Some(doctor);
    Ok(state)
}

impl CommitMetrics for Commits {
    fn ended(&self, changes: usize, took: Duration, is_durable: bool) {
        self.count(changes, took, is_durable);
    }
}

/// Opens the store. A large one takes seconds, during which `/livez` answers.
async fn open(
    config: &Config,
    calls: &Arc<Calls>,
    health: &Health,
    tasks: &Tasks,
) -> anyhow::Result<Store> {
    let commits = Box::new(calls.metrics.commits());
    let not_opened = "the store was not opened";
    let at = config.store.clone();
    match tokio::task::spawn_blocking(move || at.open()).await.context(not_opened)?? {
        Opened::Own(backend) => {
            let tasks = tasks.clone();
            let measured = Box::new(Measured::new(backend, commits));
            let opening = tokio::task::spawn_blocking(move || Store::open(measured, &tasks));
            Ok(opening.await.context(not_opened)??)
        }
        Opened::Shared(at) => {
            let joining = Joining::new(&at, config.replica.clone(), commits)?;
            let cluster = joining.cluster();
            health.joins(cluster.clone());
            Ok(Store::join(cluster, tasks).await?)
        }
    }
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
