//! What the front answers by itself: who the driver is and what it can do, as last learned from edges.
//!
//! A sidecar exits when one of these fails, and keeps for ever what it is told. So they are answered at
//! once whatever the edges do, and never with a guess.

use bytes::Bytes;
use http::Response;
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::{Local, Method, Rewrite};
use proto::http2::forward::{Answer, Body};
use proto::names::DriverName;
use tracing::warn;

use super::plan::Planner;
use crate::error::Error;
use crate::rewrite::message;
use crate::state::driver_info::Unknown;
use crate::state::known::DriverState;
use crate::state::policy::{Placement, Scope};
use crate::state::store::writer::Store;

/// What one front says of itself.
pub(crate) struct Identity<'a> {
    planner: &'a Planner,
    store: &'a Store,
    scope: Scope,
}

impl<'a> Identity<'a> {
    pub(crate) fn of(planner: &'a Planner, store: &'a Store) -> Self {
        Self { planner, store, scope: planner.scope(store) }
    }

    /// Answers a call that is for the front itself.
    ///
    /// # Errors
    /// [`Error::NotLearned`] before any edge told of the driver; [`Error::NotImplemented`] if the
    /// driver does not implement the method.
    pub(crate) fn answer(&self, method: Method) -> Result<Response<Body>, Error> {
        let driver = &self.planner.driver;
        let local = method.local().ok_or(Error::NodeOnly(method.name()))?;
        let learned = self.store.read(|state| {
            let known = state.driver(driver).ok_or(Unknown)?;
            match local {
                // It differs at each node, so none of them is the front's.
                Local::NodeInfo => self.node_info(known),
                Local::Info | Local::Probe | Local::Capabilities(_) => {
                    let info = known.info();
                    for mismatch in info.unreported() {
                        warn!(%driver, odd = %mismatch, "its nodes differ; the front says only what all can do");
                    }
                    info.answer(local, self.scope == Scope::Node && known.has_our_topology())
                }
            }
        });
        answer(local, driver, learned).map(|message| Answer::of(frame::frame(&message)).response())
    }

    /// What the node says to which calls go that name none: the pinned one, else the only one there is.
    fn node_info(&self, driver: &DriverState) -> Result<Option<Bytes>, Unknown> {
        let nodes = driver.nodes();
        let node = match (&self.planner.only, &self.planner.policy.placement) {
            (Some(node), _) | (None, Placement::Pinned(node)) => node,
            (None, Placement::Spread) if nodes.len() == 1 => nodes.keys().next().ok_or(Unknown)?,
            (None, Placement::Spread) => return Err(Unknown),
        };
        let at = nodes.get(node).filter(|at| at.has_spoken()).ok_or(Unknown)?;
        let ours = Some(at).filter(|_| self.scope == Scope::Node);
        let Some(info) = at.answer(Local::NodeInfo) else { return Ok(None) };
        // An answer that is no protobuf is shown as it is.
        let shown = message::into_answer(Rewrite::NodeInfo, info, node, ours);
        Ok(Some(shown.unwrap_or_else(|_| info.clone())))
    }
}

/// The (unframed) answer, out of what was learned.
fn answer(
    local: Local,
    driver: &DriverName,
    learned: Result<Option<Bytes>, Unknown>,
) -> Result<Bytes, Error> {
    match (local, learned) {
        // Sidecars ask again until it is true; an error would end them.
        (Local::Probe, learned) => {
            Ok(csi::ProbeResponse { ready: Some(learned.is_ok()) }.encode_to_vec().into())
        }
        (_, Ok(Some(message))) => Ok(message),
        // Asked before Probe by some sidecars, with a second to answer. The name is ours to say.
        (Local::Info, _) => {
            let name = driver.to_string();
            let vendor_version = "unknown".to_owned();
            let info = csi::GetPluginInfoResponse { name, vendor_version, ..Default::default() };
            Ok(info.encode_to_vec().into())
        }
        (Local::Capabilities(_) | Local::NodeInfo, Ok(None)) => {
            let method = Method::answering(local).name();
            Err(Error::NotImplemented { driver: driver.clone(), method })
        }
        (Local::Capabilities(_) | Local::NodeInfo, Err(Unknown)) => {
            Err(Error::NotLearned(driver.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::Capabilities;
    use proto::csi::status::ToStatus;
    use tonic::Code;

    use super::*;

    fn ask(local: Local, learned: Result<Option<Bytes>, Unknown>) -> Result<Bytes, Error> {
        answer(local, &"d.example".parse().unwrap(), learned)
    }

    #[test]
    fn probe_is_never_an_error() {
        let ready = |learned| {
            csi::ProbeResponse::decode(ask(Local::Probe, learned).unwrap()).unwrap().ready
        };
        assert_eq!(ready(Err(Unknown)), Some(false));
        assert_eq!(ready(Ok(None)), Some(true));
    }

    #[test]
    fn the_name_is_known_before_anything_else() {
        let info =
            csi::GetPluginInfoResponse::decode(ask(Local::Info, Err(Unknown)).unwrap()).unwrap();
        assert_eq!(info.name, "d.example");
        assert!(!info.vendor_version.is_empty());
    }

    #[test]
    fn what_was_learned_is_answered_byte_for_byte() {
        let bytes = Bytes::from_static(b"\x0a\x03new\xf2\x01\x00");
        let plugin = Local::Capabilities(Capabilities::Plugin);
        assert_eq!(ask(plugin, Ok(Some(bytes.clone()))).unwrap(), bytes);
    }

    #[test]
    fn capabilities_are_never_guessed() {
        let controller = Local::Capabilities(Capabilities::Controller);
        assert_eq!(ask(controller, Err(Unknown)).unwrap_err().code(), Code::Unavailable);
        let group = Local::Capabilities(Capabilities::Group);
        assert_eq!(ask(group, Ok(None)).unwrap_err().code(), Code::Unimplemented);
    }
}
