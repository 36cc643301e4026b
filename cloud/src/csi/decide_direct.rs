//! Decides whether a new volume is direct, where its class leaves that to the pods' RuntimeClass.
//!
//! An attempt that may have reached the driver has decided for all later ones: its intent says so.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::csi::{Id, direct};
use tracing::info;

use super::request::CallRequest;
use crate::csi::create_journal::decided_otherwise;
use crate::error::Error;
use crate::nodes::node_call::Sender;
use crate::rewrite::direct::{check_create, out_of};
use crate::state::store::writer::Store;

/// A create whose class left open whether its volume is direct, with the decision.
pub(super) struct DirectDecision {
    pub(super) is_direct: bool,
    /// Our parameters, as of a class that says so itself.
    pub(super) parameters: BTreeMap<String, String>,
    /// The unframed request for the driver, equal for all nodes.
    pub(super) for_driver: Bytes,
}

/// Decides. `None` if the class leaves nothing open.
///
/// # Errors
/// There is no decision yet, or the request is impossible for a direct volume.
pub(super) fn decide(
    sender: Sender<'_>,
    store: &Store,
    name: &Id,
    call: &CallRequest,
) -> Result<Option<DirectDecision>, Error> {
    if !direct::is_auto(&call.extracted.parameters) {
        return Ok(None);
    }
    let before = store.read(|state| {
        let intent = state.driver(sender.driver)?.intent(name)?;
        Some(intent.direct.ok_or_else(|| decided_otherwise(sender.driver, name, &intent.node)))
    });
    let is_direct = before.unwrap_or_else(|| ask_pods(sender, name, call))?;
    let parameters = direct::decided(&call.extracted.parameters, is_direct);
    check_create(&call.message, &parameters)?;
    let edited = out_of(call.method, call.for_driver.clone(), &parameters);
    let for_driver = edited.map_err(|error| call.malformed(error))?;
    Ok(Some(DirectDecision { is_direct, parameters, for_driver }))
}

/// Decides by the RuntimeClass of the pods that use the claim.
fn ask_pods(sender: Sender<'_>, name: &Id, call: &CallRequest) -> Result<bool, Error> {
    let driver = sender.driver;
    let claim = call.extracted.claim.as_deref();
    let decided = sender.links.metadata().decide(claim, name.text());
    let is_direct = decided.map_err(|undecided| {
        let driver = driver.clone();
        let name = name.text().to_owned();
        let why = undecided.to_string();
        if undecided.passes() {
            let why =
                format!("edge-csi.io/direct is auto in its class, and {why}; nothing was sent");
            Error::DirectNotYet { driver, name, why }
        } else {
            Error::DirectUndecided { driver, name, why }
        }
    })?;
    let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
    let name = name.text();
    let id = call.running.id;
    info!(
        call = %id, %driver, name, claim, is_direct,
        "the RuntimeClass of the pods has decided"
    );
    Ok(is_direct)
}
