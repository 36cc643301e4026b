//! An in-memory CSI driver that misbehaves as a test tells it to.
//!
//! It serves all of CSI on a unix socket, records every call as raw bytes, and takes faults for any
//! RPC. It runs inside a test or, as the program `testdriver`, as a process of its own.

mod answer;
mod controller;
mod core;
mod fault;
mod group;
mod identity;
mod keys;
mod lock;
mod methods;
mod node;
mod overlap;
mod record;
mod route;
mod serve;
mod store;
#[cfg(test)]
mod test_faults;
#[cfg(test)]
mod test_rpcs;
#[cfg(test)]
mod test_support;
mod wait;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use self::core::Optional;
pub use self::fault::{Fault, Gate, Pages, Times};
pub use self::keys::{FUTURE_PATH, PUBLISH_KEY, TOPOLOGY_KEY};
pub use self::methods::METHODS;
pub use self::record::{Outcome, Received};
pub use self::serve::Running;
pub use self::wait::WaitError;

use self::core::Core;
use self::lock::lock;
use self::wait::WAIT;

/// The driver. A clone is the same driver.
#[derive(Clone)]
pub struct TestDriver {
    core: Arc<Core>,
}

impl TestDriver {
    /// A driver with this plugin name and node id, that records and refuses overlapping calls.
    pub fn new(name: impl Into<String>, node_id: impl Into<String>) -> Self {
        Self { core: Arc::new(Core::new(name.into(), node_id.into())) }
    }

    /// The same plugin at another node: one storage, as NFS is. Records and faults are its own.
    #[must_use]
    pub fn beside(&self, node_id: impl Into<String>) -> Self {
        Self { core: Arc::new(self.core.beside(node_id.into())) }
    }

    /// From now on new volumes are accessible at this node alone, whatever topology is requested.
    pub fn stay_here(&self) {
        self.name_node(&self.core.node_id);
    }

    /// The same for any node. The volumes are here.
    pub fn name_node(&self, node: &str) {
        lock(&self.core.store).here = Some(node.to_owned());
    }

    /// Listens on `path`, replacing a socket left there. Must be called in a tokio runtime. Can be
    /// called again after [`Running::stop`]: the driver then is a restarted one that kept its
    /// state.
    pub fn serve(&self, path: &Path) -> io::Result<Running> {
        serve::serve(&self.core, path)
    }

    /// Runs without a socket: connections come by [`Running::take`]. Must be called in a tokio
    /// runtime.
    pub fn start(&self) -> Running {
        serve::start(&self.core)
    }

    /// Gives ids from this number on, so that several drivers have no id in common.
    pub fn count_from(&self, number: u64) {
        lock(&self.core.store).last = number;
    }

    /// Whether a new snapshot becomes ready only with the second request; at first it is ready at
    /// once.
    pub fn slow_snapshots(&self, on: bool) {
        lock(&self.core.store).slow_snapshots = on;
    }

    /// Delays every call with an effect, before its work and before its answer. The default is no
    /// delay.
    pub fn slow(&self, before: Duration, after: Duration) {
        *lock(&self.core.slow) = (before, after);
    }

    /// Tells the callers of each further connection to leave it (GOAWAY) when it is so old, and
    /// takes so many calls on it at a time, as servers of the field do. A driver begins without
    /// these limits.
    pub fn limit_connections(&self, age: Option<Duration>, streams: Option<u32>) {
        *lock(&self.core.connections) = (age, streams);
    }

    /// Applies a fault to the next calls of an RPC, such as `NodePublishVolume`, or of all with
    /// `*`. Of several faults, those for the method go before those for `*`, and earlier ones
    /// before later ones; one call takes one.
    pub fn inject(&self, method: &str, fault: Fault, times: Times) {
        self.core.script.add(method, fault, times);
    }

    /// Forgets all faults. Calls that hang or wait already go on doing so.
    pub fn clear_faults(&self) {
        self.core.script.clear(false);
    }

    /// Lets all calls go on that hang, and forgets the [`Fault::Hang`]s.
    pub fn release(&self) {
        self.core.script.release();
    }

    /// All calls in the order of their arrival.
    pub fn calls(&self) -> Vec<Received> {
        self.core.log.all()
    }

    /// The calls of one RPC.
    pub fn calls_of(&self, method: &str) -> Vec<Received> {
        self.core.log.of(method)
    }

    /// When each ended connection ended, by either side.
    pub fn ends(&self) -> Vec<tokio::time::Instant> {
        lock(&self.core.ends).clone()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        self.core.log.forget();
    }

    /// Waits, at most 10 s, until `n` calls of this RPC (`*`: of all) have arrived, and returns
    /// them.
    pub async fn wait_for(&self, method: &str, n: usize) -> Result<Vec<Received>, WaitError> {
        self.wait_until(method, n, |_| true).await
    }

    /// Waits, at most 10 s, until `n` calls of this RPC have this outcome, and returns those.
    pub async fn wait_for_outcome(
        &self,
        method: &str,
        outcome: Outcome,
        n: usize,
    ) -> Result<Vec<Received>, WaitError> {
        self.wait_until(method, n, |call| call.outcome == outcome).await
    }

    async fn wait_until(
        &self,
        method: &str,
        n: usize,
        which: impl Fn(&Received) -> bool,
    ) -> Result<Vec<Received>, WaitError> {
        let mut changes = self.core.log.watch();
        let search = async {
            loop {
                let calls: Vec<_> = self.calls_of(method).into_iter().filter(&which).collect();
                // The sender lives in `self`, so it closes only with the driver.
                if calls.len() >= n || changes.changed().await.is_err() {
                    return calls;
                }
            }
        };
        tokio::time::timeout(WAIT, search).await.map_err(|_| WaitError {
            wanted: n,
            method: format!("calls of {method}"),
            came: self.summary(),
        })
    }

    /// The received calls as text: each method with the number of its calls and their outcomes.
    fn summary(&self) -> String {
        let mut count = BTreeMap::<_, usize>::new();
        for call in self.calls() {
            *count.entry(format!("{} {:?}", call.method(), call.outcome)).or_default() += 1;
        }
        let parts: Vec<_> = count.into_iter().map(|(what, n)| format!("{n} x {what}")).collect();
        if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
    }

    /// One line for each call that arrived for a volume during another call for it.
    pub fn overlaps(&self) -> Vec<String> {
        self.core.overlaps.seen()
    }

    /// Whether to refuse calls that overlap; at first it does.
    pub fn refuse_overlaps(&self, on: bool) {
        self.core.refuse_overlaps.store(on, Ordering::Relaxed);
    }

    /// Whether to record calls; at first it does.
    pub fn record(&self, on: bool) {
        self.core.recording.store(on, Ordering::Relaxed);
    }

    /// Changes the plugin's name.
    pub fn set_name(&self, name: impl Into<String>) {
        *lock(&self.core.name) = name.into();
    }

    /// Switches a service off, so that it is not advertised and answers UNIMPLEMENTED, or on again.
    pub fn offer(&self, service: Optional, on: bool) {
        self.core.offer(service, on);
    }

    /// Restricts the nodes that volumes can be published to; others are then NOT_FOUND. At first
    /// any will do.
    pub fn only_nodes<S: Into<String>>(&self, nodes: impl IntoIterator<Item = S>) {
        *lock(&self.core.nodes) = Some(nodes.into_iter().map(Into::into).collect());
    }

    /// Adds this many volumes whose entries in `ListVolumes` are a little over this many bytes
    /// each.
    pub fn fill(&self, volumes: usize, bytes_each: usize) {
        let mut store = lock(&self.core.store);
        for n in 0..volumes {
            let volume_context = [("padding".to_owned(), "x".repeat(bytes_each))].into();
            let volume = proto::csi::Volume {
                capacity_bytes: 1 << 20,
                volume_context,
                ..Default::default()
            };
            store.add(format!("fill-{n}"), volume);
        }
    }

    /// Adds a volume of this name without a call, and returns it.
    pub fn hold(&self, name: impl Into<String>, capacity_bytes: i64) -> proto::csi::Volume {
        let volume = proto::csi::Volume { capacity_bytes, ..Default::default() };
        lock(&self.core.store).add(name.into(), volume).clone()
    }

    /// The volumes in the order of their creation.
    pub fn volumes(&self) -> Vec<proto::csi::Volume> {
        lock(&self.core.store).volumes.values().map(|held| held.volume.clone()).collect()
    }

    /// The volumes with the names they were created under, and the nodes that they are published
    /// to.
    pub fn named_volumes(&self) -> Vec<(String, proto::csi::Volume, Vec<String>)> {
        let store = lock(&self.core.store);
        let nodes = |held: &store::Held| held.published.keys().cloned().collect();
        store
            .volumes
            .values()
            .map(|held| (held.name.clone(), held.volume.clone(), nodes(held)))
            .collect()
    }

    /// The snapshots with the names they were created under; those of a group have none.
    pub fn snapshots(&self) -> Vec<(String, proto::csi::Snapshot)> {
        lock(&self.core.store).snapshots.values().cloned().collect()
    }

    /// The staged volumes: volume id and staging path.
    pub fn staged(&self) -> Vec<(String, String)> {
        lock(&self.core.store).staged.iter().cloned().collect()
    }

    /// The published volumes of the node: volume id and target path.
    pub fn published(&self) -> Vec<(String, String)> {
        lock(&self.core.store).node_published.iter().cloned().collect()
    }
}
