//! What of a call is ours and not the driver's: our parameters, and our topology where a driver has none. Taken out
//! of requests and put into answers, as bytes, so that all else passes untouched.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::csi::wire::Malformed;
use proto::names::NodeName;

use crate::rewrite::{colocate, direct, parameters};
use crate::state::record::{At, Claim};
use proto::csi::topology;

/// What a request holds besides what is for the driver.
#[derive(Default)]
pub(crate) struct Ours {
    /// Parameters that begin with `edge-csi.io/`.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Whose volume it shall be.
    pub(crate) claim: Option<Box<Claim>>,
}

/// A request for the driver at a node, and what in it is ours. A volume is asked for beside its source.
///
/// # Errors
/// The request is malformed.
pub(crate) fn out_of(method: &str, request: &Bytes, at: Option<&At>) -> Result<(Bytes, Ours), Malformed> {
    let added = at.is_some_and(|at| !at.has_own_topology());
    let mut ours = Ours::default();
    let request = match method {
        "CreateVolume" => {
            let claim = parameters::claim(request)?;
            ours.claim = claim.map(|claim| {
                let parameters::Claim { namespace, name, volume } = claim;
                let (namespace, name) = (namespace.into(), name.into());
                Box::new(Claim { namespace, name, volume: volume.unwrap_or_default().into() })
            });
            let (request, parameters) = parameters::out_of_create_volume(request)?;
            let request = direct::out_of(method, request, &parameters)?;
            ours.parameters = parameters;
            match at {
                Some(_) if added => topology::out_of_create_volume(&request)?,
                Some(at) => colocate::its_source(&request, at)?,
                None => request,
            }
        }
        "CreateSnapshot" if added => topology::out_of_create_snapshot(request)?,
        "GetCapacity" => {
            let (request, parameters) = parameters::out_of_capacity(request)?;
            let request = direct::out_of(method, request, &parameters)?;
            if added { topology::out_of_capacity(&request)? } else { request }
        }
        _ => request.clone(),
    };
    Ok((request, ours))
}

/// The driver's answer as the caller sees it, or an entry of a list.
///
/// # Errors
/// The answer is malformed.
pub(crate) fn into(
    method: &str,
    answer: &Bytes,
    node: &NodeName,
    at: Option<&At>,
) -> Result<Bytes, Malformed> {
    if at.is_none_or(At::has_own_topology) {
        return Ok(answer.clone());
    }
    match method {
        "CreateVolume" | "ListVolumes" => topology::into_created_volume(answer, node),
        "CreateSnapshot" | "ListSnapshots" => topology::into_created_snapshot(answer, node),
        "NodeGetInfo" => topology::into_node_info(answer, node),
        _ => Ok(answer.clone()),
    }
}
