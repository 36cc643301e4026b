//! The state that all parts of one driver share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use proto::csi::{CreateSnapshotRequest, CreateVolumeRequest};
use tokio::time::Instant;
use tonic::Status;

use super::fault::Script;
use super::lock::lock;
use super::overlap::Overlaps;
use super::record::Log;
use super::store::Store;

/// A service that a plugin may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optional {
    /// `csi.v1.Controller`.
    Controller,
    /// `csi.v1.GroupController`.
    GroupController,
    /// `csi.v1.SnapshotMetadata`.
    SnapshotMetadata,
}

impl Optional {
    pub(super) fn of(service: &str) -> Option<Self> {
        match service {
            "Controller" => Some(Self::Controller),
            "GroupController" => Some(Self::GroupController),
            "SnapshotMetadata" => Some(Self::SnapshotMetadata),
            _ => None,
        }
    }
}

/// The memory and the switches of one driver. The generated services' traits are implemented on it.
pub(super) struct Core {
    pub(super) name: Mutex<String>,
    pub(super) node_id: String,
    pub(super) store: Arc<Mutex<Store>>,
    /// The nodes that volumes can be published to; none means any.
    pub(super) nodes: Mutex<Option<BTreeSet<String>>>,
    pub(super) script: Script,
    pub(super) log: Arc<Log>,
    pub(super) recording: AtomicBool,
    pub(super) overlaps: Arc<Overlaps>,
    pub(super) refuse_overlaps: AtomicBool,
    /// When connections ended, by either side.
    pub(super) ends: Mutex<Vec<Instant>>,
    /// How long work takes, and then its answer.
    pub(super) slow: Mutex<(Duration, Duration)>,
    /// How long a connection takes calls, and how many at a time; `None` without a limit.
    pub(super) connections: Mutex<(Option<Duration>, Option<u32>)>,
    offered: [AtomicBool; 3],
}

impl Core {
    pub(super) fn new(name: String, node_id: String) -> Self {
        Self {
            name: Mutex::new(name),
            node_id,
            store: Arc::default(),
            nodes: Mutex::default(),
            script: Script::new(),
            log: Arc::new(Log::new()),
            recording: AtomicBool::new(true),
            overlaps: Arc::new(Overlaps::new()),
            refuse_overlaps: AtomicBool::new(true),
            ends: Mutex::default(),
            slow: Mutex::default(),
            connections: Mutex::default(),
            offered: [const { AtomicBool::new(true) }; 3],
        }
    }

    /// A driver at another node, with the same name and the same storage.
    pub(super) fn beside(&self, node_id: String) -> Self {
        let name = lock(&self.name).clone();
        Self { store: self.store.clone(), ..Self::new(name, node_id) }
    }

    /// Whether requests need more than the generated services.
    pub(super) fn watches(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
            || self.refuse_overlaps.load(Ordering::Relaxed)
            || self.script.any()
    }

    pub(super) fn offers(&self, service: Optional) -> bool {
        self.offered[service as usize].load(Ordering::Relaxed)
    }

    pub(super) fn offer(&self, service: Optional, on: bool) {
        self.offered[service as usize].store(on, Ordering::Relaxed);
    }

    /// Whether a creation with this request would find its result there already.
    pub(super) fn made(&self, method: &str, message: &Bytes) -> bool {
        let store = lock(&self.store);
        match method {
            "CreateVolume" => CreateVolumeRequest::decode(message.clone())
                .is_ok_and(|request| store.volumes.values().any(|held| held.name == request.name)),
            "CreateSnapshot" => {
                CreateSnapshotRequest::decode(message.clone()).is_ok_and(|request| {
                    store.snapshots.values().any(|(name, _)| *name == request.name)
                })
            }
            _ => false,
        }
    }

    /// Runs `f` on the store and wraps its result as an answer.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Store) -> Result<T, Status>) -> Answer<T> {
        f(&mut lock(&self.store)).map(tonic::Response::new)
    }
}

/// The result of the generated traits' methods.
pub(super) type Answer<T> = Result<tonic::Response<T>, Status>;
