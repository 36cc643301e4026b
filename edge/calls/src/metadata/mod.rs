//! The metadata of this node's volumes that the cloud sent: its Node, its Pods and the objects
//! behind them.
//!
//! A transfer counts when it is whole, and is durable before it is answered. So this copy is true
//! offline as of its position, and an edge that was cut off goes on from there. It uses no other
//! room.

mod file;
mod known;
mod receiving;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::control::metadata::{NodeObject, Part, Position};
use proto::names::NodeName;
use tokio::sync::watch;

pub use known::{GonePod, KnownPod};
pub use receiving::Receiving;

use file::File;
use known::Known;
use receiving::Transfer;

/// The known metadata, and the file that keeps it.
#[derive(Default)]
pub struct Metadata {
    known: Mutex<Arc<Known>>,
    /// The path and the node for a file. None is made while the cloud sends nothing.
    at: Option<(PathBuf, NodeName)>,
    /// One transfer is put in force at a time.
    file: Mutex<Option<File>>,
    changed: watch::Sender<()>,
    /// True if the cloud of the last welcome sends metadata.
    is_sent: AtomicBool,
}

impl Metadata {
    /// Reads the metadata in this state directory, if there is one. A file that is damaged, or is
    /// another node's, is put aside: the cloud sends everything anew.
    pub fn open(directory: Option<&Path>, node: &NodeName) -> Self {
        let at = directory.map(|directory| (directory.to_owned(), node.clone()));
        let there = directory.filter(|directory| file::is_there(directory));
        let opened = there.and_then(|directory| file::open(directory, node));
        let Some((file, known)) = opened else { return Self { at, ..Self::default() } };
        let known = Mutex::new(Arc::new(known));
        Self { known, at, file: Mutex::new(Some(file)), ..Self::default() }
    }

    /// This node's position in its metadata.
    pub fn position(&self) -> Position {
        self.known().position
    }

    /// Takes the cloud's word on whether it sends metadata.
    pub fn set_sent(&self, is_sent: bool) {
        self.is_sent.store(is_sent, Ordering::Relaxed);
    }

    /// True if the cloud sends metadata, by its last word.
    pub fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Relaxed)
    }

    /// Takes a part. Returns the answer: how far this node is now.
    pub async fn take(self: &Arc<Self>, receiving: &mut Receiving, part: Part) -> Position {
        if let Some(transfer) = receiving.take(part) {
            let metadata = self.clone();
            // A disk that hangs must not hold the link.
            let kept = tokio::task::spawn_blocking(move || metadata.put(transfer));
            // It ends early only when the process does.
            let _ = kept.await;
        }
        self.position()
    }

    /// Puts a whole transfer in force. One that begins elsewhere than here changes nothing.
    fn put(&self, transfer: Transfer) {
        let mut file = self.file.lock();
        let before = self.known();
        let Some((known, gone)) = before.after(&transfer) else { return };
        // Only what replaces everything may begin a file.
        if file.is_none()
            && transfer.from.is_none()
            && let Some((directory, node)) = &self.at
        {
            *file = file::open(directory, node).map(|(file, _)| file);
        }
        if let Some(file) = file.as_mut() {
            file.keep(&transfer, &known, &gone);
        }
        *self.lock() = Arc::new(known);
        drop(file);
        self.changed.send_replace(());
    }

    /// The Node of this node.
    pub fn node(&self) -> Option<NodeObject> {
        self.known().node()
    }

    /// The Pod with this uid.
    pub fn pod(&self, uid: &str) -> Option<KnownPod> {
        self.known().pod(uid)
    }

    /// The Pod with this uid, if it was here and is gone from Kubernetes.
    pub fn gone_pod(&self, uid: &str) -> Option<GonePod> {
        self.known().gone(uid)
    }

    /// The Pod with this uid, `NAMESPACE/NAME`, there or gone.
    pub fn pod_text(&self, uid: &str) -> Option<String> {
        let there = self.pod(uid).map(|pod| format!("{}/{}", pod.namespace, pod.name));
        let gone = || self.gone_pod(uid).map(|pod| format!("{}/{}", pod.namespace, pod.name));
        there.or_else(gone)
    }

    /// The claim of a driver's volume, `NAMESPACE/NAME`.
    pub fn claim(&self, driver: &str, volume: &str) -> Option<String> {
        self.known().claim(driver, volume)
    }

    /// The Pod with this uid, and if its RuntimeClass takes direct volumes. Waits up to this time
    /// for the cloud to send them; none if they did not come, or cannot.
    pub async fn pod_with_class(&self, uid: &str, patience: Duration) -> Option<(KnownPod, bool)> {
        let mut changes = self.changed.subscribe();
        let known = || {
            let pod = self.pod(uid)?;
            let takes_direct = pod.direct?;
            Some((pod, takes_direct))
        };
        let waiting = async {
            loop {
                if let Some(pod) = known() {
                    return Some(pod);
                }
                if !self.is_sent() || changes.changed().await.is_err() {
                    return None;
                }
            }
        };
        tokio::time::timeout(patience, waiting).await.ok().flatten()
    }

    fn known(&self) -> Arc<Known> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Known>> {
        self.known.lock()
    }
}

#[cfg(test)]
mod tests;
