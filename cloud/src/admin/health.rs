//! Serves `/livez`, `/readyz` and `/metrics`.
//!
//! No answer waits for an edge or for the disk, so monitoring sees in time how csi-cloud is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use http::{Method, Request};
use hyper::body::Incoming;
use proto::admin::http1;
use proto::admin::http1::{Answer, Listener};
use proto::host::tasks::Tasks;
use tokio::net::TcpListener;

use crate::admin::admin_state::AdminState;
use crate::state::store::leadership::Role;
use crate::state::store::replicated::Cluster;

/// Connections at a time; more wait in the listener's queue.
const CONNECTIONS: usize = 64;

/// The health of csi-cloud.
#[derive(Default)]
pub struct Health {
    /// The other replicas, from before the store is read.
    cluster: OnceLock<Arc<Cluster>>,
    ready: OnceLock<Arc<AdminState>>,
    stopping: AtomicBool,
}

impl Health {
    /// The store is being read from etcd, which may take until etcd has a quorum.
    pub fn joins(&self, cluster: Arc<Cluster>) {
        // It joins once.
        let _ = self.cluster.set(cluster);
    }

    /// The store is open and the fronts listen.
    pub fn ready(&self, state: Arc<AdminState>) {
        // It becomes ready once.
        let _ = self.ready.set(state);
    }

    /// The stop signal came.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The reason why it is not ready, if it is not.
    fn not_ready(&self) -> Option<Arc<str>> {
        let state = match self.ready.get() {
            _ if self.stopping.load(Ordering::Relaxed) => {
                return Some("csi-cloud is stopping".into());
            }
            None => {
                let trouble = self.cluster.get().and_then(|cluster| cluster.trouble());
                return Some(trouble.unwrap_or_else(|| "the store is being opened".into()));
            }
            Some(state) => state,
        };
        if state.store.leadership().role() == Role::Deposed {
            return Some("another csi-cloud may lead; this one led, and ends".into());
        }
        if !state.store.is_open() {
            return Some("the store takes no more changes".into());
        }
        state.store.cluster().and_then(|cluster| cluster.trouble())
    }

    fn answer(&self, method: &Method, path: &str) -> Answer {
        if method != Method::GET && method != Method::HEAD {
            return http1::only_get();
        }
        let state = self.ready.get();
        let not_ready = self.not_ready();
        let role = role(state);
        let ready = not_ready.as_deref().map_or(Ok(role.as_str()), Err);
        let metrics = || Ok(state.ok_or("the store is being opened")?.metrics());
        http1::monitored(method, path, ready, metrics).unwrap_or_else(http1::not_monitored)
    }
}

/// The text for a ready csi-cloud, with its role if it is one of several.
fn role(state: Option<&Arc<AdminState>>) -> String {
    match state.map(|state| state.store.leadership().role()) {
        Some(Role::Leading(epoch)) => format!("ready: leads, with epoch {epoch}"),
        Some(Role::Following(Some(leader))) => format!("ready: follows {}", leader.name),
        Some(Role::Following(None)) => "ready: follows, and none leads".into(),
        Some(Role::Alone(_) | Role::Deposed) | None => "ready".into(),
    }
}

/// Serves the health until the tasks are stopped.
pub async fn serve(listener: TcpListener, health: Arc<Health>, tasks: Tasks) {
    let service = move |request: Request<Incoming>| {
        let response = health.answer(request.method(), request.uri().path());
        async move { response }
    };
    Listener::Tcp(listener).serve(CONNECTIONS, service, tasks).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;
    use proto::control::leader::LeaderEpoch;
    use tokio::time::Instant;

    use super::*;
    use crate::admin::tests::{admin_state, admin_state_into};
    use crate::state::record::{Change, Node};
    use crate::state::store::backend::{Backend, StoreError};
    use crate::state::store::etcd_at::EtcdAt;
    use crate::state::store::leadership::{Leader, Leadership};
    use crate::state::store::replica::Replica;
    use crate::state::store::replicated::Joining;
    use crate::state::store::writer::Store;
    use crate::telemetry::metrics::Metrics;

    /// A disk that is full.
    struct FullDisk;

    impl Backend for FullDisk {
        fn load(&mut self, _: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
            Ok(())
        }

        fn commit(&mut self, _: &[Change]) -> Result<(), StoreError> {
            Err(StoreError::Commit(Arc::new(std::io::Error::other("full"))))
        }
    }

    fn status(health: &Health, path: &str) -> StatusCode {
        health.answer(&Method::GET, path).status()
    }

    #[tokio::test]
    async fn it_is_ready_when_the_store_is_open_and_until_it_stops() {
        let health = Health::default();
        assert_eq!(status(&health, "/livez"), StatusCode::OK);
        assert_eq!(status(&health, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(&health, "/metrics"), StatusCode::SERVICE_UNAVAILABLE);
        let tasks = Tasks::default();
        health.ready(Arc::new(admin_state(&tasks)));
        assert_eq!(status(&health, "/readyz"), StatusCode::OK);
        assert_eq!(status(&health, "/metrics"), StatusCode::OK);
        health.stopping();
        assert_eq!(status(&health, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(&health, "/livez"), StatusCode::OK, "it still answers");
    }

    #[tokio::test]
    async fn it_is_not_ready_once_nothing_can_be_made_durable() {
        let health = Health::default();
        let tasks = Tasks::default();
        let state = Arc::new(admin_state_into(Box::new(FullDisk), &tasks));
        health.ready(state.clone());
        assert_eq!(status(&health, "/readyz"), StatusCode::OK);
        let node = "n1".parse().unwrap();
        let written = state.store.write(move |txn| txn.set_node(&node, Some(Node::default())));
        assert!(matches!(written.await, Err(StoreError::Commit(_))));
        // The store says so before its task has ended.
        tasks.ended().await;
        assert_eq!(status(&health, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            status(&health, "/livez"),
            StatusCode::OK,
            "starting it again does not help a full disk"
        );
    }

    #[tokio::test]
    async fn one_of_several_is_ready_when_it_leads_or_follows_and_not_when_it_led() {
        let tasks = Tasks::default();
        let leadership = Leadership::following();
        let state = admin_state(&tasks);
        let store = state.store.clone().with_leadership(leadership.clone());
        let health = Health::default();
        health.ready(Arc::new(AdminState { store, ..state }));
        let says = |words: &str| {
            assert_eq!(status(&health, "/readyz"), StatusCode::OK);
            assert_eq!(role(health.ready.get()), words);
        };
        says("ready: follows, and none leads");
        let endpoints = Arc::new([]);
        let leader = Leader { name: "b".into(), epoch: LeaderEpoch(3), endpoints };
        leadership.follow(Some(leader));
        says("ready: follows b");
        leadership.lead(LeaderEpoch(7), Instant::now());
        says("ready: leads, with epoch 7");
        leadership.depose();
        assert_eq!(status(&health, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn a_start_without_etcd_says_what_is_wrong_with_etcd() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let at: EtcdAt = format!("etcd://{nobody}/edge-csi").parse().unwrap();
        let replica = Replica { name: "a".into(), endpoints: Vec::new() };
        let commits = Box::new(Metrics::default().commits());
        let cluster = Joining::new(&at, replica, commits).unwrap().cluster();
        let health = Health::default();
        health.joins(cluster.clone());
        assert_eq!(health.not_ready().as_deref(), Some("the store is being opened"));
        let tasks = Tasks::default();
        let joining = tasks.clone();
        tasks.spawn("join", async move { drop(Store::join(cluster, &joining).await) });
        let said = async {
            while !health.not_ready().is_some_and(|why| why.contains("etcd")) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), said).await.unwrap();
        assert_eq!(status(&health, "/livez"), StatusCode::OK, "a restart does not help");
        tasks.stop();
        tasks.ended().await;
    }

    #[tokio::test]
    async fn only_what_is_there_is_answered() {
        let health = Health::default();
        assert_eq!(status(&health, "/"), StatusCode::NOT_FOUND);
        assert_eq!(health.answer(&Method::POST, "/livez").status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
