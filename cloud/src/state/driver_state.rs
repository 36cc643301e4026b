//! The durable state of one driver in memory, with the indexes that routing needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use ahash::{HashMap, HashSet};
use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::topology::has_controller;
use proto::csi::{Capabilities, Id, Local, Segments};
use proto::names::NodeName;

use crate::state::driver_info::DriverInfo;
use crate::state::ended_homes::EndedHomes;
use crate::state::recent::{RecentChanges, Stale};
use crate::state::record::{Elected, EndedHome, Home, Intent, LeaseRecord, NodeDriver, Profile};
use crate::state::segment_index::SegmentIndex;

/// All records of one driver.
#[derive(Default)]
pub struct DriverState {
    /// Boxed: a map filled in order, as at a start, has half-empty tree nodes.
    homes: BTreeMap<Id, Box<Home>>,
    ended: EndedHomes,
    intents: BTreeMap<Id, Intent>,
    at: BTreeMap<NodeName, NodeDriver>,
    /// Nodes that count for nothing: removed, or with another driver than an allowed one.
    excluded: HashSet<NodeName>,
    elected: Option<Elected>,
    profile: Option<Profile>,
    /// The leases of direct volumes.
    leases: BTreeMap<Id, LeaseRecord>,
    /// The number of leases by node, with those that it claims.
    held: HashMap<NodeName, usize>,
    /// The number of intents with an unknown outcome.
    open: usize,
    /// Volumes and running creates by node.
    load: HashMap<NodeName, u64>,
    /// The driver's nodes, ordered by load.
    by_load: BTreeSet<(u64, NodeName)>,
    segments: SegmentIndex,
    /// The number of nodes without a topology of their own.
    without_topology: usize,
    /// Computed from the nodes' answers; reset when one of them changes.
    info: OnceLock<DriverInfo>,
    recent: RecentChanges,
}

impl DriverState {
    /// The home of an id.
    pub fn home(&self, id: &Id) -> Option<&Home> {
        self.homes.get(id).map(|home| &**home)
    }

    /// All homes ordered by id: volumes, then snapshots, then groups.
    pub fn homes(&self) -> &BTreeMap<Id, Box<Home>> {
        &self.homes
    }

    /// The last homes of what was deleted.
    pub fn ended(&self) -> &EndedHomes {
        &self.ended
    }

    /// The number of changes of this driver's homes since csi-cloud started, including changes of
    /// things without a home.
    pub fn changes(&self) -> u64 {
        self.recent.changes()
    }

    /// The things at a node ordered by id, each with the number of its last change (see
    /// [`Self::changes`]).
    pub fn homes_of(&self, node: &NodeName) -> impl Iterator<Item = (&Id, u64)> {
        self.recent.of(node)
    }

    /// True if the home of an id at a node changed after this change.
    pub fn changed_since(&self, node: &NodeName, id: &Id, since: u64) -> bool {
        self.recent.last_change(node, id).is_some_and(|change| change > since)
    }

    /// Things without a home about which lists from before this change are stale. None if that is
    /// too long ago to be known.
    pub fn stale_since(&self, since: u64) -> Option<HashMap<&Id, Stale>> {
        self.recent.stale_since(since)
    }

    /// The intent of a name.
    pub fn intent(&self, name: &Id) -> Option<&Intent> {
        self.intents.get(name)
    }

    /// All intents, including those with a known outcome.
    pub fn intents(&self) -> &BTreeMap<Id, Intent> {
        &self.intents
    }

    /// The number of intents with an unknown outcome.
    pub fn open_intents(&self) -> usize {
        self.open
    }

    /// The driver at a node.
    pub fn at(&self, node: &NodeName) -> Option<&NodeDriver> {
        self.at.get(node)
    }

    /// The nodes that count: neither removed, nor excluded.
    /// See [`excludes`](crate::state::set_apart::ReasonKind::excludes).
    pub fn members(&self) -> impl Iterator<Item = (&NodeName, &NodeDriver)> {
        self.at.iter().filter(|(node, _)| self.is_member(node))
    }

    /// The nodes that had this node id before, if no node has it now.
    pub fn formerly(&self, node_id: &str) -> Vec<&NodeName> {
        let members = self.members();
        let had = members.filter(|(_, at)| at.former_ids.iter().any(|id| **id == *node_id));
        let former: Vec<_> = had.map(|(node, _)| node).collect();
        // Every attach asks, and this decodes each node's answer. Nearly always nobody had the id.
        if former.is_empty() {
            return former;
        }
        let mut infos = self.members().filter_map(|(_, at)| at.info.as_ref());
        if infos.any(|info| has_node_id(info, node_id)) { Vec::new() } else { former }
    }

    /// True if a node counts; see [`Self::members`].
    pub fn is_member(&self, node: &NodeName) -> bool {
        !self.excluded.contains(node)
    }

    /// True if nodes have answered GetPluginCapabilities, and none has CONTROLLER_SERVICE: the
    /// driver mounts volumes, and makes none.
    pub fn is_node_only(&self) -> bool {
        let plugin = Local::Capabilities(Capabilities::Plugin);
        let mut answers = self.members().filter_map(|(_, at)| at.answer(plugin)).peekable();
        answers.peek().is_some() && !answers.any(|answer| has_controller(answer))
    }

    /// The topology keys of which each member that reports one has another value, if two do.
    pub(crate) fn keys_with_own_values(&self) -> BTreeSet<&str> {
        let mut values = BTreeMap::new();
        for (_, at) in self.members() {
            for segment in &at.segments {
                let (all, different): &mut (usize, HashSet<&str>) =
                    values.entry(segment.0.as_str()).or_default();
                *all += 1;
                different.insert(&segment.1);
            }
        }
        values.retain(|_, (all, different)| *all > 1 && different.len() == *all);
        values.into_keys().collect()
    }

    /// All nodes that ever held the driver.
    pub fn nodes(&self) -> &BTreeMap<NodeName, NodeDriver> {
        &self.at
    }

    /// The elected node of a shared driver.
    pub fn elected(&self) -> Option<&NodeName> {
        self.elected.as_ref().map(|elected| &elected.node)
    }

    /// The same, with the nodes elected before.
    pub fn election(&self) -> Option<&Elected> {
        self.elected.as_ref()
    }

    /// The driver's profile; none before enough nodes agreed.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// The lease record of a volume; none if it has no holder and was never revoked.
    pub fn lease(&self, id: &Id) -> Option<&LeaseRecord> {
        self.leases.get(id)
    }

    /// The lease records of direct volumes.
    pub fn leases(&self) -> &BTreeMap<Id, LeaseRecord> {
        &self.leases
    }

    /// Volumes and running creates at a node.
    pub fn load(&self, node: &NodeName) -> u64 {
        self.load.get(node).copied().unwrap_or(0)
    }

    /// The driver's nodes, those with the fewest volumes first.
    pub fn by_load(&self) -> impl Iterator<Item = &NodeName> {
        self.by_load.iter().map(|(_, node)| node)
    }

    /// The nodes whose segments include all of these, by name.
    pub fn located<'a>(&'a self, wanted: &'a Segments) -> impl Iterator<Item = &'a NodeName> {
        let of = |(key, value): (&'a String, &String)| self.segments.of(key, value);
        // Only the nodes of the rarest segment are filtered.
        let rarest = wanted.iter().map(of).min_by_key(|nodes| nodes.len()).unwrap_or_default();
        let has_others = |node: &NodeName| self.at.get(node).is_some_and(|at| at.is_at(wanted));
        // For a single segment the index is exact.
        rarest.iter().filter(move |node| wanted.len() == 1 || has_others(node))
    }

    /// True if some node has no topology of its own and uses ours.
    pub fn has_our_topology(&self) -> bool {
        self.without_topology > 0
    }

    /// The front's answers about the driver.
    pub fn info(&self) -> &DriverInfo {
        self.info.get_or_init(|| DriverInfo::of(self.profile(), self.members()))
    }

    /// The number of leases that a node holds or claims.
    pub(super) fn held_by(&self, node: &NodeName) -> usize {
        self.held.get(node).copied().unwrap_or_default()
    }

    /// Notes the election.
    pub(super) fn set_elected(&mut self, elected: Option<Elected>) {
        self.elected = elected;
    }

    /// Notes that a call changed something without a home.
    pub(super) fn set_stale(&mut self, id: Id) {
        self.recent.set_stale(id);
    }

    pub(super) fn set_profile(&mut self, mut profile: Option<Profile>) {
        // Nodes with the same answers share their copy with the profile.
        if let Some(profile) = &mut profile
            && let Some(same) = self.at.values().find(|at| at.answers == profile.answers)
        {
            profile.answers = same.answers.clone();
        }
        self.profile = profile;
        self.info = OnceLock::new();
    }

    /// True if no record of the driver is left.
    pub(super) fn is_empty(&self) -> bool {
        let has_node = !self.at.is_empty() || self.elected.is_some() || self.profile.is_some();
        // Ended homes alone keep no driver: they direct nothing without a node.
        !has_node && self.homes.is_empty() && self.intents.is_empty() && self.leases.is_empty()
    }

    pub(super) fn set_member(&mut self, node: &NodeName, is_member: bool) {
        let changed =
            if is_member { self.excluded.remove(node) } else { self.excluded.insert(node.clone()) };
        if changed {
            self.info = OnceLock::new();
        }
    }

    pub(super) fn set_home(&mut self, id: Id, home: Option<Home>) {
        let after = home.as_ref().and_then(|home| home.counted(&id)).cloned();
        let now_at = home.as_ref().map(|home| home.node.clone());
        let before = match home {
            Some(home) => self.homes.insert(id.clone(), Box::new(home)),
            None => self.homes.remove(&id),
        };
        self.recent.changed(&id, before.as_ref().map(|home| &home.node), now_at.as_ref());
        self.count(before.and_then(|home| home.counted(&id).cloned()), after);
    }

    pub(super) fn set_ended(&mut self, id: Id, home: Option<EndedHome>) {
        self.ended.set(id, home);
    }

    pub(super) fn set_lease(&mut self, id: Id, lease: Option<LeaseRecord>) {
        let after = lease.as_ref().map(LeaseRecord::nodes).unwrap_or_default();
        let before = match lease {
            Some(lease) => self.leases.insert(id, lease),
            None => self.leases.remove(&id),
        };
        for node in before.as_ref().map(LeaseRecord::nodes).unwrap_or_default() {
            if let Some(held) = self.held.get_mut(&node) {
                *held = held.saturating_sub(1);
            }
        }
        for node in after {
            *self.held.entry(node).or_default() += 1;
        }
    }

    pub(super) fn set_intent(&mut self, name: Id, intent: Option<Intent>) {
        let after = intent.as_ref().and_then(Intent::counted).cloned();
        let before = match intent {
            Some(intent) => self.intents.insert(name, intent),
            None => self.intents.remove(&name),
        };
        self.open += usize::from(after.is_some());
        self.open -= usize::from(before.as_ref().is_some_and(|intent| intent.counted().is_some()));
        self.count(before.and_then(|intent| intent.counted().cloned()), after);
    }

    /// Moves the load of one volume or create from `before` to `after`.
    fn count(&mut self, before: Option<NodeName>, after: Option<NodeName>) {
        if before == after {
            return;
        }
        let moved = before.map(|node| (node, -1)).into_iter().chain(after.map(|node| (node, 1)));
        for (node, more) in moved {
            let load = self.load(&node);
            let now = load.saturating_add_signed(more);
            if self.by_load.remove(&(load, node.clone())) {
                self.by_load.insert((now, node.clone()));
            }
            if now == 0 {
                self.load.remove(&node)
            } else {
                self.load.insert(node, now)
            };
        }
    }

    pub(crate) fn set_at(&mut self, node: NodeName, at: Option<NodeDriver>) {
        let load = self.load(&node);
        let before = self.at.remove(&node);
        if let Some(before) = &before {
            self.segments.remove(&before.segments, &node);
        }
        self.by_load.remove(&(load, node.clone()));
        let without_topology =
            |at: &NodeDriver| usize::from(at.has_spoken() && !at.has_own_topology());
        self.without_topology -= before.as_ref().map_or(0, without_topology);
        let Some(mut at) = at else { return drop(self.info.take()) };
        self.without_topology += without_topology(&at);
        // Thousands of nodes may give the same answers; they share one copy.
        let same = self.at.values().next_back().filter(|other| other.answers == at.answers);
        if let Some(same) = same {
            at.answers = same.answers.clone();
        }
        let now = (&at.answers, &at.info);
        if same.is_none() || before.is_some_and(|before| (&before.answers, &before.info) != now) {
            self.info = OnceLock::new();
        }
        self.segments.add(&mut at.segments, &node);
        self.by_load.insert((load, node.clone()));
        self.at.insert(node, at);
    }
}
/// True if a driver's answer to NodeGetInfo has this node id.
pub(crate) fn has_node_id(info: &Bytes, node_id: &str) -> bool {
    csi::NodeGetInfoResponse::decode(info.clone()).is_ok_and(|info| info.node_id == node_id)
}
