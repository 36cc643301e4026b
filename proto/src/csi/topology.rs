//! Our topology for drivers of scope `node` that have none of their own: each node is a segment.
//!
//! Callers see it in every answer, in the cloud and at the node, so the scheduler keeps a pod at
//! its volume's node. The driver never sees it. All else passes byte for byte, also unknown fields.

use bytes::Bytes;
use prost::Message;
use serde::{Deserialize, Serialize};

use super::column::Rewrite;
use super::types as csi;
use super::types::plugin_capability;
use super::types::plugin_capability::{Service, service};
use super::wire;
use super::wire::{Edit, Malformed};
use crate::names::NodeName;

/// The segment of a node whose driver has no topology of its own.
pub const NODE_SEGMENT: &str = "topology.edge-csi.io/node";

/// From where a driver's volumes can be managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Only at the node where they live: LVM, ZFS, directories.
    Node,
    /// From any node that has the driver: NFS, iSCSI, Ceph.
    Shared,
}

// Numbers of fields in CSI's messages; the tests check them against the generated code.
const RESPONSE_VOLUME: u32 = 1;
const RESPONSE_SNAPSHOT: u32 = 1;
const VOLUME_TOPOLOGY: u32 = 5;
const SNAPSHOT_TOPOLOGY: u32 = 7;
const NODE_INFO_TOPOLOGY: u32 = 3;
const CAPACITY_TOPOLOGY: u32 = 3;
const VOLUME_REQUIREMENT: u32 = 7;
const SNAPSHOT_REQUIREMENT: u32 = 5;
const REQUISITE: u32 = 1;
const PREFERRED: u32 = 2;
const SEGMENTS: u32 = 1;
const CAPABILITIES: u32 = 1;
const LIST_ENTRIES: u32 = 1;

/// True if a driver at a node has a topology of its own.
///
/// It does if it reports accessibility constraints and segments of its node. Malformed answers
/// report neither.
pub fn has_own(plugin_capabilities: &[u8], node_info: &[u8]) -> bool {
    constrained(plugin_capabilities) && has_segments(node_info)
}

/// True if an answer to NodeGetInfo has topology segments.
pub fn has_segments(node_info: &[u8]) -> bool {
    let info = csi::NodeGetInfoResponse::decode(node_info).unwrap_or_default();
    info.accessible_topology.is_some_and(|at| !at.segments.is_empty())
}

/// True if an answer to GetPluginCapabilities has VOLUME_ACCESSIBILITY_CONSTRAINTS.
pub fn constrained(plugin_capabilities: &[u8]) -> bool {
    has(plugin_capabilities, &constraints())
}

/// True if an answer to GetPluginCapabilities has CONTROLLER_SERVICE: the driver can make volumes.
pub fn has_controller(plugin_capabilities: &[u8]) -> bool {
    has(plugin_capabilities, &of_service(service::Type::ControllerService))
}

fn has(plugin_capabilities: &[u8], wanted: &csi::PluginCapability) -> bool {
    let answer =
        csi::GetPluginCapabilitiesResponse::decode(plugin_capabilities).unwrap_or_default();
    answer.capabilities.iter().any(|capability| capability == wanted)
}

fn constraints() -> csi::PluginCapability {
    of_service(service::Type::VolumeAccessibilityConstraints)
}

fn of_service(service: service::Type) -> csi::PluginCapability {
    let service = Service { r#type: service.into() };
    csi::PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) }
}

/// Adds VOLUME_ACCESSIBILITY_CONSTRAINTS to an answer to GetPluginCapabilities that lacks it.
///
/// # Errors
/// The answer is malformed.
pub fn into_plugin_capabilities(answer: &Bytes) -> Result<Bytes, Malformed> {
    csi::GetPluginCapabilitiesResponse::decode(answer.clone())?;
    // What decodes may have groups, which no other edit takes.
    wire::fields(answer).try_for_each(|field| field.map(drop))?;
    if constrained(answer) {
        return Ok(answer.clone());
    }
    Ok(appended(answer, &[CAPABILITIES], &constraints().encode_to_vec()))
}

/// Adds a node's segment to its answer to NodeGetInfo.
///
/// # Errors
/// The answer is malformed.
pub fn into_node_info(answer: &Bytes, node: &NodeName) -> Result<Bytes, Malformed> {
    let mut topology = Vec::new();
    for field in wire::fields(answer) {
        let field = field?;
        // Protobuf merges two messages of one field, which is the same as their concatenation.
        topology.extend(
            field.content.filter(|_| field.number == NODE_INFO_TOPOLOGY).unwrap_or_default(),
        );
    }
    if names(&topology, node)? {
        return Ok(answer.clone());
    }
    Ok(appended(answer, &[NODE_INFO_TOPOLOGY, SEGMENTS], &segment(node)))
}

/// Removes the segments with these keys from an answer to NodeGetInfo.
///
/// # Errors
/// The answer is malformed.
pub fn out_of_node_info(answer: &Bytes, keys: &[&str]) -> Result<Bytes, Malformed> {
    let unwanted = |entry: &[u8]| {
        let (key, _) = wire::read_entry(entry)?;
        Ok(if keys.contains(&key) { Edit::Drop } else { Edit::Keep })
    };
    let edited = wire::edit(answer, &[NODE_INFO_TOPOLOGY], |topology| {
        wire::edit(topology, &[SEGMENTS], unwanted).map(unless_empty)
    })?;
    Ok(or(edited, answer))
}

/// An answer without the topology of its node, for callers of a front that is to have none.
///
/// # Errors
/// The answer is malformed.
pub fn out_of_answer(rewrite: Rewrite, answer: &Bytes) -> Result<Bytes, Malformed> {
    match rewrite {
        Rewrite::PluginCapabilities => {
            let is_constraints = |entry: &[u8]| {
                let capability = csi::PluginCapability::decode(entry)?;
                Ok(if capability == constraints() { Edit::Drop } else { Edit::Keep })
            };
            Ok(or(wire::edit(answer, &[CAPABILITIES], is_constraints)?, answer))
        }
        Rewrite::NodeInfo => {
            Ok(or(wire::edit(answer, &[NODE_INFO_TOPOLOGY], |_| Ok(Edit::Drop))?, answer))
        }
        Rewrite::Nothing
        | Rewrite::CreateVolume
        | Rewrite::CreateSnapshot
        | Rewrite::Capacity
        | Rewrite::ListVolumes
        | Rewrite::ListSnapshots => Ok(answer.clone()),
    }
}

/// Corrects our segment in the topologies of a volume that the node's driver made, or of an entry
/// of a list. The driver may name another node with it.
///
/// # Errors
/// The answer is malformed.
pub fn correct_volume(answer: &Bytes, node: &NodeName) -> Result<Bytes, Malformed> {
    correct(answer, [RESPONSE_VOLUME, VOLUME_TOPOLOGY], node)
}

/// The same for a snapshot.
///
/// # Errors
/// The answer is malformed.
pub fn correct_snapshot(answer: &Bytes, node: &NodeName) -> Result<Bytes, Malformed> {
    correct(answer, [RESPONSE_SNAPSHOT, SNAPSHOT_TOPOLOGY], node)
}

fn correct(
    answer: &Bytes,
    [made, topology]: [u32; 2],
    node: &NodeName,
) -> Result<Bytes, Malformed> {
    let edited = wire::edit(answer, &[made], |content| {
        let at = |content: &[u8]| {
            if has_ours(content)? { into_topology(content, node) } else { Ok(Edit::Keep) }
        };
        wire::edit(content, &[topology], at).map(Edit::from)
    })?;
    Ok(or(edited, answer))
}

fn has_ours(topology: &[u8]) -> Result<bool, Malformed> {
    for field in wire::fields(topology) {
        let field = field?;
        let Some(entry) = field.content.filter(|_| field.number == SEGMENTS) else { continue };
        if wire::read_entry(entry)?.0 == NODE_SEGMENT {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds the node's segment to the topologies of a volume that it made.
///
/// # Errors
/// The answer is malformed.
pub fn into_created_volume(answer: &Bytes, node: &NodeName) -> Result<Bytes, Malformed> {
    let mut volume = false;
    let mut topology = false;
    let edited = wire::edit(answer, &[RESPONSE_VOLUME], |content| {
        volume = true;
        let at = |content: &[u8]| {
            topology = true;
            into_topology(content, node)
        };
        wire::edit(content, &[VOLUME_TOPOLOGY], at).map(Edit::from)
    })?;
    if volume && !topology {
        return Ok(appended(answer, &[RESPONSE_VOLUME, VOLUME_TOPOLOGY, SEGMENTS], &segment(node)));
    }
    Ok(or(edited, answer))
}

/// Adds the node's segment to the topologies of a snapshot that it made, if the driver reports any.
///
/// # Errors
/// The answer is malformed.
pub fn into_created_snapshot(answer: &Bytes, node: &NodeName) -> Result<Bytes, Malformed> {
    let edited = wire::edit(answer, &[RESPONSE_SNAPSHOT], |snapshot| {
        wire::edit(snapshot, &[SNAPSHOT_TOPOLOGY], |topology| into_topology(topology, node))
            .map(Edit::from)
    })?;
    Ok(or(edited, answer))
}

/// Removes our segment from the requirement of a CreateVolume.
///
/// # Errors
/// The request is malformed.
pub fn out_of_create_volume(request: &Bytes) -> Result<Bytes, Malformed> {
    wire::edit(request, &[VOLUME_REQUIREMENT], out_of_requirement).map(|edited| or(edited, request))
}

/// Removes our segment from the requirement of a CreateSnapshot.
///
/// # Errors
/// The request is malformed.
pub fn out_of_create_snapshot(request: &Bytes) -> Result<Bytes, Malformed> {
    wire::edit(request, &[SNAPSHOT_REQUIREMENT], out_of_requirement)
        .map(|edited| or(edited, request))
}

/// Removes our segment from the topology of a GetCapacity.
///
/// # Errors
/// The request is malformed.
pub fn out_of_capacity(request: &Bytes) -> Result<Bytes, Malformed> {
    wire::edit(request, &[CAPACITY_TOPOLOGY], out_of_topology).map(|edited| or(edited, request))
}

/// The request for the driver, without our segment.
///
/// # Errors
/// The request is malformed.
pub fn out_of_request(rewrite: Rewrite, request: &Bytes) -> Result<Bytes, Malformed> {
    match rewrite {
        Rewrite::CreateVolume => out_of_create_volume(request),
        Rewrite::CreateSnapshot => out_of_create_snapshot(request),
        Rewrite::Capacity => out_of_capacity(request),
        Rewrite::Nothing
        | Rewrite::PluginCapabilities
        | Rewrite::NodeInfo
        | Rewrite::ListVolumes
        | Rewrite::ListSnapshots => Ok(request.clone()),
    }
}

/// A driver's whole answer with our topology, for callers.
///
/// # Errors
/// The answer is malformed.
pub fn into_answer(rewrite: Rewrite, answer: &Bytes, node: &NodeName) -> Result<Bytes, Malformed> {
    match rewrite {
        Rewrite::PluginCapabilities => into_plugin_capabilities(answer),
        Rewrite::NodeInfo => into_node_info(answer, node),
        Rewrite::CreateVolume => into_created_volume(answer, node),
        Rewrite::CreateSnapshot => into_created_snapshot(answer, node),
        Rewrite::ListVolumes => into_entries(answer, node, into_created_volume),
        Rewrite::ListSnapshots => into_entries(answer, node, into_created_snapshot),
        Rewrite::Nothing | Rewrite::Capacity => Ok(answer.clone()),
    }
}

/// A driver's answer to a create with our segment corrected, for a driver with its own topology.
///
/// # Errors
/// The answer is malformed.
pub fn correct_answer(
    rewrite: Rewrite,
    answer: &Bytes,
    node: &NodeName,
) -> Result<Bytes, Malformed> {
    match rewrite {
        Rewrite::CreateVolume => correct_volume(answer, node),
        Rewrite::CreateSnapshot => correct_snapshot(answer, node),
        Rewrite::PluginCapabilities
        | Rewrite::NodeInfo
        | Rewrite::ListVolumes
        | Rewrite::ListSnapshots
        | Rewrite::Nothing
        | Rewrite::Capacity => Ok(answer.clone()),
    }
}

/// Edits each entry of a list's answer.
fn into_entries(
    answer: &Bytes,
    node: &NodeName,
    into_entry: fn(&Bytes, &NodeName) -> Result<Bytes, Malformed>,
) -> Result<Bytes, Malformed> {
    let edited = wire::edit(answer, &[LIST_ENTRIES], |entry| {
        let entry = into_entry(&Bytes::copy_from_slice(entry), node)?;
        Ok(Edit::Replace(entry.into()))
    })?;
    Ok(or(edited, answer))
}

/// CSI: a requirement has requisite or preferred topologies, so an empty one is removed.
fn out_of_requirement(requirement: &[u8]) -> Result<Edit, Malformed> {
    wire::edit(requirement, &[REQUISITE, PREFERRED], out_of_topology).map(unless_empty)
}

/// CSI: a topology has segments, so one with only ours is removed.
fn out_of_topology(topology: &[u8]) -> Result<Edit, Malformed> {
    let ours = |entry: &[u8]| {
        let (key, _) = wire::read_entry(entry)?;
        Ok(if key == NODE_SEGMENT { Edit::Drop } else { Edit::Keep })
    };
    wire::edit(topology, &[SEGMENTS], ours).map(unless_empty)
}

fn unless_empty(edited: Option<Vec<u8>>) -> Edit {
    if edited.as_ref().is_some_and(Vec::is_empty) { Edit::Drop } else { edited.into() }
}

/// Adds the segment, unless it is there. The last of several with the same key counts.
fn into_topology(topology: &[u8], node: &NodeName) -> Result<Edit, Malformed> {
    if names(topology, node)? {
        return Ok(Edit::Keep);
    }
    Ok(Edit::Replace(appended(topology, &[SEGMENTS], &segment(node)).into()))
}

fn names(topology: &[u8], node: &NodeName) -> Result<bool, Malformed> {
    let mut named = false;
    for field in wire::fields(topology) {
        let field = field?;
        let Some(entry) = field.content.filter(|_| field.number == SEGMENTS) else { continue };
        let (key, value) = wire::read_entry(entry)?;
        if key == NODE_SEGMENT {
            named = value == node.as_str();
        }
    }
    Ok(named)
}

fn segment(node: &NodeName) -> Vec<u8> {
    wire::entry(NODE_SEGMENT, node.as_str())
}

fn appended(message: &[u8], path: &[u32], content: &[u8]) -> Bytes {
    let mut message = message.to_vec();
    wire::append(&mut message, path, content);
    message.into()
}

fn or(edited: Option<Vec<u8>>, whole: &Bytes) -> Bytes {
    edited.map_or_else(|| whole.clone(), Bytes::from)
}

#[cfg(test)]
mod tests;
