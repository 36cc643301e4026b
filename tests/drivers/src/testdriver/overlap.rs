//! Refusal of two calls at once for one volume.
//!
//! CSI makes the orchestrator responsible for one call in flight per volume. A forwarder breaks
//! that if it retries a call whose first attempt still runs, so the driver counts overlaps.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tonic::Status;

use super::keys::FUTURE_METHOD;
use super::lock::lock;

/// The first field of all requests below.
#[derive(Clone, PartialEq, Eq, Message)]
struct First {
    #[prost(string, tag = "1")]
    id: String,
}

/// The volumes of a `CreateVolumeGroupSnapshotRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
struct Many {
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
}

/// The RPCs whose first field is a volume id.
const BY_VOLUME: [&str; 17] = [
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ValidateVolumeCapabilities",
    "ControllerGetVolumeHealth",
    "ControllerGetVolume",
    "ControllerModifyVolume",
    "ControllerExpandVolume",
    "CreateSnapshot",
    "NodeStageVolume",
    "NodeUnstageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeGetVolumeStats",
    "NodeGetVolumeHealth",
    "NodeExpandVolume",
    // An RPC of a later CSI version would most likely start with its volume too.
    FUTURE_METHOD,
];

fn keys(method: &str, message: &Bytes) -> Vec<String> {
    if method == "CreateVolumeGroupSnapshot" {
        let many = Many::decode(message.clone()).unwrap_or_default();
        let mut keys: Vec<_> = many.ids.into_iter().map(|id| format!("volume {id}")).collect();
        keys.sort_unstable();
        keys.dedup();
        return keys;
    }
    let kind = match method {
        "CreateVolume" => "name",
        method if BY_VOLUME.contains(&method) => "volume",
        _ => return Vec::new(),
    };
    match First::decode(message.clone()) {
        Ok(first) if !first.id.is_empty() => vec![format!("{kind} {}", first.id)],
        _ => Vec::new(),
    }
}

/// The volumes that have a call in flight.
pub(super) struct Overlaps {
    busy: Mutex<HashMap<String, String>>,
    seen: Mutex<Vec<String>>,
}

impl Overlaps {
    pub(super) fn new() -> Self {
        Self { busy: Mutex::default(), seen: Mutex::default() }
    }

    pub(super) fn seen(&self) -> Vec<String> {
        lock(&self.seen).clone()
    }

    /// Takes the volumes of this call, or refuses it.
    pub(super) fn claim(self: &Arc<Self>, method: &str, message: &Bytes) -> Result<Claim, Status> {
        let keys = keys(method, message);
        let mut busy = lock(&self.busy);
        if let Some((key, other)) = keys.iter().find_map(|key| busy.get_key_value(key)) {
            let text = format!("{method} came for {key} while {other} was in flight");
            lock(&self.seen).push(text.clone());
            return Err(Status::aborted(text));
        }
        for key in &keys {
            busy.insert(key.clone(), method.to_owned());
        }
        Ok(Claim { keys, table: Arc::clone(self) })
    }
}

/// The volumes that one call holds until it ends or is dropped.
pub(super) struct Claim {
    keys: Vec<String>,
    table: Arc<Overlaps>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut busy = lock(&self.table.busy);
        for key in &self.keys {
            busy.remove(key);
        }
    }
}
