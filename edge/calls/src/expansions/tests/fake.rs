//! A driver that answers as a test says.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::path::PathBuf;

use http::{Request, Response};
use hyper::body::Incoming;
use parking_lot::{Mutex, MutexGuard};
use proto::csi::node_service_capability::{Rpc, Type, rpc};
use proto::http2::body::Body;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tonic::Status;

use super::super::*;

pub(super) const SIZE: i64 = 4 << 30;

/// A driver that keeps its calls, and the state directory as it was at each of them.
pub(super) struct Fake {
    pub(super) state: PathBuf,
    pub(super) expands_on_node: bool,
    pub(super) needs_node: bool,
    pub(super) calls: Mutex<Vec<(Method, Bytes)>>,
    /// Copies of the state directory.
    pub(super) moments: Mutex<Vec<TempDir>>,
    /// The next answers of NodeExpandVolume; OK without one.
    pub(super) failures: Mutex<VecDeque<Status>>,
    /// NodeExpandVolume takes one of these.
    pub(super) room: Semaphore,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Fake {
    pub(super) fn new(state: &Path) -> Self {
        Self {
            state: state.to_owned(),
            expands_on_node: true,
            needs_node: true,
            calls: Mutex::default(),
            moments: Mutex::default(),
            failures: Mutex::default(),
            room: Semaphore::new(Semaphore::MAX_PERMITS),
        }
    }

    pub(super) fn calls_of(&self, method: Method) -> Vec<Bytes> {
        let calls = lock(&self.calls);
        calls.iter().filter(|(of, _)| *of == method).map(|(_, message)| message.clone()).collect()
    }

    pub(super) fn expanded(&self) -> Vec<csi::NodeExpandVolumeRequest> {
        let calls = self.calls_of(Method::NodeExpandVolume).into_iter();
        calls.map(|message| csi::NodeExpandVolumeRequest::decode(message).unwrap()).collect()
    }

    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let method = Method::of_path(request.uri().path()).unwrap();
        let body = frame::collect(request.into_body()).await.unwrap();
        let message = frame::message(&body).unwrap();
        if method.local().is_none() {
            lock(&self.calls).push((method, message));
            lock(&self.moments).push(copy(&self.state));
        }
        let answer = match method {
            Method::GetPluginInfo => {
                csi::GetPluginInfoResponse { name: driver().to_string(), ..Default::default() }
                    .encode_to_vec()
            }
            Method::NodeGetCapabilities => {
                let expand = Rpc { r#type: rpc::Type::ExpandVolume.into() };
                let expand = csi::NodeServiceCapability { r#type: Some(Type::Rpc(expand)) };
                let capabilities = self.expands_on_node.then_some(expand).into_iter().collect();
                csi::NodeGetCapabilitiesResponse { capabilities }.encode_to_vec()
            }
            Method::ControllerExpandVolume => {
                let node_expansion_required = self.needs_node;
                let answer = csi::ControllerExpandVolumeResponse {
                    capacity_bytes: SIZE,
                    node_expansion_required,
                };
                let mut answer = answer.encode_to_vec();
                // A field newer than csi-edge.
                wire::append(&mut answer, &[99], b"new");
                answer
            }
            Method::NodeExpandVolume => {
                let permit = self.room.acquire().await.unwrap();
                permit.forget();
                if let Some(status) = lock(&self.failures).pop_front() {
                    return Ok(status.into_http());
                }
                csi::NodeExpandVolumeResponse { capacity_bytes: SIZE }.encode_to_vec()
            }
            _ => Vec::new(),
        };
        Ok(Answer::of(frame::frame(&answer)).response())
    }
}

pub(super) fn driver() -> DriverName {
    "d.example".parse().unwrap()
}

/// A copy of a state directory, as a crash leaves it.
pub(super) fn copy(state: &Path) -> TempDir {
    let copied = tempfile::tempdir().unwrap();
    let into = copied.path().join("node-volumes");
    std::fs::create_dir(&into).unwrap();
    for entry in std::fs::read_dir(state.join("node-volumes")).into_iter().flatten() {
        let entry = entry.unwrap();
        match std::fs::copy(entry.path(), into.join(entry.file_name())) {
            // A file that is being written is renamed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            copied => drop(copied.unwrap()),
        }
    }
    copied
}
