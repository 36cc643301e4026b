//! Starts the work in Kubernetes: the watches, and the one task that sends requests.
//!
//! There may be one installation for each cluster. Two would take each other's nodes for their own.
//! Of several csi-clouds of one installation all watch, and the leader alone sends requests.

use std::sync::Arc;
use std::time::Duration;

use proto::host::tasks::{TaskKind, Tasks};

use crate::kubernetes::api::Server;
use crate::kubernetes::doctor::examine::Doctor;
use crate::kubernetes::keeper::{Away, Keeper, KeeperSources};
use crate::kubernetes::metadata;
use crate::kubernetes::mirror::Mirror;
use crate::kubernetes::objects::Objects;
use crate::kubernetes::published::Published;
use crate::kubernetes::settings::Kubernetes;
use crate::kubernetes::watch::watch_all;
use crate::state::policy::Policy;

/// The longest wait for the next round when nothing changed.
const REST: Duration = Duration::from_secs(5);
/// The shortest wait between two rounds.
const BREATH: Duration = Duration::from_millis(500);
/// The longest wait for an API server that does not answer.
const OUTAGE: Duration = Duration::from_secs(10);
/// Events that one round may try.
const EVENTS: usize = 50;

/// Starts the work in Kubernetes. The API server need not answer yet. Returns the doctor.
///
/// # Errors
/// The kubeconfig or the pod's environment cannot be read or used.
pub async fn start(
    settings: Kubernetes,
    facts: KeeperSources,
    published: Arc<Published>,
    tasks: &Tasks,
) -> anyhow::Result<Doctor> {
    let server = Arc::new(Server::new(&settings.api, facts.calls.clone()).await?);
    let labels = facts.policies.values().find_map(Policy::labels);
    let mirror = Arc::new(Mirror::new(labels.cloned()));
    for driver in facts.policies.keys() {
        published.set(driver, "not yet");
    }
    watch_all(&server, &mirror, tasks);
    if let Some(handlers) = settings.metadata.clone() {
        metadata::watch_all(&server, facts.links.metadata(), handlers, tasks);
    }
    let doctor = Doctor {
        server: server.clone(),
        mirror: mirror.clone(),
        links: facts.links.clone(),
        store: facts.store.clone(),
        drivers: facts.policies.keys().cloned().collect(),
        publish: settings.publish,
        objects: Objects { server: server.clone() },
        joins: settings.join_service_account.is_some(),
        metadata: settings.metadata.is_some(),
    };
    let keeper = Keeper::new(settings, facts, server, mirror, published);
    tasks.spawn_until_stop(TaskKind::All("kubernetes"), keeper.keep());
    Ok(doctor)
}

impl Keeper {
    async fn keep(mut self) {
        let leadership = self.facts.store.leadership().clone();
        leadership.leading().await;
        // Several csi-clouds that start together do not ask together.
        tokio::time::sleep(BREATH.mul_f64(rand::random_range(0.0..1.0))).await;
        let mut outage = Duration::ZERO;
        loop {
            if !leadership.leads() {
                tokio::time::sleep(BREATH).await;
                continue;
            }
            let rest = match self.round().await {
                Ok(()) => {
                    outage = Duration::ZERO;
                    REST
                }
                Err(Away) => {
                    outage = (outage * 2).clamp(Duration::from_secs(1), OUTAGE);
                    outage.mul_f64(rand::random_range(0.75..1.25))
                }
            };
            tokio::time::sleep(BREATH).await;
            tokio::select! {
                biased;
                () = tokio::time::sleep(rest) => {}
                () = self.mirror.changed() => {}
                () = self.server.back() => {}
            }
        }
    }

    async fn round(&mut self) -> Result<(), Away> {
        self.turns = EVENTS;
        if self.mirror.has_drivers() {
            self.apply_csidrivers().await?;
        }
        if self.mirror.has_nodes() {
            self.apply_nodes().await?;
        }
        self.report().await
    }
}
