//! What of a call is ours and not the driver's: our parameters, and our topology where a driver has none.
//!
//! It is taken out of requests and put into answers as bytes, so that all else passes untouched.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::csi::topology;
use proto::csi::wire::Malformed;
use proto::csi::{List, Method, Rewrite};
use proto::names::NodeName;

use super::{colocate, direct, parameters};
use crate::state::record::{Claim, NodeDriver};

/// What a request holds besides what is for the driver.
#[derive(Clone, Default)]
pub(crate) struct Extracted {
    /// Parameters that begin with `edge-csi.io/`.
    pub(crate) parameters: BTreeMap<String, String>,
    /// The claim that a volume is made for.
    pub(crate) claim: Option<Box<Claim>>,
}

/// A request without what is ours at every node, and what that was.
///
/// # Errors
/// The request is malformed.
pub(crate) fn extract(method: Method, request: &Bytes) -> Result<(Bytes, Extracted), Malformed> {
    let (request, parameters, claim) = match method.rewrite() {
        Rewrite::CreateVolume => {
            let claim = parameters::claim(request)?.map(Box::new);
            let (request, parameters) = parameters::out_of_create_volume(request)?;
            (request, parameters, claim)
        }
        Rewrite::Capacity => {
            let (request, parameters) = parameters::out_of_capacity(request)?;
            (request, parameters, None)
        }
        Rewrite::Nothing
        | Rewrite::PluginCapabilities
        | Rewrite::NodeInfo
        | Rewrite::CreateSnapshot
        | Rewrite::ListVolumes
        | Rewrite::ListSnapshots => return Ok((request.clone(), Extracted::default())),
    };
    let request = direct::out_of(method, request, &parameters)?;
    Ok((request, Extracted { parameters, claim }))
}

/// An extracted request for the driver at one node. A new volume is asked for at its source's place.
///
/// # Errors
/// The request is malformed.
pub(crate) fn for_node(
    rewrite: Rewrite,
    request: &Bytes,
    at: Option<&NodeDriver>,
) -> Result<Bytes, Malformed> {
    let Some(at) = at else { return Ok(request.clone()) };
    if !at.has_own_topology() {
        return topology::out_of_request(rewrite, request);
    }
    if rewrite == Rewrite::CreateVolume {
        colocate::with_source(request, at)
    } else {
        Ok(request.clone())
    }
}

/// The driver's answer as the caller sees it.
///
/// # Errors
/// The answer is malformed.
pub(crate) fn into_answer(
    rewrite: Rewrite,
    answer: &Bytes,
    node: &NodeName,
    at: Option<&NodeDriver>,
) -> Result<Bytes, Malformed> {
    match at.filter(|at| !at.has_own_topology()) {
        Some(_) => topology::into_answer(rewrite, answer, node),
        None => Ok(answer.clone()),
    }
}

/// An entry of a list as the caller sees it.
///
/// # Errors
/// The entry is malformed.
pub(crate) fn into_entry(
    list: List,
    entry: &Bytes,
    node: &NodeName,
    at: Option<&NodeDriver>,
) -> Result<Bytes, Malformed> {
    match (list, at.filter(|at| !at.has_own_topology())) {
        (List::Volumes, Some(_)) => topology::into_created_volume(entry, node),
        (List::Snapshots, Some(_)) => topology::into_created_snapshot(entry, node),
        (List::Health, _) | (_, None) => Ok(entry.clone()),
    }
}
