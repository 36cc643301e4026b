//! Rewrites topology in calls of the node's own callers, if the driver has none of its own. The
//! kubelet publishes the result as CSINode. Where the cloud publishes it, there is none at all.
//!
//! Only this file and the cloud's fronts rewrite: a call over a link is answered as the driver
//! answers. It may use `scopes`, `error`, `drivers` and `introductions`.

use bytes::Bytes;
use proto::csi::frame;
use proto::csi::status::BadRequest;
use proto::csi::topology;
use proto::csi::topology::Scope;
use proto::csi::{Method, Rewrite};
use proto::http2::forward::Answer;
use proto::names::NodeName;

use crate::drivers::Driver;
use crate::error::Error;
use crate::introductions::Introductions;
use crate::scopes::Scopes;

/// A call of the node's own callers that carries topology.
pub(crate) struct TopologyRewrite<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) scopes: &'a Scopes,
    pub(crate) introductions: &'a Introductions,
    pub(crate) node: NodeName,
    pub(crate) method: Method,
}

impl TopologyRewrite<'_> {
    /// The framed request for the driver, made of the caller's message.
    ///
    /// # Errors
    /// It is malformed, or the driver's scope is not known. Nothing was passed on.
    pub(crate) fn request(&self, message: &Bytes) -> Result<Bytes, Error> {
        if !self.is_left_out() && self.has_own_topology() == Some(false) {
            self.scope()?;
        }
        let bad = |source| Error::BadRequest {
            method: self.method.name(),
            source: BadRequest::Malformed(source),
        };
        // Our topology never reaches a driver, whatever its own.
        topology::out_of_request(self.method.rewrite(), message)
            .map(|message| frame::frame(&message))
            .map_err(bad)
    }

    /// The driver's answer as its caller sees it.
    ///
    /// # Errors
    /// It is malformed, or the driver's scope is not known.
    pub(crate) fn answer(&self, answer: Answer) -> Result<Answer, Error> {
        let Some(body) = answer.ok() else { return Ok(answer) };
        let Self { driver, node, method, .. } = self;
        let bad = |_| Error::BadAnswer {
            at: driver.socket_of(method.path()),
            method: method.name(),
            why: "and the answer cannot be read",
        };
        let message = || frame::message(body).map_err(|_| bad(()));
        if self.is_left_out() {
            let shown = topology::out_of_answer(method.rewrite(), &message()?);
            return Ok(answer.with(frame::frame(&shown.map_err(|_| bad(()))?)));
        }
        let unsaid = || Error::BadAnswer {
            at: driver.socket_of(method.path()),
            method: method.name(),
            why: "before it said whether it has topology of its own",
        };
        if self.has_own_topology().ok_or_else(unsaid)? || self.scope()? == Scope::Shared {
            return Ok(answer);
        }
        let shown =
            topology::into_answer(method.rewrite(), &message()?, node).map_err(|_| bad(()))?;
        Ok(answer.with(frame::frame(&shown)))
    }

    /// True if the call says where volumes are accessible, and the cloud publishes that.
    ///
    /// A kubelet that hears of topology always changes its Node, which it cannot do offline.
    fn is_left_out(&self) -> bool {
        let is_said = match self.method.rewrite() {
            Rewrite::PluginCapabilities | Rewrite::NodeInfo => true,
            Rewrite::Nothing
            | Rewrite::CreateVolume
            | Rewrite::CreateSnapshot
            | Rewrite::Capacity
            | Rewrite::ListVolumes
            | Rewrite::ListSnapshots => false,
        };
        is_said && self.scopes.publishes_topology(&self.driver.name)
    }

    /// Whether the driver has its own topology; while it is away, whether it had.
    fn has_own_topology(&self) -> Option<bool> {
        let had = || self.introductions.has_own_topology(&self.driver.name);
        self.driver.has_own_topology().or_else(had)
    }

    fn scope(&self) -> Result<Scope, Error> {
        let unknown = || Error::ScopeUnknown { at: self.driver.socket_of(self.method.path()) };
        self.scopes.of(&self.driver.name).ok_or_else(unknown)
    }
}
