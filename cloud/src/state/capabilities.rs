//! What a front says that its driver can, out of what the driver says at each node.
//!
//! A sidecar asks once and keeps the answer for every node, so a front may only say what all nodes can. The
//! answers are compared as bytes, field by field, so that capabilities newer than we are survive.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::topology::constrained;
use proto::csi::wire;
use proto::csi::wire::Malformed;
use proto::csi::{Capabilities, Local, Method};
use proto::names::NodeName;

use crate::state::policy::Scope;

/// So many nodes are named, and the rest is counted.
const FEW: usize = 5;
/// At most so many differences are told.
const MANY: usize = 20;

/// What all nodes say together.
#[derive(Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The answer of the front; none if no node implements the method.
    pub answer: Option<Bytes>,
    /// What some nodes can and others cannot, for a warning: the first 20. Empty if they all say the same.
    pub mismatches: Vec<Mismatch>,
}

/// Something that some nodes say and others do not.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What, by its name in CSI, or as bytes if it is newer than we are.
    pub what: String,
    /// Whether the nodes named are those that have it; they are those of the two sides that are fewer.
    pub have: bool,
    /// The first of them, five at most, sorted.
    pub nodes: Vec<NodeName>,
    /// How many they are altogether.
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

/// What the nodes can all do, of one kind of capabilities. `said` has each node's (unframed) answer, or none if its
/// driver does not implement the method. Where they are all the same bytes, those are the answer.
///
/// A node that does not implement the method can nothing of it, so then the answer is empty, which to a sidecar
/// means the same and is no error. A node whose answer is no protobuf is left out and named: it must not take
/// from all others what they can.
pub fn agree<'a>(
    capabilities: Capabilities,
    said: impl IntoIterator<Item = (&'a NodeName, Option<&'a Bytes>)>,
) -> Agreed {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut places: HashMap<Option<&[u8]>, usize> = HashMap::new();
    for (node, answer) in said {
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

/// The nodes that say the same.
struct Group<'a> {
    answer: Option<&'a Bytes>,
    nodes: Vec<&'a NodeName>,
}

fn intersected(capabilities: Capabilities, groups: &[Group<'_>]) -> Agreed {
    let (mut mismatches, mut read) = (Vec::new(), Vec::new());
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
    // Sorted, so that the same nodes are always told in the same order.
    let mut having: BTreeMap<&[u8], Vec<&NodeName>> = BTreeMap::new();
    for (group, fields) in &read {
        // A repeated field may hold the same twice.
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

/// Names those who have something or those who do not, whichever are fewer.
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

/// What an answer says that a driver can do, as an operator calls it. An answer that is no protobuf says nothing.
pub(crate) fn capability_names(capabilities: Capabilities, answer: &Bytes) -> Vec<String> {
    let fields = raw_fields(Some(answer)).unwrap_or_default();
    fields.into_iter().map(|field| name(capabilities, field)).collect()
}

/// What an operator calls a field of an answer.
fn name(capabilities: Capabilities, raw: &[u8]) -> String {
    let known = match capabilities {
        Capabilities::Plugin => plugin(raw),
        Capabilities::Controller => controller(raw),
        Capabilities::Group => group(raw),
        Capabilities::Node => node(raw),
    };
    known.map_or_else(
        || {
            // An answer may be megabytes.
            let some: Vec<_> = raw.iter().take(16).collect();
            let method = name_of(capabilities);
            format!("something of {method} that is newer than csi-cloud ({some:02x?})")
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

/// A driver's scope: the operator's word, else what its nodes' answers to GetPluginCapabilities let us think.
///
/// One node that reports VOLUME_ACCESSIBILITY_CONSTRAINTS makes it `node`, though others do not, because of the
/// two mistakes that is the harmless one: a shared driver's volume then waits for its home, whereas a volume of one
/// node whose delete went to another node is answered OK there, and leaked.
pub fn scope<'a>(
    word: Option<Scope>,
    plugin_capabilities: impl IntoIterator<Item = &'a Bytes>,
) -> Scope {
    word.unwrap_or_else(|| {
        let mut asked: HashSet<&[u8]> = HashSet::new();
        // Most nodes say the same bytes, which are read once.
        let mut answers = plugin_capabilities.into_iter().filter(|answer| asked.insert(answer));
        if answers.any(|answer| constrained(answer)) { Scope::Node } else { Scope::Shared }
    })
}

#[cfg(test)]
mod tests;
