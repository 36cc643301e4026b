//! The durable state in memory, with the indexes that routing needs.
//!
//! Only `State::apply` changes it, with changes that are durable.

use std::collections::{BTreeMap, BTreeSet};

use ahash::HashSet;
use proto::control::leader::LeaderEpoch;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::state::driver_state::DriverState;
use crate::state::record::{Change, Intent, Node, NodeDriver};
use crate::state::set_apart::{ApartNodes, Reason, ReasonKind};
use crate::state::starts::Starts;
use crate::state::trust::Trust;
use crate::state::usage::{Share, Usage, Usages};

/// The reason to ask no nodes while labels are unknown.
const UNLABELLED: &str = "its `nodes` select by label, and Kubernetes has not named the nodes \
    yet, so any of them may have it: csi-cloud's log says why the API server does not answer";

/// The reason to ask no nodes while none of them counts.
const NONE_COUNTS: &str = "each node that has it is excluded, so nobody can be asked: `csi-cloud \
    nodes` says why; look for a typing error in its `nodes`";

/// For so long after an empty store began, no id gets a home by the word of nodes alone, in ms.
/// Other nodes that may have it need time to link.
const ADOPTION_WAIT: u64 = 600_000;

/// The nodes that the operator names for a driver.
#[derive(Default)]
pub(super) struct NamedNodes {
    /// By name or by label.
    pub(super) nodes: BTreeSet<NodeName>,
    /// True if no other node may have the driver: no pattern admits one.
    pub(super) are_all: bool,
}

/// All records of the store.
#[derive(Default)]
pub struct State {
    drivers: BTreeMap<DriverName, DriverState>,
    nodes: BTreeMap<NodeName, Node>,
    /// The removed nodes; every routing decision asks for them, and there are few.
    removed: HashSet<NodeName>,
    /// The nodes that are set apart; in memory only.
    apart: ApartNodes,
    /// The nodes that the operator names for each driver; in memory only.
    named: BTreeMap<DriverName, NamedNodes>,
    /// The drivers whose nodes are selected by labels that are not known yet; in memory only.
    unlabelled: BTreeSet<DriverName>,
    /// The last lease epoch.
    epoch: u64,
    leader_epoch: Option<LeaderEpoch>,
    starts: Starts,
    trust: Trust,
    usages: Usages,
}

impl State {
    /// The state after these changes.
    pub fn of(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut state = Self::default();
        changes.into_iter().for_each(|change| state.apply(change));
        state
    }

    /// The records of a driver; none if no node ever held it.
    pub fn driver(&self, driver: &DriverName) -> Option<&DriverState> {
        self.drivers.get(driver)
    }

    /// All drivers that any node ever held, by name.
    pub fn drivers(&self) -> &BTreeMap<DriverName, DriverState> {
        &self.drivers
    }

    /// A node that ever linked.
    pub fn node(&self, node: &NodeName) -> Option<&Node> {
        self.nodes.get(node)
    }

    /// All nodes that ever linked.
    pub fn nodes(&self) -> &BTreeMap<NodeName, Node> {
        &self.nodes
    }

    /// The number of nodes that ever linked and were not removed.
    pub(crate) fn staying(&self) -> usize {
        self.nodes.len() - self.removed.len()
    }

    /// True if an operator removed the node for good.
    pub fn is_removed(&self, node: &NodeName) -> bool {
        self.removed.contains(node)
    }

    /// The latest time at which a node came or a create began, in ms since 1970. A clock before it
    /// is wrong now, or was then.
    pub(crate) fn latest(&self) -> u64 {
        let intents = self.drivers.values().flat_map(|of| of.intents().values());
        let creates = intents.map(|intent| intent.since).max();
        let nodes = self.nodes.values().map(|node| node.since).max();
        creates.max(nodes).unwrap_or_default()
    }

    /// The creates that were sent to a node and have no known outcome.
    pub(crate) fn open_intents_at(
        &self,
        node: &NodeName,
    ) -> impl Iterator<Item = (&DriverName, &Id, &Intent)> {
        let all = self.drivers.iter().flat_map(|(driver, of)| {
            of.intents().iter().map(move |(name, intent)| (driver, name, intent))
        });
        all.filter(move |(_, _, intent)| intent.made.is_none() && intent.node == *node)
    }

    /// The nodes that count for a driver, with its records there. See [`DriverState::members`].
    pub fn members(&self, driver: &DriverName) -> impl Iterator<Item = (&NodeName, &NodeDriver)> {
        self.driver(driver).into_iter().flat_map(DriverState::members)
    }

    /// The nodes that the operator names for a driver and that never reported it. They may have ids
    /// without a home.
    pub fn awaited(&self, driver: &DriverName) -> impl Iterator<Item = &NodeName> {
        let of = self.driver(driver);
        let has_reported = move |node: &NodeName| of.is_some_and(|of| of.at(node).is_some());
        let excludes = |node: &NodeName| {
            let mut reasons = self.apart.of(node, driver);
            reasons.any(|apart| apart.reason.kind().excludes())
        };
        let named = self.named.get(driver).into_iter().flat_map(|named| &named.nodes);
        named.filter(move |node| {
            !has_reported(node) && !self.removed.contains(*node) && !excludes(node)
        })
    }

    /// The nodes that may have an id without a home: those that count for the driver, and awaited
    /// ones.
    pub fn candidates(&self, driver: &DriverName) -> impl Iterator<Item = &NodeName> {
        self.members(driver).map(|(node, _)| node).chain(self.awaited(driver))
    }

    /// The time from which nodes alone give an id of a driver a home, in ms since 1970. `None` if
    /// they do now. They do not while the store is new, because nodes that may have the id have
    /// yet to link, unless the operator names all nodes. A clock before the store's begin changes
    /// nothing.
    pub fn adopts_from(&self, driver: &DriverName, now: u64) -> Option<u64> {
        let begun = self.trust.secrets().map_or(0, |secrets| secrets.begun);
        let from = begun.saturating_mul(1000).saturating_add(ADOPTION_WAIT);
        let are_all_named = self.named.get(driver).is_some_and(|named| named.are_all);
        (begun > 0 && now < from && !are_all_named).then_some(from)
    }

    /// True if it has no node and no driver.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.drivers.is_empty()
    }

    /// True if labels select nodes of a driver, and the API server has not named them yet. Any node
    /// may have ids without a home then, so that no answer about one of them is final.
    pub fn awaits_labels(&self, driver: &DriverName) -> bool {
        self.unlabelled.contains(driver)
    }

    /// The reason why the nodes that may have an id without a home are not known; none if they
    /// are. Without them, nobody's answer about such an id is final. An excluded node may have the
    /// id, and must not be asked. What a removed node has is given up.
    pub fn why_uncounted(&self, driver: &DriverName) -> Option<&'static str> {
        if self.awaits_labels(driver) {
            return Some(UNLABELLED);
        }
        let recorded = self.driver(driver).into_iter().flat_map(|of| of.nodes().keys());
        let has_excluded = recorded.clone().any(|node| !self.is_removed(node));
        (has_excluded && self.candidates(driver).next().is_none()).then_some(NONE_COUNTS)
    }

    /// The nodes that are set apart.
    pub fn apart(&self) -> &ApartNodes {
        &self.apart
    }

    /// The last lease epoch; 0 before the first.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The epoch of the last csi-cloud that led; none if the store always had one only.
    pub fn leader_epoch(&self) -> Option<LeaderEpoch> {
        self.leader_epoch
    }

    /// The starts of csi-clouds on this store.
    pub fn starts(&self) -> &Starts {
        &self.starts
    }

    /// The trust records and csi-cloud's own secret keys.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The number of leases that a node holds or claims.
    pub fn held_by(&self, node: &NodeName) -> usize {
        self.drivers.values().map(|driver| driver.held_by(node)).sum()
    }

    /// The usage of a node.
    pub fn usage(&self, node: &NodeName) -> Usage {
        self.usages.of(node)
    }

    /// The usage of all nodes together.
    pub fn usage_of_all(&self) -> Usage {
        self.usages.all()
    }

    /// The share of the record that a change replaces.
    fn share_before(&self, change: &Change) -> Option<Share> {
        match change {
            Change::Home(driver, id, _) => {
                let home = self.driver(driver)?.home(id)?;
                Some((home.node.clone(), Usage::of_home(driver, id, home)))
            }
            Change::Intent(driver, name, _) => {
                let intent = self.driver(driver)?.intent(name)?;
                Some((intent.node.clone(), Usage::of_intent(driver, name, intent)))
            }
            Change::NodeDriver(driver, node, _) => {
                let at = self.driver(driver)?.at(node)?;
                Some((node.clone(), Usage::of_driver(driver, at)))
            }
            Change::EndedHome(..)
            | Change::Node(..)
            | Change::Elected(..)
            | Change::Profile(..)
            | Change::Lease(..)
            | Change::Epoch(_)
            | Change::LeaderEpoch(_)
            | Change::Start(..)
            | Change::Trust(_) => None,
        }
    }

    /// Applies a durable change.
    pub(super) fn apply(&mut self, change: Change) {
        let before = self.share_before(&change);
        self.usages.replace(before, change.share());
        let emptied = change.removes_of().cloned();
        self.apply_record(change);
        // A driver that nobody has any more, as after a purge.
        if let Some(driver) = emptied
            && self.drivers.get(&driver).is_some_and(DriverState::is_empty)
        {
            self.drivers.remove(&driver);
        }
    }

    fn apply_record(&mut self, change: Change) {
        match change {
            Change::Home(driver, id, home) => {
                self.drivers.entry(driver).or_default().set_home(id, home)
            }
            Change::EndedHome(driver, id, home) => {
                self.drivers.entry(driver).or_default().set_ended(id, home);
            }
            Change::Intent(driver, name, intent) => {
                self.drivers.entry(driver).or_default().set_intent(name, intent);
            }
            Change::NodeDriver(driver, node, at) => {
                self.drivers.entry(driver.clone()).or_default().set_at(node.clone(), at);
                self.recount(&driver, &node);
            }
            Change::Elected(driver, elected) => {
                self.drivers.entry(driver).or_default().set_elected(elected)
            }
            Change::Profile(driver, profile) => {
                self.drivers.entry(driver).or_default().set_profile(profile);
            }
            Change::Node(name, node) => self.set_node(name, node),
            Change::Lease(driver, id, lease) => {
                self.drivers.entry(driver).or_default().set_lease(id, lease)
            }
            Change::Epoch(last) => self.epoch = last,
            Change::LeaderEpoch(epoch) => self.leader_epoch = Some(epoch),
            Change::Start(start, record) => self.starts.apply(start, record),
            Change::Trust(change) => self.trust.apply(change),
        }
    }

    /// Takes the records of a state that was read anew. Data in memory only stays.
    pub(super) fn take_records(&mut self, fresh: Self) {
        let apart = std::mem::take(&mut self.apart);
        let named = std::mem::take(&mut self.named);
        let unlabelled = std::mem::take(&mut self.unlabelled);
        let starts = fresh.starts.in_process_of(&self.starts);
        *self = Self { apart, named, unlabelled, starts, ..fresh };
        for node in &self.removed {
            self.apart.forget(node);
        }
        let held = |(driver, of): (&DriverName, &DriverState)| {
            let nodes = of.nodes().keys().map(|node| (driver.clone(), node.clone()));
            nodes.collect::<Vec<_>>()
        };
        let all: Vec<_> = self.drivers.iter().flat_map(held).collect();
        all.iter().for_each(|(driver, node)| self.recount(driver, node));
    }

    /// Notes that a call changed something without a home.
    pub(super) fn set_stale(&mut self, driver: &DriverName, id: Id) {
        if let Some(driver) = self.drivers.get_mut(driver) {
            driver.set_stale(id);
        }
    }

    /// Keeps which nodes the operator names for a driver.
    pub(super) fn set_named(&mut self, driver: DriverName, nodes: NamedNodes) {
        self.named.insert(driver, nodes);
    }

    /// Keeps whether the labels that select a driver's nodes are still unknown.
    pub(super) fn set_awaits_labels(&mut self, driver: &DriverName, awaits: bool) {
        if awaits {
            self.unlabelled.insert(driver.clone());
        } else {
            self.unlabelled.remove(driver);
        }
    }

    /// Sets a node apart; returns whether that is news. See [`ApartNodes`].
    pub fn set_apart(
        &mut self,
        node: &NodeName,
        driver: Option<&DriverName>,
        reason: Reason,
    ) -> bool {
        let is_news = self.apart.set(node, driver, reason);
        if is_news {
            self.recount_all(node);
        }
        is_news
    }

    /// Removes a reason; returns whether it was there.
    pub fn clear_apart(
        &mut self,
        node: &NodeName,
        driver: Option<&DriverName>,
        kind: ReasonKind,
    ) -> bool {
        let was_apart = self.apart.clear(node, driver, kind).is_some();
        if was_apart {
            self.recount_all(node);
        }
        was_apart
    }

    fn set_node(&mut self, name: NodeName, node: Option<Node>) {
        let is_removed = node.as_ref().is_some_and(|node| node.removed.is_some());
        let changed = if is_removed {
            self.apart.forget(&name);
            self.removed.insert(name.clone())
        } else {
            self.removed.remove(&name)
        };
        match node {
            Some(node) => self.nodes.insert(name.clone(), node),
            None => self.nodes.remove(&name),
        };
        if changed {
            self.recount_all(&name);
        }
    }

    fn recount_all(&mut self, node: &NodeName) {
        let drivers: Vec<_> = self.drivers.keys().cloned().collect();
        drivers.iter().for_each(|driver| self.recount(driver, node));
    }

    /// Notes whether a node counts for a driver.
    fn recount(&mut self, driver: &DriverName, node: &NodeName) {
        let mut reasons = self.apart.of(node, driver);
        let is_excluded = reasons.any(|apart| apart.reason.kind().excludes());
        let is_member = !is_excluded && !self.removed.contains(node);
        if let Some(of) = self.drivers.get_mut(driver) {
            of.set_member(node, is_member);
        }
    }
}
