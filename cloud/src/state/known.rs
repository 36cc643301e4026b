//! What is durable, in memory, with the indexes that routing needs. It is only changed by [`State::apply`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::OnceLock;

use proto::csi::{Id, Segments};
use proto::names::{DriverName, NodeName};

use crate::state::driver_info::DriverInfo;
use crate::state::recent::{RecentChanges, Stale};
use crate::state::record::{Change, Home, Intent, LeaseRecord, Node, NodeDriver};
use crate::state::segment_index::SegmentIndex;

/// Everything that the store keeps.
#[derive(Default)]
pub struct State {
    drivers: HashMap<DriverName, DriverState>,
    nodes: BTreeMap<NodeName, Node>,
    /// Those of them that were removed; asked for at each decision, and seldom any.
    removed: HashSet<NodeName>,
    /// The epoch that was given last.
    epoch: u64,
}

/// What the store keeps of one driver.
#[derive(Default)]
pub struct DriverState {
    /// Boxed, since a map's nodes are half empty when they were filled in order, as by a start.
    homes: BTreeMap<Id, Box<Home>>,
    intents: BTreeMap<Id, Intent>,
    at: BTreeMap<NodeName, NodeDriver>,
    elected: Option<NodeName>,
    /// Of the volumes that one guest owns.
    leases: BTreeMap<Id, LeaseRecord>,
    /// How many of them each node has.
    had: HashMap<NodeName, usize>,
    /// How many of the intents are of creates whose outcome nobody knows.
    open: usize,
    /// Volumes by node, with creates on their way.
    load: HashMap<NodeName, u64>,
    /// The nodes that have the driver, those with the fewest volumes first.
    by_load: BTreeSet<(u64, NodeName)>,
    /// The nodes at each segment.
    segments: SegmentIndex,
    /// How many nodes have no topology of their own.
    given: usize,
    /// What the front says of itself, made of what the nodes say; forgotten when one of them says something else.
    info: OnceLock<DriverInfo>,
    /// The homes by node, and when they changed.
    recent: RecentChanges,
}

impl State {
    /// A state out of changes.
    pub fn of(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut state = Self::default();
        changes.into_iter().for_each(|change| state.apply(change));
        state
    }

    /// What is kept of a driver; none if no node ever had it.
    pub fn driver(&self, driver: &DriverName) -> Option<&DriverState> {
        self.drivers.get(driver)
    }

    /// All drivers that any node ever had, by name.
    pub fn drivers(&self) -> BTreeMap<&DriverName, &DriverState> {
        self.drivers.iter().collect()
    }

    /// A node that ever linked.
    pub fn node(&self, node: &NodeName) -> Option<&Node> {
        self.nodes.get(node)
    }

    /// All nodes that ever linked.
    pub fn nodes(&self) -> &BTreeMap<NodeName, Node> {
        &self.nodes
    }

    /// Whether an operator removed the node for good.
    pub fn is_removed(&self, node: &NodeName) -> bool {
        self.removed.contains(node)
    }

    /// The epoch that was given last; 0 before any was.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many of the volumes that one guest owns a node has.
    pub fn held_by(&self, node: &NodeName) -> usize {
        self.drivers.values().filter_map(|driver| driver.had.get(node)).sum()
    }

    /// Takes a change that is durable.
    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Home(driver, id, home) => {
                self.drivers.entry(driver).or_default().set_home(id, home)
            }
            Change::Intent(driver, name, intent) => {
                self.drivers.entry(driver).or_default().set_intent(name, intent);
            }
            Change::NodeDriver(driver, node, at) => {
                self.drivers.entry(driver).or_default().set_at(node, at)
            }
            Change::Elected(driver, node) => self.drivers.entry(driver).or_default().elected = node,
            Change::Node(name, node) => self.set_node(name, node),
            Change::Lease(driver, id, own) => {
                self.drivers.entry(driver).or_default().set_lease(id, own)
            }
            Change::Epoch(last) => self.epoch = last,
        }
    }

    /// A call changed something of a driver that has no home.
    pub(super) fn set_stale(&mut self, driver: &DriverName, id: Id) {
        if let Some(driver) = self.drivers.get_mut(driver) {
            driver.recent.set_stale(id);
        }
    }

    fn set_node(&mut self, name: NodeName, node: Option<Node>) {
        match node.as_ref().and_then(|node| node.removed) {
            Some(_) => self.removed.insert(name.clone()),
            None => self.removed.remove(&name),
        };
        match node {
            Some(node) => self.nodes.insert(name, node),
            None => self.nodes.remove(&name),
        };
    }
}

impl DriverState {
    /// Where something lives.
    pub fn home(&self, id: &Id) -> Option<&Home> {
        self.homes.get(id).map(|home| &**home)
    }

    /// All homes in order of their ids: volumes, then snapshots, then groups.
    pub fn homes(&self) -> &BTreeMap<Id, Box<Home>> {
        &self.homes
    }

    /// How often a home was made, changed or forgotten since csi-cloud started, or something changed that has none.
    pub fn changes(&self) -> u64 {
        self.recent.changes()
    }

    /// What lives on a node, in order of its ids, with the change (see [`Self::changes`]) that was its last.
    pub fn homes_of(&self, node: &NodeName) -> impl Iterator<Item = (&Id, u64)> {
        self.recent.of(node)
    }

    /// Whether the home of something at a node changed after this change.
    pub fn changed_since(&self, node: &NodeName, id: &Id, since: u64) -> bool {
        self.recent.last_change(node, id).is_some_and(|change| change > since)
    }

    /// What was forgotten after this change, or changed without having a home; none if that is so long ago that it is
    /// not known any more.
    pub fn stale_since(&self, since: u64) -> Option<HashMap<&Id, Stale>> {
        self.recent.stale_since(since)
    }

    /// To which node a create was sent.
    pub fn intent(&self, name: &Id) -> Option<&Intent> {
        self.intents.get(name)
    }

    /// All creates that were sent to a node, also those whose outcome is known.
    pub fn intents(&self) -> &BTreeMap<Id, Intent> {
        &self.intents
    }

    /// How many of the intents are of creates whose outcome nobody knows.
    pub fn open_intents(&self) -> usize {
        self.open
    }

    /// The driver at a node.
    pub fn at(&self, node: &NodeName) -> Option<&NodeDriver> {
        self.at.get(node)
    }

    /// All nodes that ever had the driver.
    pub fn nodes(&self) -> &BTreeMap<NodeName, NodeDriver> {
        &self.at
    }

    /// The node that carries out the calls, if the driver is shared and one was elected.
    pub fn elected(&self) -> Option<&NodeName> {
        self.elected.as_ref()
    }

    /// Whose a volume is; none if it is nobody's, and was taken from nobody.
    pub fn lease(&self, id: &Id) -> Option<&LeaseRecord> {
        self.leases.get(id)
    }

    /// Whose the volumes are that one guest owns.
    pub fn leases(&self) -> &BTreeMap<Id, LeaseRecord> {
        &self.leases
    }

    /// Volumes at a node, with creates on their way.
    pub fn load(&self, node: &NodeName) -> u64 {
        self.load.get(node).copied().unwrap_or(0)
    }

    /// The nodes that have the driver, those with the fewest volumes first.
    pub fn by_load(&self) -> impl Iterator<Item = &NodeName> {
        self.by_load.iter().map(|(_, node)| node)
    }

    /// The nodes whose segments hold all that a topology asks for, by name.
    pub fn located<'a>(&'a self, asked: &'a Segments) -> impl Iterator<Item = &'a NodeName> {
        let of = |(key, value): (&'a String, &String)| self.segments.of(key, value);
        // Looked through is what the rarest segment leaves.
        let rarest = asked.iter().map(of).min_by_key(|nodes| nodes.len()).unwrap_or_default();
        let has_others = |node: &NodeName| self.at.get(node).is_some_and(|at| at.is_at(asked));
        // Of a single segment the index has said all.
        rarest.iter().filter(move |node| asked.len() == 1 || has_others(node))
    }

    /// Whether some node has no topology of its own, and so has ours.
    pub fn has_our_topology(&self) -> bool {
        self.given > 0
    }

    /// What the front says of itself.
    pub fn info(&self) -> &DriverInfo {
        self.info.get_or_init(|| DriverInfo::of(&self.at))
    }

    fn set_home(&mut self, id: Id, home: Option<Home>) {
        let after = home.as_ref().and_then(|home| home.counted(&id)).cloned();
        let now_at = home.as_ref().map(|home| home.node.clone());
        let before = match home {
            Some(home) => self.homes.insert(id.clone(), Box::new(home)),
            None => self.homes.remove(&id),
        };
        self.recent.changed(&id, before.as_ref().map(|home| &home.node), now_at.as_ref());
        self.count(before.and_then(|home| home.counted(&id).cloned()), after);
    }

    fn set_lease(&mut self, id: Id, own: Option<LeaseRecord>) {
        let owner = |own: &LeaseRecord| own.holder.as_ref().map(|owner| owner.node.clone());
        let after = own.as_ref().and_then(owner);
        let before = match own {
            Some(own) => self.leases.insert(id, own),
            None => self.leases.remove(&id),
        };
        if let Some(node) = before.as_ref().and_then(owner)
            && let Some(had) = self.had.get_mut(&node)
        {
            *had = had.saturating_sub(1);
        }
        if let Some(node) = after {
            *self.had.entry(node).or_default() += 1;
        }
    }

    fn set_intent(&mut self, name: Id, intent: Option<Intent>) {
        let after = intent.as_ref().and_then(Intent::counted).cloned();
        let before = match intent {
            Some(intent) => self.intents.insert(name, intent),
            None => self.intents.remove(&name),
        };
        self.open += usize::from(after.is_some());
        self.open -= usize::from(before.as_ref().is_some_and(|intent| intent.counted().is_some()));
        self.count(before.and_then(|intent| intent.counted().cloned()), after);
    }

    /// A volume, or the making of one, was at `before` and is now at `after`.
    fn count(&mut self, before: Option<NodeName>, after: Option<NodeName>) {
        if before == after {
            return;
        }
        for (node, more) in
            before.map(|node| (node, -1)).into_iter().chain(after.map(|node| (node, 1)))
        {
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

    fn set_at(&mut self, node: NodeName, at: Option<NodeDriver>) {
        let load = self.load(&node);
        let before = self.at.remove(&node);
        if let Some(before) = &before {
            self.segments.remove(&before.segments, &node);
        }
        self.by_load.remove(&(load, node.clone()));
        let given = |at: &NodeDriver| usize::from(at.has_spoken() && !at.has_own_topology());
        self.given -= before.as_ref().map_or(0, given);
        let Some(mut at) = at else {
            self.info = OnceLock::new();
            return;
        };
        self.given += given(&at);
        // There may be thousands of nodes that all say the same.
        let same = self.at.values().next_back().filter(|other| other.answers == at.answers);
        if let Some(same) = same {
            at.answers = same.answers.clone();
        }
        if same.is_none() || before.is_some_and(|before| before.answers != at.answers) {
            self.info = OnceLock::new();
        }
        self.segments.add(&mut at.segments, &node);
        self.by_load.insert((load, node.clone()));
        self.at.insert(node, at);
    }
}
