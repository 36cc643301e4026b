//! Refusal of calls that may not be at a driver together.
//!
//! CSI asks the orchestrator for one call in flight per volume. Kubelets and sidecars take that for
//! one per volume and target, or per volume and node, and drivers are built for them. A forwarder
//! breaks even that if it retries a call whose first attempt still runs, so the driver counts
//! overlaps. What may be together is written down here anew, and not taken from what is tested.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::{DecodeError, Message};
use proto::csi;
use proto::csi::volume_content_source::Type;
use tonic::Status;

use super::lock::lock;

/// What a call holds while it runs, and whether nobody else may hold it.
type Hold = (String, bool);

fn alone(key: String) -> Hold {
    (key, true)
}

fn together(key: String) -> Hold {
    (key, false)
}

fn volume(id: &str) -> String {
    format!("volume {id}")
}

fn at_node(id: &str) -> String {
    format!("volume {id} at this node")
}

fn source(of: Option<csi::VolumeContentSource>) -> Option<Hold> {
    Some(together(match of?.r#type? {
        Type::Snapshot(source) => format!("snapshot {}", source.snapshot_id),
        Type::Volume(source) => volume(&source.volume_id),
    }))
}

fn attachment(id: &str, node: &str) -> Vec<Hold> {
    match node {
        "" => vec![alone(volume(id))],
        node => vec![alone(format!("volume {id} at {node}")), together(volume(id))],
    }
}

fn target(id: &str, path: &str) -> Vec<Hold> {
    vec![alone(format!("volume {id} at {path}")), together(at_node(id))]
}

fn holds(method: &str, message: &Bytes) -> Result<Vec<Hold>, DecodeError> {
    let message = message.clone();
    Ok(match method {
        "CreateVolume" => {
            let request = csi::CreateVolumeRequest::decode(message)?;
            let name = alone(format!("name {}", request.name));
            [name].into_iter().chain(source(request.volume_content_source)).collect()
        }
        "CreateSnapshot" => {
            let request = csi::CreateSnapshotRequest::decode(message)?;
            let name = alone(format!("snapshot name {}", request.name));
            vec![name, together(volume(&request.source_volume_id))]
        }
        "CreateVolumeGroupSnapshot" => {
            let request = csi::CreateVolumeGroupSnapshotRequest::decode(message)?;
            let name = alone(format!("group name {}", request.name));
            let volumes = request.source_volume_ids.iter().map(|id| together(volume(id)));
            [name].into_iter().chain(volumes).collect()
        }
        "DeleteVolume" => {
            let id = csi::DeleteVolumeRequest::decode(message)?.volume_id;
            vec![alone(volume(&id)), alone(at_node(&id))]
        }
        "DeleteSnapshot" => {
            let id = csi::DeleteSnapshotRequest::decode(message)?.snapshot_id;
            vec![alone(format!("snapshot {id}"))]
        }
        "ControllerPublishVolume" => {
            let request = csi::ControllerPublishVolumeRequest::decode(message)?;
            attachment(&request.volume_id, &request.node_id)
        }
        "ControllerUnpublishVolume" => {
            let request = csi::ControllerUnpublishVolumeRequest::decode(message)?;
            attachment(&request.volume_id, &request.node_id)
        }
        "ControllerExpandVolume" => {
            let id = csi::ControllerExpandVolumeRequest::decode(message)?.volume_id;
            vec![alone(format!("size of {id}")), together(volume(&id))]
        }
        "ControllerModifyVolume" => {
            let id = csi::ControllerModifyVolumeRequest::decode(message)?.volume_id;
            vec![alone(format!("attributes of {id}")), together(volume(&id))]
        }
        _ => holds_at_node(method, message)?,
    })
}

fn holds_at_node(method: &str, message: Bytes) -> Result<Vec<Hold>, DecodeError> {
    Ok(match method {
        "NodeStageVolume" => {
            vec![alone(at_node(&csi::NodeStageVolumeRequest::decode(message)?.volume_id))]
        }
        "NodeUnstageVolume" => {
            vec![alone(at_node(&csi::NodeUnstageVolumeRequest::decode(message)?.volume_id))]
        }
        "NodeExpandVolume" => {
            vec![alone(at_node(&csi::NodeExpandVolumeRequest::decode(message)?.volume_id))]
        }
        "NodePublishVolume" => {
            let request = csi::NodePublishVolumeRequest::decode(message)?;
            target(&request.volume_id, &request.target_path)
        }
        "NodeUnpublishVolume" => {
            let request = csi::NodeUnpublishVolumeRequest::decode(message)?;
            target(&request.volume_id, &request.target_path)
        }
        _ => Vec::new(),
    })
}

/// A call in flight that holds something.
struct Busy {
    call: u64,
    method: String,
    is_alone: bool,
}

/// What calls in flight hold.
#[derive(Default)]
struct Table {
    last: u64,
    held: HashMap<String, Vec<Busy>>,
}

/// The calls in flight, and the overlaps so far.
pub(super) struct Overlaps {
    busy: Mutex<Table>,
    seen: Mutex<Vec<String>>,
}

impl Overlaps {
    pub(super) fn new() -> Self {
        Self { busy: Mutex::default(), seen: Mutex::default() }
    }

    pub(super) fn seen(&self) -> Vec<String> {
        lock(&self.seen).clone()
    }

    /// Takes what this call holds, or refuses it.
    pub(super) fn claim(self: &Arc<Self>, method: &str, message: &Bytes) -> Result<Claim, Status> {
        let holds = holds(method, message).unwrap_or_default();
        let mut table = lock(&self.busy);
        for (key, is_alone) in &holds {
            let held = table.held.get(key).into_iter().flatten();
            if let Some(other) = held.into_iter().find(|other| *is_alone || other.is_alone) {
                let other = &other.method;
                let text = format!("{method} came for {key} while {other} was in flight");
                lock(&self.seen).push(text.clone());
                return Err(Status::aborted(text));
            }
        }
        table.last += 1;
        let call = table.last;
        for (key, is_alone) in &holds {
            let busy = Busy { call, method: method.to_owned(), is_alone: *is_alone };
            table.held.entry(key.clone()).or_default().push(busy);
        }
        let keys = holds.into_iter().map(|(key, _)| key).collect();
        Ok(Claim { call, keys, table: Arc::clone(self) })
    }
}

/// What one call holds until it ends or is dropped.
pub(super) struct Claim {
    call: u64,
    keys: Vec<String>,
    table: Arc<Overlaps>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = lock(&self.table.busy);
        for key in &self.keys {
            if let Some(held) = table.held.get_mut(key) {
                held.retain(|busy| busy.call != self.call);
            }
        }
        table.held.retain(|_, held| !held.is_empty());
    }
}
