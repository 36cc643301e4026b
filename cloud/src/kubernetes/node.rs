//! What is published of a node, as its kubelet would: labels of its segments, the annotation with its ids, and the
//! entries of its CSINode.
//!
//! Pure. What somebody else has said is never changed. Labels come before the entries that name their keys, and go
//! after them, since external-provisioner reads keys from the one and values from the other.

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
pub(super) struct Wanted {
    pub(super) driver: DriverName,
    /// The driver's own id of the node.
    pub(super) id: String,
    pub(super) segments: BTreeMap<String, String>,
    /// How many volumes it can have, if there is a limit.
    pub(super) most: Option<i32>,
}

/// The next thing to do about a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Apply these entries, and no others.
    Entries(Vec<CSINodeDriver>),
    /// Apply these labels and this annotation, and no others.
    Labels {
        labels: BTreeMap<String, String>,
        ids: Option<String>,
        /// The annotation is also somebody else's, whose part of it is kept.
        shared: bool,
    },
}

/// A segment that cannot be a label of the node, so that the driver is not published there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collision {
    pub(super) driver: DriverName,
    pub(super) key: String,
    pub(super) value: String,
    /// What stands in the way.
    pub(super) why: String,
}

/// What a node needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) step: Option<Step>,
    pub(super) collisions: Vec<Collision>,
    /// Drivers that nobody has published, which is for the node's kubelet to do first.
    pub(super) missing: Vec<DriverName>,
}

/// What is to be published of a driver at a node; none if it says no id of the node.
pub(super) fn wanted(
    driver: &DriverName,
    node: &NodeName,
    at: &NodeDriver,
    scope: Scope,
) -> Option<Wanted> {
    let info = at.info.as_ref()?;
    // As the node's own front shows it to a kubelet.
    let shown = message::into_answer(
        Rewrite::NodeInfo,
        info,
        node,
        Some(at).filter(|_| scope == Scope::Node),
    )
    .ok()?;
    let info = csi::NodeGetInfoResponse::decode(shown).ok()?;
    let segments = info.accessible_topology.map(|at| at.segments).unwrap_or_default();
    // CSI: a limit of 0 is for the CO to decide, and a negative one is none.
    let most = Some(info.max_volumes_per_node).filter(|most| *most > 0);
    let most = most.map(|most| i32::try_from(most).unwrap_or(i32::MAX));
    let (driver, id) = (driver.clone(), info.node_id);
    (!id.is_empty()).then(|| Wanted { driver, id, segments: segments.into_iter().collect(), most })
}

/// What to do next about a node, when the API has this of it. `due` says whether its kubelet has had its time.
pub(super) fn plan(
    wanted: &[Wanted],
    node: &KnownNode,
    csinode: &KnownCsiNode,
    due: impl Fn(&DriverName) -> bool,
) -> Plan {
    let mut plan = Plan::default();
    let mut ours: Vec<&Wanted> = Vec::new();
    for one in wanted {
        if !csinode.entries.contains_key(one.driver.as_str()) {
            plan.missing.push(one.driver.clone());
        }
        match csinode.entries.get(one.driver.as_str()) {
            // Its kubelet has said it all.
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
        // An entry cannot be changed, only go and come.
        Some(Step::Entries(stays))
    } else if let Some(labels) = labels_of(&ours, node, csinode) {
        Some(labels)
    } else if stays.len() < entries.len() {
        Some(Step::Entries(entries))
    } else {
        None
    };
    plan
}

fn entry(wanted: &Wanted) -> CSINodeDriver {
    let keys: Vec<_> = wanted.segments.keys().cloned().collect();
    CSINodeDriver {
        name: wanted.driver.to_string(),
        node_id: wanted.id.clone(),
        topology_keys: Some(keys).filter(|keys| !keys.is_empty()),
        allocatable: wanted.most.map(|most| VolumeNodeResources { count: Some(most) }),
    }
}

fn collision(wanted: &Wanted, node: &KnownNode, others: &[&Wanted]) -> Option<Collision> {
    wanted.segments.iter().find_map(|(key, value)| {
        let refused = || labels::refused(key, value).map(str::to_owned);
        let theirs = || {
            let theirs = node.labels.get(key).filter(|theirs| *theirs != value)?;
            let ours = node.our_labels.contains(key) && !node.their_labels.contains(key);
            (!ours).then(|| format!("the node has it with the value {theirs:?}"))
        };
        let other = || {
            let other = others
                .iter()
                .find(|other| other.segments.get(key).is_some_and(|its| its != value))?;
            Some(format!("the driver {} says another value of it", other.driver))
        };
        let (driver, key, value) = (wanted.driver.clone(), key.clone(), value.clone());
        refused().or_else(theirs).or_else(other).map(|why| Collision { driver, key, value, why })
    })
}

/// The labels and the annotation, if the node does not have them as they shall be.
fn labels_of(published: &[&Wanted], node: &KnownNode, csinode: &KnownCsiNode) -> Option<Step> {
    let segments = published.iter().flat_map(|one| &one.segments);
    // What somebody else says as well stays his.
    let is_ours = |key: &String| node.our_labels.contains(key) || !node.labels.contains_key(key);
    let labels: BTreeMap<_, _> = segments
        .filter(|(key, _)| is_ours(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let (ids, foreign) = ids(published, node, csinode);
    let keys: BTreeSet<_> = labels.keys().cloned().collect();
    let said = keys == node.our_labels
        && labels.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let ids_said = node.our_ids == ids.is_some() && (ids.is_none() || node.ids == ids);
    (!said || !ids_said).then_some(Step::Labels { labels, ids, shared: foreign })
}

/// The annotation as we shall apply it: all ids of the node, ours among them. With that, whether others have ids there.
fn ids(published: &[&Wanted], node: &KnownNode, csinode: &KnownCsiNode) -> (Option<String>, bool) {
    let text = node.ids.as_deref().unwrap_or("{}");
    // What is no map of texts is somebody's mistake, which kubelets refuse too; it is replaced.
    let before: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    let is_theirs = |driver: &String| {
        !node.our_ids || csinode.entries.get(driver).is_some_and(|entry| !entry.ours)
    };
    let mut ids: BTreeMap<_, _> = before.iter().filter(|(driver, _)| is_theirs(driver)).collect();
    let foreign = !ids.is_empty() || node.others_have_ids;
    let ours: Vec<_> = published.iter().map(|one| (one.driver.to_string(), &one.id)).collect();
    ids.extend(ours.iter().map(|(driver, id)| (driver, *id)));
    let nothing_of_ours = ours.is_empty() && (!node.our_ids || node.others_have_ids);
    let as_before = ids.iter().map(|(a, b)| (*a, *b)).eq(before.iter());
    if ids.is_empty() || (as_before && (nothing_of_ours || !node.our_ids)) {
        return (None, foreign);
    }
    let text = if as_before { Some(text.to_owned()) } else { serde_json::to_string(&ids).ok() };
    (text, foreign)
}

#[cfg(test)]
mod tests;
