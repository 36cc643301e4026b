//! The journal of creates.
//!
//! A create is recorded before it is sent, and its outcome before it is answered. So no crash
//! creates two volumes of one name, or loses the node of a volume.

use ahash::HashMap;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use proto::control::machine::MachineId;
use proto::csi::status::is_nothing_done;
use proto::csi::{Id, Made, Segments};
use proto::host::chain;
use proto::http2::call_id::CallId;
use proto::names::{DriverName, NodeName};
use tonic::Status;
use tracing::field::display;
use tracing::{info, warn};

use crate::error::Error;
use crate::state::clock::now;
use crate::state::quotas::{OverQuota, Quotas};
use crate::state::record::{Claim, Home, Intent};
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

/// The facts recorded about a create.
#[derive(Clone, Default)]
pub struct CreateFacts {
    /// The id of the call, for the log; none in tests.
    pub call: Option<CallId>,
    /// The claim in Kubernetes.
    pub claim: Option<Box<Claim>>,
    /// The parameters for csi-cloud.
    pub parameters: Option<Box<std::collections::BTreeMap<String, String>>>,
    /// The decision whether the volume is direct, if its class left that open.
    pub direct: Option<bool>,
    /// The last moment at which the call may begin at its node, in ms since 1970.
    pub until: u64,
    /// The call requests topology for a volume.
    pub requests_topology: bool,
}

/// The node of a create.
pub enum Target {
    /// The one of these with the fewest volumes.
    OneOf(Vec<NodeName>),
    /// The node of an earlier attempt.
    SentTo(NodeName),
}

impl Target {
    pub(crate) fn nodes(&self) -> &[NodeName] {
        match self {
            Self::OneOf(nodes) => nodes,
            Self::SentTo(node) => std::slice::from_ref(node),
        }
    }
}

/// An attempt of a create that may be sent to its node.
#[must_use]
pub struct Attempt {
    /// The node.
    pub node: NodeName,
    /// The time of its intent.
    since: u64,
    /// The attempts of its intent, with this one; none if it is not counted.
    attempts: Option<u32>,
    /// True if another node may carry out an earlier attempt yet.
    is_elsewhere: bool,
    /// The topology to ask the driver for instead of the requested one.
    pub narrowed: Option<Box<Segments>>,
    /// The machine that the node is. `None` if it told none.
    pub machine: Option<MachineId>,
}

impl Attempt {
    /// The next attempt of a create whose outcome is unknown.
    fn of(intent: &Intent, is_shared: bool) -> Self {
        Self {
            node: intent.node.clone(),
            since: intent.since,
            attempts: intent.attempts,
            is_elsewhere: is_shared && intent.attempts.is_none(),
            narrowed: intent.narrowed.clone(),
            machine: intent.machine.as_deref().copied(),
        }
    }
}

/// The journal of one driver's creates.
pub struct CreateJournal {
    driver: DriverName,
    store: Store,
    running: Mutex<HashMap<Id, CallsOfName>>,
}

/// The running calls of a name.
#[derive(Default)]
struct CallsOfName {
    calls: usize,
    /// The latest attempt of those that were refused while others ran.
    refused: Option<Counted>,
}

/// An attempt, by the time of its intent and its number.
type Counted = (u64, u32);

/// A running create.
pub struct PendingCreate<'a> {
    journal: &'a CreateJournal,
    name: &'a Id,
}

impl CreateJournal {
    /// The journal of a driver's creates in this store.
    pub fn new(driver: DriverName, store: Store) -> Self {
        Self { driver, store, running: Mutex::default() }
    }

    /// Begins a create with this name.
    pub fn begin<'a>(&'a self, name: &'a Id) -> PendingCreate<'a> {
        self.running().entry(name.clone()).or_default().calls += 1;
        PendingCreate { journal: self, name }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Id, CallsOfName>> {
        self.running.lock()
    }
}

impl Drop for PendingCreate<'_> {
    fn drop(&mut self) {
        let mut running = self.journal.running();
        let Some(of) = running.get_mut(self.name) else { return };
        of.calls -= 1;
        if of.calls == 0 {
            running.remove(self.name);
        }
    }
}

/// The first node that is full, and its quota.
type Full = Option<(NodeName, OverQuota)>;

/// The reason why a create is not sent.
enum NotSent {
    /// All nodes are full.
    Full(Full),
    /// An attempt at this node was made by another decision.
    DecidedOtherwise(NodeName),
    /// An attempt was sent to this machine, and the node is another one now.
    Moved(NodeName, MachineId),
}

impl PendingCreate<'_> {
    /// Records that the create is sent to its target, and counts the attempt. A name that was sent
    /// before, and is not free again, goes to its node.
    ///
    /// A node that is full gets nothing new. A shared driver's volumes are not counted: they belong
    /// to no node.
    ///
    /// A driver with topology of its own is asked for that of its node, as external-provisioner
    /// asks at a node, whatever other nodes the call requests too: a driver may take the first of
    /// them for the place of the volume.
    ///
    /// No name is free in a store that may lack creates, whatever its intents say. Only a shared
    /// driver knows the name at each node.
    ///
    /// # Errors
    /// The record is not durable, all nodes are full, or the store may lack creates, so the call
    /// must not be sent.
    pub async fn intend(
        &self,
        target: Target,
        facts: &CreateFacts,
        is_shared: bool,
    ) -> Result<Attempt, Error> {
        let driver = self.journal.driver.clone();
        if !is_shared && let Some(lack) = self.journal.store.may_lack_creates() {
            return Err(Error::CreatesHeld { driver, why: lack.to_string() });
        }
        let name = self.name.clone();
        let claim = facts.claim.clone();
        let direct = facts.direct;
        let until = facts.until;
        let narrows = facts.requests_topology && !is_shared;
        let quotas = *self.journal.store.quotas();
        let intended = self.journal.store.write(move |txn| {
            let before = txn.intent(&driver, &name).cloned();
            check_before(txn, before.as_ref(), direct, is_shared)?;
            let nodes = target.nodes();
            let narrowed = |node: &_| narrows.then(|| own_topology(txn, &driver, node)).flatten();
            let place = || fewest(txn, &driver, nodes, &quotas, is_shared).map_err(NotSent::Full);
            let node = match (&before, &target) {
                // Any node can repeat the create of a shared driver's volume.
                (Some(Intent { made: Some(_), .. }), Target::SentTo(node)) => node.clone(),
                // Any node can create a shared driver's volumes.
                (Some(before), _) if is_shared && before.until <= now() => place()?,
                (Some(before), _) => before.node.clone(),
                (None, _) => place()?,
            };
            let machine = txn.node(&node).and_then(|node| node.machine);
            let intent = match before {
                // Its outcome is known, so it is not counted any more.
                Some(Intent { made: Some(_), since, .. }) => {
                    let narrowed = narrowed(&node);
                    let is_elsewhere = false;
                    let attempts = None;
                    return Ok(Attempt { node, since, attempts, is_elsewhere, narrowed, machine });
                }
                Some(before) => Intent {
                    node: node.clone(),
                    until: until.max(before.until),
                    claim,
                    attempts: with_one_more(&before, &node),
                    machine: machine.map(Box::new).or(before.machine),
                    ..before
                },
                None => Intent {
                    node: node.clone(),
                    since: now(),
                    until,
                    made: None,
                    claim,
                    attempts: Some(1),
                    direct,
                    narrowed: narrowed(&node),
                    machine: machine.map(Box::new),
                },
            };
            let attempt = Attempt::of(&intent, is_shared);
            txn.set_intent(&driver, &name, Some(intent));
            txn.count_create();
            Ok::<_, NotSent>(attempt)
        });
        let attempt =
            intended.await.map_err(|source| Error::NotDurable { source: source.into() })?;
        attempt.map_err(|why| self.not_sent(why))
    }

    fn not_sent(&self, why: NotSent) -> Error {
        match why {
            NotSent::Full(Some((node, over))) => {
                self.journal.store.refusals().count(over.quota);
                Error::OverQuota { node, why: over.to_string() }
            }
            // `nodes` is never empty: the plan has at least one node.
            NotSent::Full(None) => {
                Error::NotDurable { source: "no node was left to choose from".into() }
            }
            NotSent::DecidedOtherwise(node) => {
                decided_otherwise(&self.journal.driver, self.name, &node)
            }
            NotSent::Moved(node, machine) => self.stays(format!(
                "it may have been sent to a machine that was node {node} before an operator \
                 accepted another csi-edge ({machine}); look whether that one has made it, and say \
                 so with `csi-cloud intent resolve`"
            )),
        }
    }

    /// Takes back an attempt of which certainly no byte went to the driver. After the last one the
    /// name is free, and the next attempt may go to another node.
    ///
    /// An attempt of unknown outcome is never taken back. So a crash at any moment leaves the count
    /// too high, and never too low.
    pub async fn not_dispatched(&self, attempt: Attempt) {
        if attempt.attempts.is_none() {
            return;
        }
        let driver = self.journal.driver.clone();
        let name = self.name.clone();
        let refused = self.refused_before();
        let freed = self.journal.store.write(move |txn| {
            let Some(intent) = txn.intent(&driver, &name).cloned() else { return };
            // The name may have been deleted and sent again meanwhile.
            if intent.since != attempt.since || intent.made.is_some() {
                return;
            }
            // The intent is removed, and not kept with a zero: an older csi-cloud would count none
            // of its own attempts.
            let left = intent.attempts.and_then(|attempts| attempts.checked_sub(1));
            match left {
                Some(0) => txn.set_intent(&driver, &name, None),
                // Only the one that was refused is left: it was the only other one.
                Some(1) if refused == Some((intent.since, 1)) && attempt.attempts == Some(2) => {
                    txn.set_intent(&driver, &name, None);
                }
                Some(_) => {
                    txn.set_intent(&driver, &name, Some(Intent { attempts: left, ..intent }));
                }
                None => {}
            }
        });
        if let Err(error) = freed.await {
            // The attempt stays counted, so the name stays at its node.
            let driver = &self.journal.driver;
            warn!(%driver, error = chain(&error), "the name of a create is not freed");
        }
    }

    /// Records the home of the created thing; only then may the create be answered. `is_shared` is
    /// true for a shared driver: an earlier attempt may have used another node.
    ///
    /// # Errors
    /// The record is not durable, or another node or name has it: the answer must not be given.
    pub async fn made(
        &self,
        node: &NodeName,
        made: Vec<Made>,
        facts: CreateFacts,
        is_shared: bool,
    ) -> Result<(), Error> {
        let driver = self.journal.driver.clone();
        let name = self.name.clone();
        let at = node.clone();
        let recorded = self.journal.store.write(move |txn| {
            let first = made.first().map(|made| made.id.clone());
            if let Some(id) = first
                && let Some(other) = other_name(txn, &driver, &id, &name, &at, is_shared)
            {
                return Some(Taken::ByName { id, other });
            }
            // The first is the requested one; a group's snapshots follow it.
            let mut requested = Some((name, facts));
            let mut claimed = None;
            for made in made {
                let id = made.id.clone();
                if is_shared {
                    move_home(txn, &driver, &id, &at);
                }
                let home = record(txn, &driver, &at, made, requested.take());
                if home != at && claimed.is_none() {
                    claimed = Some(Taken::AtNode { id, home });
                }
            }
            claimed
        });
        let taken = recorded.await.map_err(|source| Error::NotDurable { source: source.into() })?;
        let node = node.clone();
        match taken {
            None => Ok(()),
            Some(Taken::AtNode { id, home }) => {
                Err(Error::Claimed { id: id.text().into(), home, node })
            }
            Some(Taken::ByName { id, other }) => Err(Error::NameTaken {
                driver: self.journal.driver.clone(),
                node,
                id: id.text().into(),
                name: self.name.text().into(),
                other: other.into(),
            }),
        }
    }

    /// Handles a driver's refusal. If nothing was created, the intent is removed and the next
    /// attempt may go to another node.
    ///
    /// # Errors
    /// The intent stays, so the refusal must not be given: after a final code nobody may send the
    /// name again. An attempt of unknown outcome was at another node, of which the one that refuses
    /// says nothing; another attempt has begun; or the removal is not durable.
    pub async fn refused(&self, status: &Status, attempt: Attempt) -> Result<(), Error> {
        if !is_nothing_done(status.code()) {
            return Ok(());
        }
        if attempt.is_elsewhere {
            return Err(self.stays(format!(
                "node {} refused it ({:?}: {}), and another node may carry out an earlier attempt \
                 yet; if it did not, `csi-cloud intent resolve` ends that one",
                attempt.node,
                status.code(),
                status.message()
            )));
        }
        let Some(number) = attempt.attempts else { return Ok(()) };
        let Some(last) = self.last_refused((attempt.since, number)) else { return Ok(()) };
        let freed = self.free(last).await;
        if !freed.map_err(|source| Error::NotDurable { source: source.into() })? {
            return Err(self.stays("it was refused beside other attempts; send it again".into()));
        }
        // The next intent of the name may be of the same millisecond.
        if let Some(of) = self.journal.running().get_mut(self.name) {
            of.refused = None;
        }
        Ok(())
    }

    fn stays(&self, why: String) -> Error {
        let name = self.name.text();
        let why = format!("the outcome of {name:?} is not known: {why}");
        Error::NoRoute { driver: self.journal.driver.clone(), why }
    }

    /// Notes a refusal. Returns the latest one if no other call of the name runs: calls that ran
    /// together may have been refused by one run at the edge, in any order.
    fn last_refused(&self, counted: Counted) -> Option<Counted> {
        let mut running = self.journal.running();
        let of = running.get_mut(self.name)?;
        of.refused = of.refused.max(Some(counted));
        of.refused.filter(|_| of.calls == 1)
    }

    /// The latest refusal, if no other call of the name runs.
    fn refused_before(&self) -> Option<Counted> {
        let running = self.journal.running();
        running.get(self.name).filter(|of| of.calls == 1)?.refused
    }

    /// Removes the intent of an attempt, unless another attempt has begun meanwhile. Returns
    /// whether it is gone.
    async fn free(&self, (since, number): Counted) -> Result<bool, StoreError> {
        let driver = self.journal.driver.clone();
        let name = self.name.clone();
        let write = self.journal.store.write(move |txn| {
            let is_open = |intent: &&Intent| intent.made.is_none() && intent.since == since;
            match txn.intent(&driver, &name).filter(is_open) {
                None => true,
                Some(intent) if intent.attempts == Some(number) => {
                    txn.set_intent(&driver, &name, None);
                    true
                }
                Some(_) => false,
            }
        });
        write.await
    }
}

/// An attempt at this node was made by another decision whether the volume is direct.
pub(crate) fn decided_otherwise(driver: &DriverName, name: &Id, node: &NodeName) -> Error {
    let why = format!(
        "an attempt at node {node} was made by another decision, or by a class without \
         edge-csi.io/direct, and its volume may exist"
    );
    Error::DirectNotYet { driver: driver.clone(), name: name.text().into(), why }
}

/// Checks that an earlier attempt was made by the same decision, and by the machine that its node
/// is now. Another machine would carry it out a second time. A shared driver finds what it made.
fn check_before(
    txn: &Txn<'_>,
    before: Option<&Intent>,
    direct: Option<bool>,
    is_shared: bool,
) -> Result<(), NotSent> {
    let Some(before) = before else { return Ok(()) };
    if before.direct != direct {
        return Err(NotSent::DecidedOtherwise(before.node.clone()));
    }
    let sent_to = before.machine.as_deref().filter(|_| before.made.is_none() && !is_shared);
    let now = txn.node(&before.node).and_then(|node| node.machine);
    match sent_to.copied() {
        Some(sent_to) if now != Some(sent_to) => Err(NotSent::Moved(before.node.clone(), sent_to)),
        _ => Ok(()),
    }
}

/// The node with the fewest volumes among those that are not full.
fn fewest(
    txn: &Txn<'_>,
    driver: &DriverName,
    nodes: &[NodeName],
    quotas: &Quotas,
    is_shared: bool,
) -> Result<NodeName, Full> {
    let all = txn.usage_of_all();
    let checked = nodes.iter().map(|node| {
        let usage = txn.usage(node);
        match quotas.check_growth(all, usage, usage.plus_one()) {
            Err(over) if !is_shared => Err((node.clone(), over)),
            _ => Ok(node),
        }
    });
    let (free, full): (Vec<_>, Vec<_>) = checked.partition(Result::is_ok);
    let fewest = free.into_iter().flatten().min_by_key(|node| txn.load(driver, node)).cloned();
    fewest.ok_or_else(|| full.into_iter().find_map(Result::err))
}

/// The attempts with another one at this node. They count no more once the create leaves a node:
/// that one may carry it out yet, whatever the next one says.
fn with_one_more(before: &Intent, node: &NodeName) -> Option<u32> {
    let attempts = before.attempts.filter(|_| before.node == *node);
    attempts.and_then(|attempts| attempts.checked_add(1))
}

/// The topology of a driver's own at a node, if no other node has it too.
fn own_topology(txn: &Txn<'_>, driver: &DriverName, node: &NodeName) -> Option<Box<Segments>> {
    let of = txn.state().driver(driver)?;
    let own = of.at(node).filter(|at| at.has_own_topology())?.own_segments();
    let is_alone = of.located(&own).all(|at| at == node);
    is_alone.then(|| Box::new(own))
}

/// The present owner of an id in the answer to a create.
enum Taken {
    /// Another node, which keeps it.
    AtNode { id: Id, home: NodeName },
    /// Another name, which keeps it.
    ByName { id: Id, other: Box<str> },
}

/// The other name under which the same driver made this id, unless its node lists it no more.
fn other_name(
    txn: &Txn<'_>,
    driver: &DriverName,
    id: &Id,
    name: &Id,
    node: &NodeName,
    is_shared: bool,
) -> Option<Box<str>> {
    let home = txn.home(driver, id)?;
    let is_its_own = is_shared || home.node == *node;
    let other = home.name.as_deref().filter(|other| *other != name.text())?;
    (is_its_own && !home.absent).then(|| other.into())
}

/// Moves an existing home to this node.
fn move_home(txn: &mut Txn<'_>, driver: &DriverName, id: &Id, node: &NodeName) {
    if let Some(home) = txn.home(driver, id).filter(|home| home.node != *node) {
        let moved = Home { node: node.clone(), ..home.clone() };
        txn.set_home(driver, id, Some(moved));
    }
}

/// Records the thing that a node created, with its requested name; returns its home.
fn record(
    txn: &mut Txn<'_>,
    driver: &DriverName,
    node: &NodeName,
    made: Made,
    requested: Option<(Id, CreateFacts)>,
) -> NodeName {
    let Made { id, entry, source } = made;
    let is_new = txn.home(driver, &id).is_none();
    let mut home = home(txn.home(driver, &id).cloned(), node, entry, source);
    // The snapshots of a group have no name of their own, and are ours all the same.
    home.adopted |= requested.is_none() && home.node == *node;
    let mut call = None;
    if let Some((name, facts)) = requested {
        call = facts.call.map(display);
        if let Some(intent) = txn.intent(driver, &name).cloned() {
            if let Some(before) = intent.made.as_deref().filter(|before| *before != id.text()) {
                let now = id.text();
                warn!(
                    %driver, %node, name = name.text(), before, now,
                    "the driver made another one under a name that it had made before; \
                     both are kept"
                );
            }
            let made = Some(id.text().into());
            // A repetition may ask anew for what its node has then: the driver has carried it out.
            let intent = Intent { made, narrowed: None, machine: None, ..intent };
            txn.set_intent(driver, &name, Some(intent));
        }
        if home.node == *node {
            home.name = Some(name.text().into());
            home.claim = facts.claim;
            home.parameters = facts.parameters;
        }
    }
    if let Some(claim) = home.claim.as_deref().filter(|_| is_new) {
        let Claim { namespace, name, .. } = claim;
        let claim = format!("{namespace}/{name}");
        info!(call, %driver, %node, volume = id.text(), claim, "made");
    }
    let home_node = home.node.clone();
    txn.set_home(driver, &id, Some(home));
    home_node
}

/// The home of something that a node reports: the first node to report it keeps it.
fn home(before: Option<Home>, node: &NodeName, entry: Bytes, source: Option<Id>) -> Home {
    let mut home = before.unwrap_or_else(|| Home::at(node.clone(), now()));
    if home.node == *node {
        // Copied: a slice would keep the link's whole read buffer in memory.
        home.entry = Bytes::copy_from_slice(&entry);
        home.source = source.map(Box::new);
        home.absent = false;
    } else {
        home.add_conflict(node);
    }
    home
}

#[cfg(test)]
mod tests;
