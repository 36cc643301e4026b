//! Plans what to publish of a node in place of its kubelet: labels, the annotation with ids,
//! entries.
//!
//! Pure. Fields of other managers never change. Labels come before the entries that name their
//! keys, and go after them: external-provisioner reads keys from entries and values from labels.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::storage::v1::{CSINodeDriver, VolumeNodeResources};
use prost::Message;
use proto::csi;
use proto::csi::Rewrite;
use proto::names::{DriverName, NodeName};

use crate::kubernetes::labels;
use crate::kubernetes::mirror::{KnownCsiNode, KnownNode};
use crate::rewrite::message;
use crate::state::policy::Scope;
use crate::state::record::NodeDriver;

/// A driver at a node, as its kubelet would publish it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedDriver {
    pub(super) driver: DriverName,
    /// The driver's own id of the node.
    pub(super) id: String,
    pub(super) segments: BTreeMap<String, String>,
    /// The limit of volumes at the node, if there is one.
    pub(super) most: Option<i32>,
}

/// The next request about a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodeStep {
    /// Apply these entries, and no others.
    Entries(Vec<CSINodeDriver>),
    /// Apply these labels and this annotation, and no others.
    Labels {
        labels: BTreeMap<String, String>,
        ids: Option<String>,
        /// The annotation has ids of another manager, which are kept.
        shared: bool,
    },
}

/// A segment that cannot become a label, so the driver is not published at the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collision {
    pub(super) driver: DriverName,
    pub(super) key: String,
    pub(super) value: String,
    /// The reason.
    pub(super) why: String,
}

/// The plan for a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodePlan {
    pub(super) step: Option<NodeStep>,
    pub(super) collisions: Vec<Collision>,
    /// Drivers that nobody has published; the node's kubelet may do so first.
    pub(super) missing: Vec<DriverName>,
}

/// The entry to publish for a driver at a node; none if the driver reports no node id.
pub(super) fn wanted(
    driver: &DriverName,
    node: &NodeName,
    at: &NodeDriver,
    scope: Scope,
) -> Option<WantedDriver> {
    let info = at.info.as_ref()?;
    // As the node's own front answers a kubelet.
    let ours = Some(at).filter(|_| scope == Scope::Node);
    let answer = message::into_answer(Rewrite::NodeInfo, info, node, ours).ok()?;
    let info = csi::NodeGetInfoResponse::decode(answer).ok()?;
    let segments = info.accessible_topology.map(|at| at.segments).unwrap_or_default();
    // CSI: with 0 the CO decides, and a negative limit is invalid.
    let most = Some(info.max_volumes_per_node).filter(|most| *most > 0);
    let most = most.map(|most| i32::try_from(most).unwrap_or(i32::MAX));
    let segments = segments.into_iter().collect();
    let wanted = WantedDriver { driver: driver.clone(), id: info.node_id, segments, most };
    Some(wanted).filter(|wanted| !wanted.id.is_empty())
}

/// Plans the next step for a node, given the objects that the API has.
///
/// `due` is true if the kubelet's time for a driver is over.
pub(super) fn plan(
    wanted: &[WantedDriver],
    node: &KnownNode,
    csinode: &KnownCsiNode,
    due: impl Fn(&DriverName) -> bool,
) -> NodePlan {
    let mut plan = NodePlan::default();
    let mut ours: Vec<&WantedDriver> = Vec::new();
    for one in wanted {
        if !csinode.entries.contains_key(one.driver.as_str()) {
            plan.missing.push(one.driver.clone());
        }
        match csinode.entries.get(one.driver.as_str()) {
            // The kubelet has published it.
            Some(entry) if !entry.ours => {}
            None if !due(&one.driver) => {}
            _ => match collision(one, node, &ours) {
                Some(collision) => plan.collisions.push(collision),
                None => ours.push(one),
            },
        }
    }
    let entries: Vec<_> = ours.iter().map(|one| entry(one)).collect();
    let is_there = |entry: &&CSINodeDriver| {
        csinode.entries.get(&entry.name).is_some_and(|known| known.ours && known.entry == **entry)
    };
    let stays: Vec<_> = entries.iter().filter(is_there).cloned().collect();
    let published = csinode.entries.values().filter(|entry| entry.ours).count();
    plan.step = if stays.len() < published {
        // An entry is immutable: a changed one is withdrawn first.
        Some(NodeStep::Entries(stays))
    } else if let Some(labels) = labels_of(&ours, node, csinode) {
        Some(labels)
    } else if stays.len() < entries.len() {
        Some(NodeStep::Entries(entries))
    } else {
        None
    };
    plan
}

fn entry(wanted: &WantedDriver) -> CSINodeDriver {
    let keys: Vec<_> = wanted.segments.keys().cloned().collect();
    CSINodeDriver {
        name: wanted.driver.to_string(),
        node_id: wanted.id.clone(),
        topology_keys: Some(keys).filter(|keys| !keys.is_empty()),
        allocatable: wanted.most.map(|most| VolumeNodeResources { count: Some(most) }),
    }
}

fn collision(
    wanted: &WantedDriver,
    node: &KnownNode,
    others: &[&WantedDriver],
) -> Option<Collision> {
    wanted.segments.iter().find_map(|(key, value)| {
        let why = refusal(key, value, node, others)?;
        let driver = wanted.driver.clone();
        Some(Collision { driver, key: key.clone(), value: value.clone(), why })
    })
}

/// The reason why a segment cannot become a label of the node.
fn refusal(key: &str, value: &str, node: &KnownNode, others: &[&WantedDriver]) -> Option<String> {
    if let Some(refused) = labels::refused(key, value) {
        return Some(refused.to_owned());
    }
    let is_ours = node.our_labels.contains(key) && !node.their_labels.contains(key);
    if let Some(theirs) = node.labels.get(key)
        && theirs != value
        && !is_ours
    {
        return Some(format!("the node has it with the value {theirs:?}"));
    }
    let differs =
        |other: &&&WantedDriver| other.segments.get(key).is_some_and(|theirs| theirs != value);
    let other = others.iter().find(differs)?;
    Some(format!("the driver {} says another value of it", other.driver))
}

/// The labels and the annotation, if the node does not have them as wanted.
fn labels_of(
    published: &[&WantedDriver],
    node: &KnownNode,
    csinode: &KnownCsiNode,
) -> Option<NodeStep> {
    let segments = published.iter().flat_map(|one| &one.segments);
    // A label that another manager has too stays that manager's.
    let is_ours = |key: &String| node.our_labels.contains(key) || !node.labels.contains_key(key);
    let ours = segments.filter(|(key, _)| is_ours(key));
    let labels: BTreeMap<_, _> = ours.map(|(key, value)| (key.clone(), value.clone())).collect();
    let (ids, shared) = ids(published, node, csinode);
    let keys: BTreeSet<_> = labels.keys().cloned().collect();
    let is_applied = |(key, value)| node.labels.get(key) == Some(value);
    let labels_applied = keys == node.our_labels && labels.iter().all(is_applied);
    let ids_applied = node.our_ids == ids.is_some() && (ids.is_none() || node.ids == ids);
    (!labels_applied || !ids_applied).then_some(NodeStep::Labels { labels, ids, shared })
}

/// The wanted annotation, with the ids of all drivers; and whether other managers have ids in it.
fn ids(
    published: &[&WantedDriver],
    node: &KnownNode,
    csinode: &KnownCsiNode,
) -> (Option<String>, bool) {
    let text = node.ids.as_deref().unwrap_or("{}");
    // A text that is no map of texts is a mistake, which kubelets refuse too; it is replaced.
    let before: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    let is_theirs = |driver: &String| {
        !node.our_ids || csinode.entries.get(driver).is_some_and(|entry| !entry.ours)
    };
    let mut ids: BTreeMap<_, _> = before.iter().filter(|(driver, _)| is_theirs(driver)).collect();
    let shared = !ids.is_empty() || node.others_have_ids;
    let ours: Vec<_> = published.iter().map(|one| (one.driver.to_string(), &one.id)).collect();
    ids.extend(ours.iter().map(|(driver, id)| (driver, *id)));
    let nothing_of_ours = ours.is_empty() && (!node.our_ids || node.others_have_ids);
    let unchanged = ids.iter().map(|(driver, id)| (*driver, *id)).eq(before.iter());
    if ids.is_empty() || (unchanged && (nothing_of_ours || !node.our_ids)) {
        return (None, shared);
    }
    let text = if unchanged { Some(text.to_owned()) } else { serde_json::to_string(&ids).ok() };
    (text, shared)
}

#[cfg(test)]
mod tests;
