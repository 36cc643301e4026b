//! Parses a request once and keeps everything that later steps need.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use proto::csi::frame;
use proto::csi::status::BadRequest;
use proto::csi::wire::Malformed;
use proto::csi::{DirectCall, Id, Key, Learn, Method};
use proto::host::chain;
use proto::http2::forward::Call;
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;

use crate::error::Error;
use crate::nodes::node_call::{NodeCall, Sender};
use crate::rewrite::message::{self, Extracted};
use crate::rewrite::{class, created, direct};
use crate::telemetry::calls::Running;

/// A parsed call.
#[derive(Clone)]
pub(crate) struct IncomingCall {
    pub(crate) method: Method,
    /// The subject of the call.
    pub(crate) key: Key,
    /// The unframed request, as the caller sent it.
    pub(crate) message: Bytes,
    /// The unframed request without our parameters, before a node is chosen.
    pub(crate) for_driver: Bytes,
    /// The parts of the request that are not for the driver.
    pub(crate) extracted: Extracted,
    /// The capacity that a CreateVolume asks for.
    pub(crate) range: Option<created::Range>,
    /// The CSI node id of an attach or detach; empty for all nodes.
    pub(crate) node_id: Option<String>,
    /// True if the volume is direct.
    pub(crate) is_direct: bool,
    /// The outbound call: the caller's headers and the framed request for the driver.
    pub(crate) call: Call,
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

/// Parses a request. `parameters_of` gives the `edge-csi.io/` parameters of an existing volume.
/// `was_sent` is true if a create of the name was sent before.
///
/// # Errors
/// The request is malformed, a class has an unknown `edge-csi.io/` parameter, or the request is
/// impossible for a direct volume.
pub(crate) fn prepare(
    driver: &DriverName,
    raw: RawRequest,
    parameters_of: impl FnOnce(&Id) -> BTreeMap<String, String>,
    was_sent: impl Fn(&Id) -> bool,
) -> Result<IncomingCall, Error> {
    let RawRequest { method, parts, body, deadline, running } = raw;
    let message = frame::message(&body).map_err(|error| bad_request(method, error.into()))?;
    let key = method.key(&message).map_err(|error| bad_request(method, error.into()))?;
    running.is_about(&key);
    let (mut for_driver, extracted) =
        message::extract(method, &message).map_err(|error| malformed(method, error))?;
    if let Some(claim) = &extracted.claim {
        running.is_for(&claim.namespace, &claim.name);
    }
    // An older version may have sent it, so a final code could lose a volume.
    let is_sent = || method.subjects(&key).iter().any(&was_sent);
    class::check(method, &message).or_else(|error| is_sent().then_some(()).ok_or(error))?;
    let mut is_direct = false;
    let mut range = None;
    if method.direct() == Some(DirectCall::Create) {
        direct::check_class(&extracted.parameters)
            .and_then(|()| direct::check_create(&message, &extracted.parameters))
            .map_err(
                |error| if is_sent() { class_changed(driver, method, &key, &error) } else { error },
            )?;
        range = created::range(&message).map_err(|error| malformed(method, error))?;
    } else if let Key::Home(id) = &key
        && let Some(request) = direct::of_volume(method, &message, || parameters_of(id))?
    {
        for_driver = request.message;
        is_direct = request.is_direct;
    }
    let node_id = match method.learn() {
        Learn::Attached(read) | Learn::Detached(read) => {
            Some(read(&message).map_err(|error| bad_request(method, error.into()))?)
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
    /// This call at a node.
    pub(crate) fn at<'a>(&self, node: &'a NodeName, sender: Sender<'a>) -> NodeCall<'a> {
        let about = sender.in_doubt.map(|_| self.method.subjects(&self.key));
        NodeCall {
            sender,
            node,
            method: self.method,
            deadline: self.deadline,
            call: Some(self.running.clone()),
            about: about.unwrap_or_default(),
        }
    }

    /// Takes the decision on a class that left open whether the volume is direct.
    ///
    /// # Errors
    /// The request is impossible for a direct volume, or malformed.
    pub(crate) fn decide(&mut self, is_direct: bool) -> Result<(), Error> {
        let settings = proto::csi::direct::decided(&self.extracted.parameters, is_direct);
        direct::check_create(&self.message, &settings)?;
        let edited = direct::out_of(self.method, self.for_driver.clone(), &settings);
        self.for_driver = edited.map_err(|error| self.malformed(error))?;
        self.call.body = frame::frame(&self.for_driver);
        self.extracted.parameters = settings;
        Ok(())
    }

    /// Sets the request for the chosen node.
    pub(crate) fn set_request(&mut self, request: &Bytes) {
        if *request != self.for_driver {
            self.call.body = frame::frame(request);
        }
    }

    /// The error of a request that cannot be edited.
    pub(crate) fn malformed(&self, source: Malformed) -> Error {
        malformed(self.method, source)
    }
}

/// A create that would be refused now was sent before: a final code could lose its volume.
fn class_changed(driver: &DriverName, method: Method, key: &Key, refusal: &Error) -> Error {
    let name = method.subjects(key).first().map(|id| id.text().to_owned()).unwrap_or_default();
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
