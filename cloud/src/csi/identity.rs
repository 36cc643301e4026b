//! Answers of the front itself: the driver's identity and capabilities, as edges reported them.
//!
//! A sidecar exits if one of these calls fails, and never asks again after an answer. So they are
//! answered at once, with or without links, and never by a guess.

use bytes::Bytes;
use http::Response;
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::{Local, Method, Rewrite};
use proto::http2::body::Body;
use proto::http2::forward::Answer;
use proto::names::{DriverName, NodeName};
use tracing::warn;

use crate::error::Error;
use crate::rewrite::message;
use crate::state::driver_info::Unknown;
use crate::state::driver_state::DriverState;
use crate::state::policy::{Placement, Scope};
use crate::state::store::writer::Store;

/// The identity and capabilities of one front.
pub(crate) struct FrontIdentity<'a> {
    pub(crate) driver: &'a DriverName,
    /// The node of a node's own front.
    pub(crate) only: Option<&'a NodeName>,
    pub(crate) placement: &'a Placement,
    pub(crate) scope: Scope,
    pub(crate) store: &'a Store,
}

impl FrontIdentity<'_> {
    /// Answers a call about the front itself.
    ///
    /// # Errors
    /// [`Error::NotLearned`] before any edge reported the driver; [`Error::NotImplemented`] if the
    /// driver does not implement the method.
    pub(crate) fn answer(&self, method: Method) -> Result<Response<Body>, Error> {
        let driver = self.driver;
        let local = method.local().ok_or(Error::NodeOnly(method.name()))?;
        let reported = self.store.read(|state| {
            let state = state.driver(driver).ok_or(Unknown)?;
            match local {
                Local::NodeInfo => self.node_info(state),
                Local::Info | Local::Probe | Local::Capabilities(_) => {
                    let info = state.info();
                    for mismatch in info.unreported() {
                        warn!(
                            %driver,
                            %mismatch,
                            "its nodes differ; the front says only what all can do"
                        );
                    }
                    info.answer(local, self.scope == Scope::Node && state.has_our_topology())
                }
            }
        });
        let message = answer(local, driver, reported)?;
        Ok(Answer::of(frame::frame(&message)).response())
    }

    /// The NodeGetInfo answer of the front's own node, the pinned one, or the only one.
    fn node_info(&self, driver: &DriverState) -> Result<Option<Bytes>, Unknown> {
        let nodes = driver.nodes();
        let node = match (self.only, self.placement) {
            (Some(node), _) | (None, Placement::Pinned(node)) => node,
            (None, Placement::Spread) if nodes.len() == 1 => nodes.keys().next().ok_or(Unknown)?,
            (None, Placement::Spread) => return Err(Unknown),
        };
        let at = nodes.get(node).filter(|at| at.has_spoken()).ok_or(Unknown)?;
        let Some(info) = at.answer(Local::NodeInfo) else { return Ok(None) };
        let ours = Some(at).filter(|_| self.scope == Scope::Node);
        // An answer that cannot be parsed is passed on unchanged.
        let shown = message::into_answer(Rewrite::NodeInfo, info, node, ours);
        Ok(Some(shown.unwrap_or_else(|_| info.clone())))
    }
}

/// The unframed answer, from the last reports.
fn answer(
    local: Local,
    driver: &DriverName,
    reported: Result<Option<Bytes>, Unknown>,
) -> Result<Bytes, Error> {
    match (local, reported) {
        (Local::Info, Ok(Some(message))) if !has_name(&message, driver) => unknown_version(driver),
        // Sidecars probe until `ready` is true; an error would end them.
        (Local::Probe, reported) => {
            Ok(csi::ProbeResponse { ready: Some(reported.is_ok()) }.encode_to_vec().into())
        }
        (_, Ok(Some(message))) => Ok(message),
        // Some sidecars ask this before Probe and wait one second. The config has the name.
        (Local::Info, _) => unknown_version(driver),
        (Local::Capabilities(_) | Local::NodeInfo, Ok(None)) => {
            let method = Method::answering(local).name();
            Err(Error::NotImplemented { driver: driver.clone(), method })
        }
        (Local::Capabilities(_) | Local::NodeInfo, Err(Unknown)) => {
            Err(Error::NotLearned(driver.clone()))
        }
    }
}

/// True if a plugin's answer has the configured name. A record of an earlier csi-cloud may have
/// another.
fn has_name(info: &Bytes, driver: &DriverName) -> bool {
    let info = csi::GetPluginInfoResponse::decode(info.clone());
    info.is_ok_and(|info| info.name == driver.as_str())
}

fn unknown_version(driver: &DriverName) -> Result<Bytes, Error> {
    let name = driver.to_string();
    let vendor_version = "unknown".to_owned();
    let info = csi::GetPluginInfoResponse { name, vendor_version, ..Default::default() };
    Ok(info.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use proto::csi::Capabilities;
    use proto::csi::status::ToStatus;
    use tonic::Code;

    use super::*;

    fn ask(local: Local, reported: Result<Option<Bytes>, Unknown>) -> Result<Bytes, Error> {
        answer(local, &"d.example".parse().unwrap(), reported)
    }

    fn is_ready(reported: Result<Option<Bytes>, Unknown>) -> Option<bool> {
        let answer = ask(Local::Probe, reported).unwrap();
        csi::ProbeResponse::decode(answer).unwrap().ready
    }

    #[test]
    fn probe_is_never_an_error() {
        assert_eq!(is_ready(Err(Unknown)), Some(false));
        assert_eq!(is_ready(Ok(None)), Some(true));
    }

    #[test]
    fn the_name_is_known_before_anything_else() {
        let info =
            csi::GetPluginInfoResponse::decode(ask(Local::Info, Err(Unknown)).unwrap()).unwrap();
        assert_eq!(info.name, "d.example");
        assert!(!info.vendor_version.is_empty());
    }

    #[test]
    fn the_name_is_the_configured_one_whatever_a_record_says() {
        let named = |name: &str| csi::GetPluginInfoResponse {
            name: name.into(),
            vendor_version: "7".into(),
            ..Default::default()
        };
        let ask = |name: &str| ask(Local::Info, Ok(Some(named(name).encode_to_vec().into())));
        assert_eq!(ask("d.example").unwrap(), named("d.example").encode_to_vec());
        let info = csi::GetPluginInfoResponse::decode(ask("other.example").unwrap()).unwrap();
        assert_eq!(info.name, "d.example");
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
