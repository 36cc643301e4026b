//! A call as it came in, read once. Past this door nobody parses the request again.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use proto::csi::frame;
use proto::csi::status::BadRequest;
use proto::csi::wire::Malformed;
use proto::csi::{DirectCall, Id, Key, Learn, Method};
use proto::http2::forward::Call;
use tokio::time::Instant;

use crate::error::Error;
use crate::rewrite::message::{self, Extracted};
use crate::rewrite::{created, direct};
use crate::telemetry::calls::Running;

/// A call with all that the rest needs to know of it.
#[derive(Clone)]
pub(crate) struct IncomingCall {
    /// Its RPC.
    pub(crate) method: Method,
    /// What it is about.
    pub(crate) key: Key,
    /// Its unframed request, as the caller sent it.
    pub(crate) message: Bytes,
    /// The unframed request for the driver, at whatever node: without what is ours.
    pub(crate) for_driver: Bytes,
    /// What the request holds besides what is for the driver.
    pub(crate) extracted: Extracted,
    /// The capacity that a CreateVolume asks for.
    pub(crate) range: Option<created::Range>,
    /// The CSI node id that a volume is attached to or detached from; empty for all.
    pub(crate) node_id: Option<String>,
    /// Whether it is about a direct volume.
    pub(crate) is_direct: bool,
    /// What is sent: the caller's headers and the framed request for the driver.
    pub(crate) call: Call,
    /// Until when its caller waits.
    pub(crate) deadline: Option<Instant>,
    /// Where others see how far it got.
    pub(crate) running: Arc<Running>,
}

/// A request that was read from its connection, and by when it must be answered.
pub(crate) struct Arrived {
    pub(crate) method: Method,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) deadline: Option<Instant>,
    pub(crate) running: Arc<Running>,
}

/// Reads a call. `class` gives the parameters of ours that a volume was made with.
///
/// # Errors
/// The request is not what its method takes, or asks for what cannot be had directly.
pub(crate) fn prepare(
    arrived: Arrived,
    class: impl FnOnce(&Id) -> BTreeMap<String, String>,
) -> Result<IncomingCall, Error> {
    let Arrived { method, parts, body, deadline, running } = arrived;
    let message = frame::message(&body).map_err(|e| bad(method, e.into()))?;
    let key = method.key(&message).map_err(|e| bad(method, e.into()))?;
    running.is_about(&key);
    let (mut for_driver, extracted) =
        message::extract(method, &message).map_err(|e| malformed(method, e))?;
    let mut is_direct = false;
    let mut range = None;
    if method.direct() == Some(DirectCall::Create) {
        direct::check_create(&message, &extracted.parameters)?;
        range = created::range(&message).map_err(|e| malformed(method, e))?;
    } else if let Key::Home(id) = &key
        && let Some(request) = direct::of_volume(method, &message, || class(id))?
    {
        for_driver = request;
        is_direct = true;
    }
    let node_id = match method.learn() {
        Learn::Attached(read) | Learn::Detached(read) => {
            Some(read(&message).map_err(|e| bad(method, e.into()))?)
        }
        Learn::Nothing | Learn::Made(_) | Learn::Gone | Learn::Resized(_) => None,
    };
    let body = if for_driver == message { body } else { frame::frame(&for_driver) };
    let call = Call::new(parts, body);
    Ok(IncomingCall {
        method,
        key,
        message,
        for_driver,
        extracted,
        range,
        node_id,
        is_direct,
        call,
        deadline,
        running,
    })
}

impl IncomingCall {
    /// Makes this what is sent, instead of the request that fits every node.
    pub(crate) fn send(&mut self, request: &Bytes) {
        if *request != self.for_driver {
            self.call.body = frame::frame(request);
        }
    }

    /// The request cannot be edited.
    pub(crate) fn malformed(&self, source: Malformed) -> Error {
        malformed(self.method, source)
    }
}

/// The request of a method cannot be read.
pub(crate) fn bad(method: Method, source: BadRequest) -> Error {
    Error::BadRequest { method: method.name(), source }
}

fn malformed(method: Method, source: Malformed) -> Error {
    bad(method, source.into())
}
