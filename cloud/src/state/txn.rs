//! A transaction: changes that are not durable yet, over the durable state.

use std::collections::BTreeMap;
use std::hash::Hash;

use ahash::{HashMap, HashSet};
use proto::control::leader::LeaderEpoch;
use proto::csi::Id;
use proto::names::certificate::Subject;
use proto::names::{DriverName, NodeName};
use uuid::Uuid;

use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::quotas::{OverQuota, Quotas};
use crate::state::record::{
    Change, Elected, EndedHome, Home, Intent, LeaseRecord, Node, NodeDriver, Profile,
};
use crate::state::starts::StartRecord;
use crate::state::trust::{Revocation, Secrets, Token, TokenId, TrustChange, TrustChanges};
use crate::state::usage::{Share, Usage};

/// Changed values by key; none is a removal.
type Over<K, V> = HashMap<K, Option<V>>;

/// Changed values by driver and key. A driver's own map is found without a copy of the key.
struct OfDrivers<K, V>(BTreeMap<DriverName, Over<K, V>>);

/// A change in the making. It sees all changes before it, including those of the same commit.
pub struct Txn<'a> {
    state: &'a State,
    homes: OfDrivers<Id, Home>,
    ended: OfDrivers<Id, EndedHome>,
    intents: OfDrivers<Id, Intent>,
    at: OfDrivers<NodeName, NodeDriver>,
    nodes: Over<NodeName, Node>,
    elected: Over<DriverName, Elected>,
    profiles: Over<DriverName, Profile>,
    leases: OfDrivers<Id, LeaseRecord>,
    epoch: Option<u64>,
    leader_epoch: Option<LeaderEpoch>,
    starts: Over<Uuid, StartRecord>,
    /// See [`Txn::count_create`].
    counts_create: bool,
    trust: TrustChanges,
    /// Changed things without a home.
    without: HashSet<(DriverName, Id)>,
    /// See [`Txn::confirm`].
    confirms: bool,
    /// The load that these changes add to a node or remove from it.
    load: BTreeMap<DriverName, HashMap<NodeName, i64>>,
    /// The effect of these changes on each node's usage.
    usage: HashMap<NodeName, Usage>,
}

impl<'a> Txn<'a> {
    pub(super) fn new(state: &'a State) -> Self {
        Self {
            state,
            homes: Default::default(),
            ended: Default::default(),
            intents: Default::default(),
            at: Default::default(),
            nodes: Default::default(),
            elected: Default::default(),
            profiles: Default::default(),
            leases: Default::default(),
            epoch: None,
            leader_epoch: None,
            starts: Default::default(),
            counts_create: false,
            trust: TrustChanges::default(),
            without: Default::default(),
            confirms: false,
            load: Default::default(),
            usage: Default::default(),
        }
    }

    /// The durable state, without these changes.
    pub fn state(&self) -> &'a State {
        self.state
    }

    /// The home of an id.
    pub fn home(&self, driver: &DriverName, id: &Id) -> Option<&Home> {
        self.homes.over(driver, id, || self.state.driver(driver)?.home(id))
    }

    /// Sets or removes the home of an id.
    pub fn set_home(&mut self, driver: &DriverName, id: &Id, home: Option<Home>) {
        let before = self.home(driver, id).and_then(|home| home.counted(id));
        let after = home.as_ref().and_then(|home| home.counted(id));
        self.count(driver, before.cloned(), after.cloned());
        let share = |home: &Home| (home.node.clone(), Usage::of_home(driver, id, home));
        self.keep(self.home(driver, id).map(share), home.as_ref().map(share));
        if home.as_ref().is_some_and(Home::is_confirmed) && self.ended_home(driver, id).is_some() {
            self.ended.set(driver, id.clone(), None);
        }
        self.homes.set(driver, id.clone(), home);
    }

    /// The last home of an id that was deleted.
    pub fn ended_home(&self, driver: &DriverName, id: &Id) -> Option<&EndedHome> {
        self.ended.over(driver, id, || self.state.driver(driver)?.ended().get(id))
    }

    /// Keeps the last home of an id that is deleted, until its next one is confirmed. Drops others
    /// that are too old or too many.
    pub fn end_home(&mut self, driver: &DriverName, id: &Id, home: EndedHome) {
        let mut dropped = Vec::new();
        if let Some(of) = self.state.driver(driver) {
            let changing = self.ended.0.get(driver);
            let more = changing.map_or(0, HashMap::len);
            let surplus = of.ended().surplus(more, home.ended);
            let unchanged =
                surplus.filter(|id| changing.is_none_or(|changing| !changing.contains_key(*id)));
            dropped.extend(unchanged.cloned());
        }
        for old in &dropped {
            self.ended.set(driver, old.clone(), None);
        }
        self.ended.set(driver, id.clone(), Some(home));
    }

    /// Forgets the last home of an id that was deleted.
    pub fn forget_ended(&mut self, driver: &DriverName, id: &Id) {
        self.ended.set(driver, id.clone(), None);
    }

    /// True if these changes set the home of this id.
    pub fn is_changing(&self, driver: &DriverName, id: &Id) -> bool {
        self.homes.get(driver, id).is_some()
    }

    /// Notes that a call changed something without a home: lists from before are stale about it.
    /// The note is in memory, as the lists are.
    pub fn set_stale(&mut self, driver: &DriverName, id: &Id) {
        self.without.insert((driver.clone(), id.clone()));
    }

    /// True if these changes include such a note.
    pub fn is_stale(&self, driver: &DriverName, id: &Id) -> bool {
        self.without.contains(&(driver.clone(), id.clone()))
    }

    /// Has the store prove that this csi-cloud leads, also without a change: what was read counts
    /// as the answer.
    pub fn confirm(&mut self) {
        self.confirms = true;
    }

    /// True if the answer needs that proof.
    pub(super) fn confirms(&self) -> bool {
        self.confirms
    }

    /// The intent of a name.
    pub fn intent(&self, driver: &DriverName, name: &Id) -> Option<&Intent> {
        self.intents.over(driver, name, || self.state.driver(driver)?.intent(name))
    }

    /// Sets or removes the intent of a name.
    pub fn set_intent(&mut self, driver: &DriverName, name: &Id, intent: Option<Intent>) {
        let before = self.intent(driver, name).and_then(Intent::counted);
        let after = intent.as_ref().and_then(Intent::counted);
        self.count(driver, before.cloned(), after.cloned());
        let share = |intent: &Intent| (intent.node.clone(), Usage::of_intent(driver, name, intent));
        self.keep(self.intent(driver, name).map(share), intent.as_ref().map(share));
        self.intents.set(driver, name.clone(), intent);
    }

    /// The driver at a node.
    pub fn at(&self, driver: &DriverName, node: &NodeName) -> Option<&NodeDriver> {
        self.at.over(driver, node, || self.state.driver(driver)?.at(node))
    }

    /// Sets or removes the driver at a node.
    pub fn set_at(&mut self, driver: &DriverName, node: &NodeName, at: Option<NodeDriver>) {
        let share = |at: &NodeDriver| (node.clone(), Usage::of_driver(driver, at));
        self.keep(self.at(driver, node).map(share), at.as_ref().map(share));
        self.at.set(driver, node.clone(), at);
    }

    /// A node.
    pub fn node(&self, node: &NodeName) -> Option<&Node> {
        over(&self.nodes, node, || self.state.node(node))
    }

    /// True if an operator removed the node.
    pub fn is_removed(&self, node: &NodeName) -> bool {
        self.node(node).is_some_and(|node| node.removed.is_some())
    }

    /// True if the node counts for the driver: it is neither removed nor excluded.
    pub fn counts(&self, driver: &DriverName, node: &NodeName) -> bool {
        let is_member = |of: &DriverState| of.is_member(node);
        !self.is_removed(node) && self.state.driver(driver).is_none_or(is_member)
    }

    /// Sets or removes a node.
    pub fn set_node(&mut self, name: &NodeName, node: Option<Node>) {
        self.nodes.insert(name.clone(), node);
    }

    /// The elected node of a shared driver.
    pub fn elected(&self, driver: &DriverName) -> Option<&Elected> {
        over(&self.elected, driver, || self.state.driver(driver)?.election())
    }

    /// Elects a node of a shared driver; `now` is in ms since 1970.
    pub fn elect(&mut self, driver: &DriverName, node: NodeName, now: u64) {
        let elected = match self.elected(driver) {
            Some(before) => before.followed_by(node, now),
            None => Elected::first(node),
        };
        self.set_elected(driver, Some(elected));
    }

    /// Sets or removes the elected node of a shared driver.
    pub fn set_elected(&mut self, driver: &DriverName, elected: Option<Elected>) {
        self.elected.insert(driver.clone(), elected);
    }

    /// The profile of a driver.
    pub fn profile(&self, driver: &DriverName) -> Option<&Profile> {
        over(&self.profiles, driver, || self.state.driver(driver)?.profile())
    }

    /// Sets or removes the profile of a driver.
    pub fn set_profile(&mut self, driver: &DriverName, profile: Option<Profile>) {
        self.profiles.insert(driver.clone(), profile);
    }

    /// The lease record of a volume.
    pub fn lease(&self, driver: &DriverName, id: &Id) -> Option<&LeaseRecord> {
        self.leases.over(driver, id, || self.state.driver(driver)?.lease(id))
    }

    /// Sets or removes the lease record of a volume.
    pub fn set_lease(&mut self, driver: &DriverName, id: &Id, lease: Option<LeaseRecord>) {
        self.leases.set(driver, id.clone(), lease);
    }

    /// The last lease epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch.unwrap_or_else(|| self.state.epoch())
    }

    /// Makes this the epoch of the last csi-cloud that led.
    ///
    /// # Errors
    /// The last epoch, if that is not lower.
    pub fn raise_leader_epoch(&mut self, to: LeaderEpoch) -> Result<(), LeaderEpoch> {
        match self.state.leader_epoch() {
            Some(last) if last >= to => Err(last),
            Some(_) | None => {
                self.leader_epoch = Some(to);
                Ok(())
            }
        }
    }

    /// Sets the last lease epoch. It only grows.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = Some(epoch.max(self.epoch()));
    }

    /// A start of a csi-cloud.
    pub(super) fn start(&self, start: &Uuid) -> Option<&StartRecord> {
        over(&self.starts, start, || self.state.starts().get(start))
    }

    /// Sets or removes a start of a csi-cloud.
    pub(crate) fn set_start(&mut self, start: Uuid, record: Option<StartRecord>) {
        self.starts.insert(start, record);
    }

    /// Counts a create that is sent once this is durable. All creates of one commit have one
    /// number.
    pub fn count_create(&mut self) {
        self.counts_create = true;
    }

    /// The secret keys; none before a csi-cloud was started with this store.
    pub fn secrets(&self) -> Option<&Secrets> {
        self.trust.secrets(self.state.trust())
    }

    /// A token.
    pub fn token(&self, id: &TokenId) -> Option<&Token> {
        self.trust.token(self.state.trust(), id)
    }

    /// The revocation of a name.
    pub fn revocation(&self, subject: &Subject) -> Option<&Revocation> {
        self.trust.revocation(self.state.trust(), subject)
    }

    /// Changes a trust record.
    pub fn set_trust(&mut self, change: TrustChange) {
        self.trust.set(change);
    }

    /// Volumes and running creates at a node.
    pub fn load(&self, driver: &DriverName, node: &NodeName) -> u64 {
        let durable = self.state.driver(driver).map_or(0, |driver| driver.load(node));
        let more = self.load.get(driver).and_then(|load| load.get(node));
        durable.saturating_add_signed(more.copied().unwrap_or_default())
    }

    /// Sets the home of something that a node says it has, unless that is more than the node may
    /// have.
    ///
    /// # Errors
    /// The node is over a quota with it; nothing is set.
    pub fn set_home_within(
        &mut self,
        quotas: &Quotas,
        node: &NodeName,
        (driver, id): (&DriverName, &Id),
        home: Home,
    ) -> Result<(), OverQuota> {
        let share = |home: &Home| Usage::of_home(driver, id, home);
        let usage = self.usage(node);
        let before = self.home(driver, id).map(share).unwrap_or_default();
        let after = usage + share(&home) - before;
        quotas.check_growth(self.usage_of_all(), usage, after)?;
        self.set_home(driver, id, Some(home));
        Ok(())
    }

    /// The usage of a node.
    pub fn usage(&self, node: &NodeName) -> Usage {
        let durable = self.state.usage(node);
        self.usage.get(node).map_or(durable, |more| durable + *more)
    }

    /// The usage of all nodes together.
    pub fn usage_of_all(&self) -> Usage {
        self.usage.values().fold(self.state.usage_of_all(), |all, more| all + *more)
    }

    /// Replaces the share of a record.
    fn keep(&mut self, before: Option<Share>, after: Option<Share>) {
        if let Some((node, share)) = before {
            let usage = self.usage.entry(node).or_default();
            *usage = *usage - share;
        }
        if let Some((node, share)) = after {
            let usage = self.usage.entry(node).or_default();
            *usage = *usage + share;
        }
    }

    fn count(&mut self, driver: &DriverName, before: Option<NodeName>, after: Option<NodeName>) {
        if before == after {
            return;
        }
        let load = self.load.entry(driver.clone()).or_default();
        let moved = before.map(|node| (node, -1)).into_iter().chain(after.map(|node| (node, 1)));
        for (node, more) in moved {
            *load.entry(node).or_default() += more;
        }
    }

    /// The number of changes.
    pub(super) fn len(&self) -> usize {
        let records = self.homes.len() + self.intents.len() + self.at.len() + self.nodes.len();
        let records = records + self.ended.len();
        let others = self.elected.len() + self.profiles.len() + self.leases.len();
        records
            + others
            + self.epoch.iter().len()
            + self.leader_epoch.iter().len()
            + self.starts.len()
            + usize::from(self.counts_create)
            + self.trust.len()
    }

    /// All changes, each key once, and the changed things without a home.
    pub(super) fn changes(mut self) -> (Vec<Change>, HashSet<(DriverName, Id)>) {
        if self.counts_create {
            let (own, counted, forgotten) = self.state.starts().with_one_more();
            self.starts.insert(own, Some(counted));
            self.starts.extend(forgotten.map(|start| (start, None)));
        }
        let starts = self.starts.into_iter();
        let starts = starts.map(|(start, record)| Change::Start(start, record));
        let homes = self.homes.into_changes(Change::Home);
        let ended = self.ended.into_changes(Change::EndedHome);
        let intents = self.intents.into_changes(Change::Intent);
        let at = self.at.into_changes(Change::NodeDriver);
        let leases = self.leases.into_changes(Change::Lease);
        let nodes = self.nodes.into_iter().map(|(name, node)| Change::Node(name, node));
        let elected = self.elected.into_iter();
        let elected = elected.map(|(driver, elected)| Change::Elected(driver, elected));
        let profiles =
            self.profiles.into_iter().map(|(driver, profile)| Change::Profile(driver, profile));
        let epoch = self.epoch.map(Change::Epoch);
        let leader_epoch = self.leader_epoch.map(Change::LeaderEpoch);
        let trust = self.trust.into_changes().map(Change::Trust);
        let of_drivers = homes
            .chain(ended)
            .chain(intents)
            .chain(at)
            .chain(elected)
            .chain(profiles)
            .chain(leases);
        let epochs = epoch.into_iter().chain(leader_epoch);
        let others = nodes.chain(epochs).chain(starts).chain(trust);
        (of_drivers.chain(others).collect(), self.without)
    }
}

impl<K: Eq + Hash, V> OfDrivers<K, V> {
    fn get(&self, driver: &DriverName, key: &K) -> Option<&Option<V>> {
        self.0.get(driver)?.get(key)
    }

    fn over<'a>(
        &'a self,
        driver: &DriverName,
        key: &K,
        before: impl FnOnce() -> Option<&'a V>,
    ) -> Option<&'a V> {
        self.get(driver, key).map_or_else(before, Option::as_ref)
    }

    fn set(&mut self, driver: &DriverName, key: K, value: Option<V>) {
        self.0.entry(driver.clone()).or_default().insert(key, value);
    }

    fn len(&self) -> usize {
        self.0.values().map(HashMap::len).sum()
    }

    fn into_changes(
        self,
        change: fn(DriverName, K, Option<V>) -> Change,
    ) -> impl Iterator<Item = Change> {
        self.0.into_iter().flat_map(move |(driver, of)| {
            of.into_iter().map(move |(key, value)| change(driver.clone(), key, value))
        })
    }
}

impl<K, V> Default for OfDrivers<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

fn over<'a, K: Eq + Hash, V>(
    changes: &'a Over<K, V>,
    key: &K,
    before: impl FnOnce() -> Option<&'a V>,
) -> Option<&'a V> {
    changes.get(key).map_or_else(before, Option::as_ref)
}
