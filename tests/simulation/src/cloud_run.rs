//! One running csi-cloud: what the product wires, without its sockets.

use std::sync::Arc;
use std::time::Duration;

use cloud::csi::front::Front;
use cloud::nodes::link_task;
use cloud::nodes::links::Links;
use cloud::state::store::writer::Store;
use proto::host::tasks::Tasks;
use proto::link::tls::{self, Role};
use proto::link::{KeepAlive, ws};
use tokio::time::Instant;

use super::keys::Keys;
use super::net::Door;
use super::process::Process;
use super::shape::Shape;
use super::shape::driver_name;

/// How long the cloud waits for its links to leave.
const GOODBYE: Duration = Duration::from_secs(2);

/// A running csi-cloud.
#[derive(Clone)]
pub(super) struct CloudRun {
    pub(super) process: Process,
    /// Its start, or with several clouds the moment from which it led.
    pub(super) since: Instant,
    /// The tasks that accept calls; they stop before the links do.
    pub(super) fronts: Tasks,
    pub(super) links: Arc<Links>,
    pub(super) front: Arc<Front>,
    pub(super) store: Store,
}

impl CloudRun {
    /// Starts one over a store.
    pub(super) fn start(shape: &Shape, store: Store, process: Process) -> anyhow::Result<Self> {
        let store = store.with_quotas(shape.quotas());
        // `csi-cloud serve` has them before anything else.
        let secrets = store.clone();
        let made = async move { secrets.secrets().await };
        process.tasks.spawn("secrets", async move { drop(made.await) });
        let links = Links::new(store.clone(), process.tasks.clone(), cloud::lease::answer::answer);
        let links = Arc::new(links.scoped(&[(driver_name()?, shape.policy())].into()));
        let swept = links.clone();
        let idle = shape.idle;
        let sweep = async move { swept.end_idle_connections(idle).await };
        process.tasks.spawn_until_stop("idle connections", sweep);
        let name = driver_name()?;
        let front = Front::new(name, shape.policy(), store.clone(), links.clone(), Arc::default());
        let front = Arc::new(front);
        let lists = front.clone().serve(None, process.tasks.clone());
        process.tasks.spawn_until_stop("front", lists);
        let since = Instant::now();
        Ok(Self { process, since, fronts: Tasks::default(), links, front, store })
    }

    /// What takes the connections of edges.
    pub(super) fn door(&self, keys: &Keys) -> anyhow::Result<Door> {
        let tls = tls::server_config(&keys.of("cloud", Role::Cloud)?, ws::ALPN)?;
        let acceptor = ws::Acceptor::new(tls, KeepAlive::default());
        let tasks = self.process.tasks.clone();
        let taking = self.links.clone();
        Ok(Arc::new(move |io| {
            if taking.is_drained() {
                return;
            }
            let acceptor = acceptor.clone();
            let links = taking.clone();
            tasks.spawn("link", async move {
                let Ok(greeted) = acceptor.greet(io).await else { return };
                let Ok(accepted) = acceptor.accept(greeted).await else { return };
                if let Some((peer, link)) = accepted.link() {
                    link_task::run(&links, Box::new(peer), link.into(), None).await;
                }
            });
        }))
    }

    /// Ends it at once: all its connections end, those of the sidecars too.
    pub(super) fn kill(&self) {
        self.fronts.give_up();
        self.process.kill();
    }

    /// Ends it as SIGTERM does. Its calls have this time.
    pub(super) async fn stop(&self, grace: Duration) {
        self.links.drain();
        self.fronts.finish_before(tokio::time::sleep(grace)).await;
        self.process.tasks.finish(GOODBYE).await;
        self.process.kill();
    }
}
