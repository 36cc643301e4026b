//! Makes a store of etcd, and of this csi-cloud one of its replicas.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use proto::host::tasks::{TaskKind, Tasks};
use tokio::sync::mpsc;

use super::cluster::{Cluster, Work};
use super::follow::Follower;
use super::keys::Keys;
use super::lead::Lead;
use super::lease::Lease;
use super::load::LoadError;
use super::member::Member;
use crate::etcd::client::Client;
use crate::state::known::State;
use crate::state::store::backend::StoreError;
use crate::state::store::etcd_at::EtcdAt;
use crate::state::store::leadership::Leadership;
use crate::state::store::measured::CommitMetrics;
use crate::state::store::replica::Replica;
use crate::state::store::write_loop::Job;
use crate::state::store::writer::Store;

/// The wait before etcd is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// The inputs that a replica needs to join the others.
pub struct Joining {
    /// Reaches etcd.
    pub client: Client,
    /// The prefix of all keys, without a slash at its end.
    pub prefix: String,
    /// The URL of the store, without a password.
    pub url: String,
    /// This replica.
    pub replica: Replica,
    /// The metrics of commits.
    pub commits: Box<dyn CommitMetrics>,
}

impl Joining {
    /// The replicas that it joins. They know why etcd cannot be used, if it cannot.
    pub fn cluster(self) -> Arc<Cluster> {
        let Self { client, prefix, url, replica: Replica { name, endpoints }, commits } = self;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let endpoints = endpoints.iter().map(ToString::to_string).collect();
        let me = Member { name: name.into(), version, endpoints, commit: None };
        let reach = (client, Keys::new(&prefix), url);
        Arc::new(Cluster::new(reach, me, Leadership::following(), Some(commits)))
    }

    /// Gathers the inputs to join the replicas at this store.
    ///
    /// # Errors
    /// A file or an address cannot be used.
    pub fn new(
        at: &EtcdAt,
        replica: Replica,
        commits: Box<dyn CommitMetrics>,
    ) -> Result<Self, StoreError> {
        let client = at.client()?;
        Ok(Self { client, prefix: at.prefix.clone(), url: at.to_string(), replica, commits })
    }
}

impl Store {
    /// Reads the store, and follows or leads from then on. While etcd gives no answer, it waits for
    /// one. The tasks end when `tasks` stop.
    ///
    /// # Errors
    /// The records cannot be read, or are newer than this csi-cloud; or it is told to stop.
    pub async fn join(cluster: Arc<Cluster>, tasks: &Tasks) -> Result<Self, StoreError> {
        let lease = Arc::new(Lease::new(cluster.clone()));
        let state = Arc::<RwLock<State>>::default();
        let follower = warm(&cluster, &lease, &state, tasks).await?;
        let (store, queue) = Self::over(state.clone(), Some(cluster));
        let replica = run(follower, (lease, state, queue), tasks.clone());
        tasks.spawn(TaskKind::All("replica"), replica);
        Ok(store)
    }
}

/// Reads the store for the first time.
async fn warm(
    cluster: &Arc<Cluster>,
    lease: &Arc<Lease>,
    state: &Arc<RwLock<State>>,
    tasks: &Tasks,
) -> Result<Follower, StoreError> {
    loop {
        match Follower::warm(cluster.clone(), lease.clone(), state.clone()).await {
            Ok(follower) => return Ok(follower),
            Err(LoadError::Store(error)) => return Err(error),
            Err(LoadError::Etcd(error)) => cluster.set_trouble(Work::Follow, &error),
        }
        tokio::select! {
            biased;
            () = tasks.stopped() => return Err(StoreError::Closed),
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

type Parts = (Arc<Lease>, Arc<RwLock<State>>, mpsc::Receiver<Job>);

async fn run(follower: Follower, (lease, state, queue): Parts, tasks: Tasks) {
    tokio::select! {
        biased;
        () = take_part(follower, (lease.clone(), state, queue), tasks) => {}
        () = lease.keep() => {}
    }
    lease.revoke().await;
}

/// Follows, then leads; ends when it is told to, or deposed.
async fn take_part(mut follower: Follower, (lease, state, queue): Parts, tasks: Tasks) {
    let cluster = follower.cluster();
    let (leading, committer) = loop {
        let won = tokio::select! {
            biased;
            () = tasks.stopped() => return,
            won = follower.until_won() => won,
        };
        let beginning = Lead::begin(cluster.clone(), lease.clone(), won, &state);
        let begun = tokio::select! {
            biased;
            () = tasks.stopped() => return,
            begun = beginning => begun,
        };
        match begun {
            Ok(leading) => break leading,
            Err(error) => cluster.set_trouble(Work::Stand, &error),
        }
        // What it tried may be there or not.
        tokio::select! {
            biased;
            () = tasks.stopped() => return,
            () = follower.reload() => {}
        }
    };
    drop(follower);
    leading.lead(committer, state, queue, &tasks).await;
}
