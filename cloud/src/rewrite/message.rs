//! Removes our part of a request, and adds our part to an answer: parameters and topology.
//!
//! Messages are edited as bytes, so that all other fields pass unchanged.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::csi::topology;
use proto::csi::wire::Malformed;
use proto::csi::{List, Method, Rewrite, Segments};
use proto::names::NodeName;

use super::{colocate, direct, parameters};
use crate::state::record::{Claim, NodeDriver};

/// The part of a request that is for csi-cloud.
#[derive(Clone, Default)]
pub(crate) struct Extracted {
    /// The parameters with the prefix `edge-csi.io/`.
    pub(crate) parameters: BTreeMap<String, String>,
    /// The claim that the volume is created for.
    pub(crate) claim: Option<Box<Claim>>,
}

/// Splits a request into the part for the driver, equal for all nodes, and the part for csi-cloud.
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

/// The extracted create for the driver at one node. It asks for the narrowed topology, if there is
/// one; otherwise a volume with a source is colocated with it.
///
/// # Errors
/// The request is malformed.
pub(crate) fn for_create(
    rewrite: Rewrite,
    request: &Bytes,
    at: Option<&NodeDriver>,
    narrowed: Option<&Segments>,
) -> Result<Bytes, Malformed> {
    match (narrowed, at.filter(|at| at.has_own_topology())) {
        (Some(segments), _) => colocate::narrowed(request, segments),
        (None, Some(at)) if rewrite == Rewrite::CreateVolume => colocate::with_source(request, at),
        (None, _) => for_node(rewrite, request, at),
    }
}

/// The extracted request for the driver at one node.
///
/// # Errors
/// The request is malformed.
pub(crate) fn for_node(
    rewrite: Rewrite,
    request: &Bytes,
    at: Option<&NodeDriver>,
) -> Result<Bytes, Malformed> {
    match at.filter(|at| !at.has_own_topology()) {
        Some(_) => topology::out_of_request(rewrite, request),
        None => Ok(request.clone()),
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
    match at {
        Some(at) if at.has_own_topology() => topology::correct_answer(rewrite, answer, node),
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
    let has_own = at.map(NodeDriver::has_own_topology);
    match (list, has_own) {
        (List::Volumes, Some(false)) => topology::into_created_volume(entry, node),
        (List::Snapshots, Some(false)) => topology::into_created_snapshot(entry, node),
        (List::Volumes, Some(true)) => topology::correct_volume(entry, node),
        (List::Snapshots, Some(true)) => topology::correct_snapshot(entry, node),
        (List::Health, _) | (_, None) => Ok(entry.clone()),
    }
}
