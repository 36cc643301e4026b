//! Changes on their way: what was decided but is not durable yet, over the state that is.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::state::known::State;
use crate::state::record::{Change, Home, Intent, LeaseRecord, Node, NodeDriver};

/// What was learned by key, over what was there before.
type Over<K, V> = HashMap<K, Option<V>>;

/// A change being made. It sees the changes before it, also those that share its commit.
pub struct Txn<'a> {
    state: &'a State,
    homes: Over<(DriverName, Id), Home>,
    intents: Over<(DriverName, Id), Intent>,
    at: Over<(DriverName, NodeName), NodeDriver>,
    nodes: Over<NodeName, Node>,
    elected: Over<DriverName, NodeName>,
    leases: Over<(DriverName, Id), LeaseRecord>,
    epoch: Option<u64>,
    /// What has no home and was changed.
    without: HashSet<(DriverName, Id)>,
    /// Volumes that these changes add to a node, or take from it.
    load: HashMap<(DriverName, NodeName), i64>,
}

impl<'a> Txn<'a> {
    pub(super) fn new(state: &'a State) -> Self {
        let (homes, intents, at, nodes, elected, leases, without, load) = Default::default();
        Self { state, homes, intents, at, nodes, elected, leases, epoch: None, without, load }
    }

    /// What is durable, without these changes.
    pub fn state(&self) -> &'a State {
        self.state
    }

    /// Where something lives.
    pub fn home(&self, driver: &DriverName, id: &Id) -> Option<&Home> {
        over(&self.homes, &(driver.clone(), id.clone()), || self.state.driver(driver)?.home(id))
    }

    /// Sets where something lives, or forgets it.
    pub fn set_home(&mut self, driver: &DriverName, id: &Id, home: Option<Home>) {
        let before = self.home(driver, id).and_then(|home| home.counted(id));
        let after = home.as_ref().and_then(|home| home.counted(id));
        self.count(driver, before.cloned(), after.cloned());
        self.homes.insert((driver.clone(), id.clone()), home);
    }

    /// Whether these changes are about where this lives.
    pub fn is_changing(&self, driver: &DriverName, id: &Id) -> bool {
        self.homes.contains_key(&(driver.clone(), id.clone()))
    }

    /// Notes that a call changed something that has no home: what a list says of it that was read before is old. That
    /// is known until csi-cloud ends, as the list is.
    pub fn set_stale(&mut self, driver: &DriverName, id: &Id) {
        self.without.insert((driver.clone(), id.clone()));
    }

    /// Whether these changes note that.
    pub fn is_stale(&self, driver: &DriverName, id: &Id) -> bool {
        self.without.contains(&(driver.clone(), id.clone()))
    }

    /// To which node a create was sent.
    pub fn intent(&self, driver: &DriverName, name: &Id) -> Option<&Intent> {
        over(&self.intents, &(driver.clone(), name.clone()), || {
            self.state.driver(driver)?.intent(name)
        })
    }

    /// Sets to which node a create was sent, or forgets it.
    pub fn set_intent(&mut self, driver: &DriverName, name: &Id, intent: Option<Intent>) {
        let before = self.intent(driver, name).and_then(Intent::counted);
        let after = intent.as_ref().and_then(Intent::counted);
        self.count(driver, before.cloned(), after.cloned());
        self.intents.insert((driver.clone(), name.clone()), intent);
    }

    /// A driver at a node.
    pub fn at(&self, driver: &DriverName, node: &NodeName) -> Option<&NodeDriver> {
        over(&self.at, &(driver.clone(), node.clone()), || self.state.driver(driver)?.at(node))
    }

    /// Sets a driver at a node, or forgets it.
    pub fn set_at(&mut self, driver: &DriverName, node: &NodeName, at: Option<NodeDriver>) {
        self.at.insert((driver.clone(), node.clone()), at);
    }

    /// A node.
    pub fn node(&self, node: &NodeName) -> Option<&Node> {
        over(&self.nodes, node, || self.state.node(node))
    }

    /// Sets a node, or forgets it.
    pub fn set_node(&mut self, name: &NodeName, node: Option<Node>) {
        self.nodes.insert(name.clone(), node);
    }

    /// The node that carries out the calls of a shared driver.
    pub fn elected(&self, driver: &DriverName) -> Option<&NodeName> {
        over(&self.elected, driver, || self.state.driver(driver)?.elected())
    }

    /// Sets the node that carries out the calls of a shared driver.
    pub fn elect(&mut self, driver: &DriverName, node: Option<NodeName>) {
        self.elected.insert(driver.clone(), node);
    }

    /// Whose a volume is.
    pub fn lease(&self, driver: &DriverName, id: &Id) -> Option<&LeaseRecord> {
        over(&self.leases, &(driver.clone(), id.clone()), || self.state.driver(driver)?.lease(id))
    }

    /// Sets whose a volume is, or forgets it.
    pub fn set_lease(&mut self, driver: &DriverName, id: &Id, own: Option<LeaseRecord>) {
        self.leases.insert((driver.clone(), id.clone()), own);
    }

    /// The epoch that was given last.
    pub fn epoch(&self) -> u64 {
        self.epoch.unwrap_or_else(|| self.state.epoch())
    }

    /// Notes that an epoch was given. It only grows.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = Some(epoch.max(self.epoch()));
    }

    /// Volumes at a node, with those on their way to be made.
    pub fn load(&self, driver: &DriverName, node: &NodeName) -> u64 {
        let durable = self.state.driver(driver).map_or(0, |driver| driver.load(node));
        durable.saturating_add_signed(
            self.load.get(&(driver.clone(), node.clone())).copied().unwrap_or(0),
        )
    }

    fn count(&mut self, driver: &DriverName, before: Option<NodeName>, after: Option<NodeName>) {
        if before != after {
            for (node, more) in
                before.map(|node| (node, -1)).into_iter().chain(after.map(|node| (node, 1)))
            {
                *self.load.entry((driver.clone(), node)).or_default() += more;
            }
        }
    }

    /// All changes, each key once, and what else was changed that has no home.
    pub(super) fn changes(self) -> (Vec<Change>, HashSet<(DriverName, Id)>) {
        let homes =
            self.homes.into_iter().map(|((driver, id), home)| Change::Home(driver, id, home));
        let intents = self
            .intents
            .into_iter()
            .map(|((driver, id), intent)| Change::Intent(driver, id, intent));
        let at =
            self.at.into_iter().map(|((driver, node), at)| Change::NodeDriver(driver, node, at));
        let nodes = self.nodes.into_iter().map(|(name, node)| Change::Node(name, node));
        let elected = self.elected.into_iter().map(|(driver, node)| Change::Elected(driver, node));
        let leases =
            self.leases.into_iter().map(|((driver, id), own)| Change::Lease(driver, id, own));
        let epoch = self.epoch.map(Change::Epoch);
        let changes =
            homes.chain(intents).chain(at).chain(nodes).chain(elected).chain(leases).chain(epoch);
        (changes.collect(), self.without)
    }
}

fn over<'a, K: Eq + Hash, V>(
    changes: &'a Over<K, V>,
    key: &K,
    before: impl FnOnce() -> Option<&'a V>,
) -> Option<&'a V> {
    changes.get(key).map_or_else(before, Option::as_ref)
}
