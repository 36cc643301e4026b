//! The capabilities that a front reports: those that all of its nodes report.
//!
//! A sidecar asks once and uses the answer for every node. Answers are compared as bytes, field by
//! field, so that capabilities newer than this version survive.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::topology::{constrained, has_segments};
use proto::csi::wire;
use proto::csi::wire::Malformed;
use proto::csi::{Capabilities, Local, Method};
use proto::names::NodeName;

use crate::state::policy::Scope;

/// The number of nodes named in a mismatch; the rest is counted.
const FEW: usize = 5;
/// The limit of reported mismatches.
const MANY: usize = 20;

/// The common answer of all nodes.
#[derive(Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The answer of the front; none if no node implements the method.
    pub answer: Option<Bytes>,
    /// Capabilities that only some nodes have: the first 20. Empty if all nodes agree.
    pub mismatches: Vec<Mismatch>,
}

/// A capability that some nodes report and others do not.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Its name in CSI, or its bytes if this version does not know it.
    pub what: String,
    /// True if `nodes` have it, false if they lack it; the smaller side is named.
    pub have: bool,
    /// The first five nodes of that side, sorted.
    pub nodes: Vec<NodeName>,
    /// The number of all nodes of that side.
    pub count: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.nodes.iter().map(NodeName::as_str).collect();
        let side = if self.have { "only at" } else { "everywhere but at" };
        write!(f, "{} {side} {}", self.what, names.join(", "))?;
        match self.count.saturating_sub(names.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The intersection of the nodes' answers about one kind of capabilities.
///
/// `reported` has each node's unframed answer, or none if its driver does not implement the method.
/// Identical answers are returned unchanged. A node without the method has none of its
/// capabilities. The answer is then empty, which is no error to a sidecar. A node with an
/// undecodable answer is left out and reported, so that it does not disable the others.
pub fn agree<'a>(
    capabilities: Capabilities,
    reported: impl IntoIterator<Item = (&'a NodeName, Option<&'a Bytes>)>,
) -> Agreed {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut places: HashMap<Option<&[u8]>, usize> = HashMap::new();
    for (node, answer) in reported {
        let place = *places.entry(answer.map(|answer| &**answer)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.nodes.push(node),
            None => groups.push(Group { answer, nodes: vec![node] }),
        }
    }
    if let [only] = groups.as_slice() {
        return Agreed { answer: only.answer.cloned(), mismatches: Vec::new() };
    }
    intersected(capabilities, &groups)
}

/// Nodes with the same answer.
struct Group<'a> {
    answer: Option<&'a Bytes>,
    nodes: Vec<&'a NodeName>,
}

fn intersected(capabilities: Capabilities, groups: &[Group<'_>]) -> Agreed {
    let mut mismatches = Vec::new();
    let mut read = Vec::new();
    for group in groups {
        match raw_fields(group.answer) {
            Ok(fields) => read.push((group, fields)),
            Err(_) => {
                mismatches.push(Mismatch::of(
                    format!("an answer to {} that is no protobuf", name_of(capabilities)),
                    true,
                    &group.nodes,
                ));
            }
        }
    }
    let total: usize = read.iter().map(|(group, _)| group.nodes.len()).sum();
    // Sorted, so that mismatches are always reported in the same order.
    let mut having: BTreeMap<&[u8], Vec<&NodeName>> = BTreeMap::new();
    for (group, fields) in &read {
        // A repeated field may hold the same value twice.
        for field in fields.iter().copied().collect::<HashSet<_>>() {
            having.entry(field).or_default().extend(&group.nodes);
        }
    }
    for (field, nodes) in having.iter().filter(|(_, nodes)| nodes.len() < total) {
        if mismatches.len() == MANY {
            break;
        }
        mismatches.push(one_side(name(capabilities, field), nodes, total, &read));
    }
    let mut answer = Vec::new();
    let first = read.first().map(|(_, fields)| fields.as_slice()).unwrap_or_default();
    for field in
        first.iter().filter(|field| having.get(**field).is_some_and(|nodes| nodes.len() == total))
    {
        answer.extend_from_slice(field);
    }
    let nobody = read.iter().all(|(group, _)| group.answer.is_none());
    Agreed { answer: (!nobody).then(|| answer.into()), mismatches }
}

fn raw_fields(answer: Option<&Bytes>) -> Result<Vec<&[u8]>, Malformed> {
    wire::fields(answer.map_or(&[], |answer| answer)).map(|field| Ok(field?.raw)).collect()
}

/// Reports the smaller side: the nodes that have the capability, or those that lack it.
fn one_side(
    what: String,
    having: &[&NodeName],
    total: usize,
    read: &[(&Group<'_>, Vec<&[u8]>)],
) -> Mismatch {
    if having.len() <= total / 2 {
        return Mismatch::of(what, true, having);
    }
    let having: HashSet<_> = having.iter().collect();
    let all = read.iter().flat_map(|(group, _)| &group.nodes);
    let lacking: Vec<_> = all.filter(|node| !having.contains(node)).copied().collect();
    Mismatch::of(what, false, &lacking)
}

impl Mismatch {
    fn of(what: String, have: bool, nodes: &[&NodeName]) -> Self {
        let mut sorted = nodes.to_vec();
        sorted.sort_unstable();
        let count = sorted.len();
        Self { what, have, nodes: sorted.into_iter().take(FEW).cloned().collect(), count }
    }
}

/// The names of the capabilities in an answer, each once, for operators; empty if the answer is
/// undecodable.
pub(crate) fn capability_names(capabilities: Capabilities, answer: &Bytes) -> Vec<String> {
    let fields = raw_fields(Some(answer)).unwrap_or_default();
    let mut names: Vec<_> = fields.into_iter().map(|field| name(capabilities, field)).collect();
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// The capabilities in `wanted` that `has` lacks, by name, each once. An undecodable `has` lacks
/// all.
pub(crate) fn lacking(
    capabilities: Capabilities,
    wanted: Option<&Bytes>,
    has: Option<&Bytes>,
) -> Vec<String> {
    if wanted == has {
        return Vec::new();
    }
    let has = raw_fields(has).unwrap_or_default();
    let wanted = raw_fields(wanted).unwrap_or_default();
    let mut seen = HashSet::new();
    let lacks = wanted.into_iter().filter(|field| !has.contains(field) && seen.insert(*field));
    lacks.map(|field| name(capabilities, field)).collect()
}

/// The name of a capability, for operators.
fn name(capabilities: Capabilities, raw: &[u8]) -> String {
    let known = match capabilities {
        Capabilities::Plugin => plugin(raw),
        Capabilities::Controller => controller(raw),
        Capabilities::Group => group(raw),
        Capabilities::Node => node(raw),
    };
    known.map_or_else(
        || {
            // The answer may have megabytes.
            let some: Vec<_> = raw.iter().take(16).collect();
            let method = name_of(capabilities);
            format!("an unknown capability of {method} ({some:02x?})")
        },
        str::to_owned,
    )
}

/// The RPC by which a driver says so.
fn name_of(capabilities: Capabilities) -> &'static str {
    Method::answering(Local::Capabilities(capabilities)).name()
}

fn plugin(raw: &[u8]) -> Option<&'static str> {
    use csi::plugin_capability::{Type, service, volume_expansion};
    match csi::GetPluginCapabilitiesResponse::decode(raw).ok()?.capabilities.first()?.r#type? {
        Type::Service(its) => service::Type::try_from(its.r#type).ok().map(|its| its.as_str_name()),
        Type::VolumeExpansion(its) => match volume_expansion::Type::try_from(its.r#type).ok()? {
            volume_expansion::Type::Online => Some("VOLUME_EXPANSION ONLINE"),
            volume_expansion::Type::Offline => Some("VOLUME_EXPANSION OFFLINE"),
            volume_expansion::Type::Unknown => None,
        },
    }
}

fn controller(raw: &[u8]) -> Option<&'static str> {
    use csi::controller_service_capability::{Type, rpc};
    let Type::Rpc(its) =
        csi::ControllerGetCapabilitiesResponse::decode(raw).ok()?.capabilities.first()?.r#type?;
    rpc::Type::try_from(its.r#type).ok().map(|its| its.as_str_name())
}

fn group(raw: &[u8]) -> Option<&'static str> {
    use csi::group_controller_service_capability::{Type, rpc};
    let Type::Rpc(its) = csi::GroupControllerGetCapabilitiesResponse::decode(raw)
        .ok()?
        .capabilities
        .first()?
        .r#type?;
    rpc::Type::try_from(its.r#type).ok().map(|its| its.as_str_name())
}

fn node(raw: &[u8]) -> Option<&'static str> {
    use csi::node_service_capability::{Type, rpc};
    let Type::Rpc(its) =
        csi::NodeGetCapabilitiesResponse::decode(raw).ok()?.capabilities.first()?.r#type?;
    rpc::Type::try_from(its.r#type).ok().map(|its| its.as_str_name())
}

/// The scope that a driver's answers to GetPluginCapabilities and NodeGetInfo imply.
///
/// One node that reports VOLUME_ACCESSIBILITY_CONSTRAINTS makes the scope `node`, because that
/// mistake is harmless: a shared driver's volume waits for its home node. The opposite mistake
/// leaks a volume, because another node answers its DeleteVolume with OK.
///
/// The capability means nothing if every node has answered, and none is in a topology of the
/// driver's own. A driver that all nodes can use would be pinned to one of them.
pub fn inferred_scope<'a>(
    plugin_capabilities: impl IntoIterator<Item = &'a Bytes>,
    node_infos: impl IntoIterator<Item = Option<&'a Bytes>>,
) -> Scope {
    let mut seen: HashSet<&[u8]> = HashSet::new();
    // Most nodes give the same bytes; each distinct answer is decoded once.
    let mut answers = plugin_capabilities.into_iter().filter(|answer| seen.insert(answer));
    if !answers.any(|answer| constrained(answer)) {
        return Scope::Shared;
    }
    let mut infos = node_infos.into_iter().peekable();
    let is_without = infos.peek().is_some() && infos.all(|info| info.is_some_and(is_nowhere));
    if is_without { Scope::Shared } else { Scope::Node }
}

fn is_nowhere(node_info: &Bytes) -> bool {
    !has_segments(node_info)
}

#[cfg(test)]
mod tests;
