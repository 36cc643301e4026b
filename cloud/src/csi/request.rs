//! A sidecar's request: parsed once, then completed with the stored facts about its subject.
//! Nothing changes it afterwards; each attempt at a node gets an [`Outbound`] of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;
use http::uri::PathAndQuery;
use proto::csi::frame;
use proto::csi::status::BadRequest;
use proto::csi::wire::Malformed;
use proto::csi::{DirectCall, Id, Key, Learn, Method};
use proto::host::chain;
use proto::http2::forward::Call as Outbound;
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;

use crate::error::Error;
use crate::nodes::connections::Lane;
use crate::nodes::node_call::{NodeCall, Sender};
use crate::rewrite::message::{self, Extracted};
use crate::rewrite::{class, created, direct};
use crate::state::driver_state::DriverState;
use crate::telemetry::calls::Running;

/// A parsed request.
pub(crate) struct CallRequest {
    pub(crate) method: Method,
    /// The subject of the call.
    pub(crate) key: Key,
    /// The unframed request, as the caller sent it.
    pub(crate) message: Bytes,
    /// The unframed request for the driver: without our parameters, and equal for all nodes.
    pub(crate) for_driver: Bytes,
    /// The parts of the request that are not for the driver.
    pub(crate) extracted: Extracted,
    /// The capacity that a CreateVolume asks for.
    pub(crate) range: Option<created::Range>,
    /// The CSI node id of an attach or detach; empty for all nodes.
    pub(crate) node_id: Option<String>,
    /// True if the call is about an existing direct volume.
    pub(crate) is_direct: bool,
    headers: HeaderMap,
    path: PathAndQuery,
    /// The framed request, as the caller sent it.
    body: Bytes,
    /// The caller's deadline.
    pub(crate) deadline: Option<Instant>,
    /// Shows the progress of the call.
    pub(crate) running: Arc<Running>,
}

/// A request as read from its connection.
pub(crate) struct RawRequest {
    pub(crate) method: Method,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) deadline: Option<Instant>,
    pub(crate) running: Arc<Running>,
}

/// The stored facts about the subject of a request.
#[derive(Default)]
pub(crate) struct SubjectFacts {
    /// The `edge-csi.io/` parameters of the volume. Empty if csi-cloud did not create it.
    parameters: BTreeMap<String, String>,
    /// True if a create of this name was sent before, by this version or an older one.
    was_sent: bool,
}

/// Parses a request.
///
/// # Errors
/// The request is malformed.
pub(crate) fn parse(raw: RawRequest) -> Result<CallRequest, Error> {
    let RawRequest { method, parts, body, deadline, running } = raw;
    let message = frame::message(&body).map_err(|error| bad_request(method, error.into()))?;
    let key = method.key(&message).map_err(|error| bad_request(method, error.into()))?;
    running.is_about(&key);
    let (for_driver, extracted) =
        message::extract(method, &message).map_err(|error| malformed(method, error))?;
    if let Some(claim) = &extracted.claim {
        running.is_for(&claim.namespace, &claim.name);
    }
    let range = match method.direct() {
        Some(DirectCall::Create) => {
            created::range(&message).map_err(|error| malformed(method, error))?
        }
        _ => None,
    };
    let node_id = match method.learn() {
        Learn::Attached(read) | Learn::Detached(read) => {
            Some(read(&message).map_err(|error| bad_request(method, error.into()))?)
        }
        Learn::Nothing | Learn::Made(_) | Learn::Gone | Learn::Resized(_) => None,
    };
    let path = parts.uri.path_and_query().cloned();
    Ok(CallRequest {
        method,
        key,
        message,
        for_driver,
        extracted,
        range,
        node_id,
        is_direct: false,
        headers: parts.headers,
        path: path.unwrap_or_else(|| PathAndQuery::from_static(method.path())),
        body,
        deadline,
        running,
    })
}

/// Completes a request with what is stored of its subject.
///
/// # Errors
/// A class has an unknown `edge-csi.io/` parameter, or the request is impossible for a direct
/// volume.
pub(crate) fn enrich(
    driver: &DriverName,
    request: CallRequest,
    facts: SubjectFacts,
) -> Result<CallRequest, Error> {
    let CallRequest { method, key, message, .. } = &request;
    // An older version may have sent it, so a final code could lose a volume.
    if !facts.was_sent {
        class::check(*method, message)?;
    }
    if method.direct() == Some(DirectCall::Create) {
        let parameters = &request.extracted.parameters;
        let checked = direct::check_class(parameters)
            .and_then(|()| direct::check_create(message, parameters));
        match checked {
            Ok(()) => {}
            Err(error) if facts.was_sent => {
                return Err(class_changed(driver, *method, key, &error));
            }
            Err(error) => return Err(error),
        }
    } else if matches!(key, Key::Home(_))
        && let Some(edited) = direct::of_volume(*method, message, || facts.parameters)?
    {
        let (for_driver, is_direct) = (edited.message, edited.is_direct);
        return Ok(CallRequest { for_driver, is_direct, ..request });
    }
    Ok(request)
}

impl SubjectFacts {
    /// What is stored of a request's subject. `None` stands for a driver that no node ever had.
    pub(crate) fn new(driver: Option<&DriverState>, request: &CallRequest) -> Self {
        let Some(driver) = driver else { return Self::default() };
        match &request.key {
            Key::Create { name, .. } | Key::Snapshot { name, .. } => {
                let name = Id::Name(request.method, name.clone());
                Self { was_sent: driver.intent(&name).is_some(), ..Self::default() }
            }
            Key::Home(id) if request.method.direct().is_some() => {
                let parameters = driver.home(id).and_then(|home| home.parameters.as_deref());
                Self { parameters: parameters.cloned().unwrap_or_default(), ..Self::default() }
            }
            _ => Self::default(),
        }
    }
}

impl CallRequest {
    /// This call at a node.
    pub(crate) fn at<'a>(&self, node: &'a NodeName, sender: Sender<'a>) -> NodeCall<'a> {
        let about = sender.in_doubt.map(|_| self.method.about(&self.key));
        NodeCall {
            sender,
            node,
            method: self.method,
            lane: Lane::Call,
            deadline: self.deadline,
            begins_by: sender.begins_by(std::slice::from_ref(node)),
            call: Some(self.running.clone()),
            about: about.unwrap_or_default(),
        }
    }

    /// The call with this unframed message and the caller's headers.
    pub(crate) fn outbound(&self, message: &Bytes) -> Outbound {
        let body = match *message == self.message {
            true => self.body.clone(),
            false => frame::frame(message),
        };
        Outbound { headers: self.headers.clone(), path: self.path.clone(), body }
    }

    /// The error of a request that cannot be edited.
    pub(crate) fn malformed(&self, source: Malformed) -> Error {
        malformed(self.method, source)
    }
}

/// A create that would be refused now was sent before: a final code could lose its volume.
fn class_changed(driver: &DriverName, method: Method, key: &Key, refusal: &Error) -> Error {
    let name = method.about(key).first().map(|id| id.text().to_owned()).unwrap_or_default();
    let why = format!(
        "it was sent before, and its class or claim has changed since ({}); give it a class with \
         the former parameters, so that the outcome gets known",
        chain(refusal)
    );
    Error::DirectNotYet { driver: driver.clone(), name, why }
}

/// The error of a request that cannot be read.
pub(crate) fn bad_request(method: Method, source: BadRequest) -> Error {
    Error::BadRequest { method: method.name(), source }
}

fn malformed(method: Method, source: Malformed) -> Error {
    bad_request(method, source.into())
}
