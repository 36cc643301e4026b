//! Our topology in what the node's own callers see of a driver that has none: the kubelet publishes it as CSINode.
//!
//! Only here and in the cloud's fronts: what the cloud asks a driver over a link is answered as the driver does.

use bytes::Bytes;
use proto::csi::Method;
use proto::csi::frame;
use proto::csi::status::BadRequest;
use proto::csi::topology;
use proto::csi::topology::Scope;
use proto::http2::forward::Answer;
use proto::names::NodeName;

use crate::drivers::Driver;
use crate::error::Error;
use crate::scopes::Scopes;

/// A call of this node's own callers in which topology matters.
pub(crate) struct TopologyRewrite<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) scopes: &'a Scopes,
    pub(crate) node: NodeName,
    pub(crate) method: Method,
}

impl TopologyRewrite<'_> {
    /// The (framed) request as the driver gets it, made of its message.
    ///
    /// # Errors
    /// It is malformed, or it is not known whether the driver has our topology; nothing was passed on.
    pub(crate) fn request(&self, message: &Bytes) -> Result<Bytes, Error> {
        if self.driver.has_own_topology() == Some(false) {
            self.scope()?;
        }
        let bad = |source| Error::BadRequest {
            method: self.method.name(),
            source: BadRequest::Malformed(source),
        };
        // Our topology is nobody else's: it goes whatever the driver has.
        topology::out_of_request(self.method.rewrite(), message)
            .map(|message| frame::frame(&message))
            .map_err(bad)
    }

    /// The driver's answer as its caller sees it.
    ///
    /// # Errors
    /// It is malformed, or it is not known whether the driver has our topology.
    pub(crate) fn answer(&self, answer: Answer) -> Result<Answer, Error> {
        let Some(body) = answer.ok() else { return Ok(answer) };
        let Self { driver, node, method, .. } = self;
        let gone = || Error::DriverBroke {
            driver: driver.name.clone(),
            source: "it was gone before it said whether it has topology of its own".into(),
        };
        if driver.has_own_topology().ok_or_else(gone)? || self.scope()? == Scope::Shared {
            return Ok(answer);
        }
        let bad = |_| Error::BadAnswer {
            driver: driver.name.clone(),
            node: node.clone(),
            method: method.name(),
            why: "and the answer cannot be read",
        };
        let message = frame::message(body).map_err(|_| bad(()))?;
        let shown = topology::into_answer(method.rewrite(), &message, node).map_err(|_| bad(()))?;
        Ok(answer.with(frame::frame(&shown)))
    }

    fn scope(&self) -> Result<Scope, Error> {
        self.scopes
            .of(&self.driver.name)
            .ok_or_else(|| Error::ScopeUnknown(self.driver.name.clone()))
    }
}
