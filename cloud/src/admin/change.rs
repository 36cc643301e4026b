//! What an operator changes: nodes that are gone for good, creates whose outcome nobody can know, homes that are
//! wrong or lost. Each is one durable change, and says what it did.

use futures_util::{StreamExt, stream};
use proto::csi::Id;
use proto::host::chain;
use proto::names::{DriverName, NodeName};
use tracing::info;

use crate::admin::Insight;
use crate::admin::shown::{
    AdmitNode, Done, ForgetVolume, GivenHome, RebuildHomes, RemoveNode, ResolveIntent, id,
};
use crate::state::clock::now;
use crate::state::ingest;
use crate::state::known::{OfDriver, State};
use crate::state::node_names::names;
use crate::state::record::{Home, Intent, Node};
use crate::state::store::backend::StoreError;
use crate::state::txn::Txn;

/// Homes that are learned at the same time, so that they share a commit.
const AT_ONCE: usize = 256;

/// Why nothing was changed.
#[derive(Debug)]
pub(super) struct Refused {
    /// HTTP's.
    pub(super) status: u16,
    /// For an operator.
    pub(super) text: String,
}

impl Refused {
    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self { status: 400, text: text.into() }
    }

    pub(super) fn unknown(text: impl Into<String>) -> Self {
        Self { status: 404, text: text.into() }
    }

    /// It would be wrong as things are.
    pub(super) fn conflict(text: impl Into<String>) -> Self {
        Self { status: 409, text: text.into() }
    }

    pub(super) fn failed(text: impl Into<String>) -> Self {
        Self { status: 500, text: text.into() }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::failed(chain(&error))
    }
}

pub(super) fn done(text: String) -> Done {
    info!(change = text, "changed by an operator");
    Done { done: true, text }
}

impl Insight {
    /// Takes a node for gone for good: its link ends, it is let in no more, and what lives there is lost.
    pub(super) async fn remove_node(&self, ask: RemoveNode) -> Result<Done, Refused> {
        let RemoveNode { node, yes } = ask;
        let known = self.store.read(|state| state.node(&node).cloned());
        let known = known.ok_or_else(|| unknown_node(&node))?;
        if known.removed.is_some() {
            return Ok(Done { done: true, text: format!("{node} was removed before") });
        }
        let homes = self.store.read(|state| homes_at(state, &node).len());
        let open = self.store.read(|state| intents_at(state, &node));
        let held = self.store.read(|state| crate::admin::owners::still_held(state, &node));
        if !yes {
            let text = format!(
                "{node} would be removed: its link ends and it is let in no more, {homes} volumes and snapshots are \
                 marked lost, and unpublishing them is OK from then on; {open} creates there stay open{held}. Give --yes \
                 to do it; `csi-cloud node admit {node}` undoes it"
            );
            return Ok(Done { done: false, text });
        }
        let at = node.clone();
        let written = self.store.write(move |txn| {
            let removed = Some(now());
            txn.set_node(&at, Some(Node { removed, ..known }));
            mark(txn, &at, true)
        });
        let lost = written.await?;
        self.links.end(&node);
        // What was made there while that was written; nothing comes after it, since its link is gone.
        let at = node.clone();
        let late = self.store.write(move |txn| mark(txn, &at, true)).await?;
        Ok(done(format!(
            "{node} is removed; {} volumes and snapshots are marked lost, {open} creates there stay open \
             (`csi-cloud intents`){held}",
            lost + late
        )))
    }

    /// Lets a node in again that was removed.
    pub(super) async fn admit_node(&self, ask: AdmitNode) -> Result<Done, Refused> {
        let AdmitNode { node } = ask;
        let known = self.store.read(|state| state.node(&node).cloned());
        let known = known.ok_or_else(|| unknown_node(&node))?;
        if known.removed.is_none() {
            return Ok(Done { done: true, text: format!("{node} is not removed") });
        }
        let at = node.clone();
        let written = self.store.write(move |txn| {
            txn.set_node(&at, Some(Node { removed: None, ..known }));
            mark(txn, &at, false)
        });
        let found = written.await?;
        Ok(done(format!("{node} is let in again; {found} volumes and snapshots are no longer lost")))
    }

    /// Takes an operator's word for what came of a create.
    pub(super) async fn resolve_intent(&self, ask: ResolveIntent) -> Result<Done, Refused> {
        let ResolveIntent { driver, method, name, made } = ask;
        let key = id(&method, &name).filter(|id| matches!(id, Id::Name(..)));
        let key = key.ok_or_else(|| Refused::bad(format!("{method} makes nothing that has a name")))?;
        let running = self.calls.running();
        if running.iter().any(|(_, call)| call.driver == driver && call.progress().is_about(key.text())) {
            return Err(Refused::conflict(format!(
                "a call for {name} is in flight and may still come to an end; see `csi-cloud calls`"
            )));
        }
        let written = self.store.write(move |txn| match made {
            None => not_made(txn, &driver, &key),
            Some(made) => made_it(txn, &driver, &key, made),
        });
        written.await?.map(done)
    }

    /// Forgets where something lives.
    pub(super) async fn forget_volume(&self, ask: ForgetVolume) -> Result<Done, Refused> {
        let ForgetVolume { driver, kind, id: name, force } = ask;
        let key = id(&kind, &name).filter(|id| !matches!(id, Id::Name(..)));
        let key =
            key.ok_or_else(|| Refused::bad(format!("{kind:?} is none of volume, snapshot and group")))?;
        let (node, gone) = self
            .store
            .read(|state| {
                let home = state.driver(&driver)?.home(&key)?;
                Some((home.node.clone(), home.lost || home.absent || state.is_removed(&home.node)))
            })
            .ok_or_else(|| Refused::unknown(format!("{driver} has no {kind} {name} that is known")))?;
        if !gone && !force {
            return Err(Refused::conflict(format!(
                "the {kind} {name} is neither lost nor absent: it lives on {node}, and if it is forgotten a delete \
                 will look for it everywhere. Give --force if you are sure"
            )));
        }
        ingest::forgotten(&self.store, &driver, &key).await?;
        Ok(done(format!("the {kind} {name} of {driver} at {node} is forgotten; nothing was deleted there")))
    }

    /// Learns what lives where: from an operator, or from the nodes.
    pub(super) async fn rebuild_homes(&self, ask: RebuildHomes) -> Result<Done, Refused> {
        match ask.homes {
            Some(homes) => self.given(ask.driver, homes).await,
            None => self.asked(ask.driver).await,
        }
    }

    async fn given(&self, driver: Option<DriverName>, homes: Vec<GivenHome>) -> Result<Done, Refused> {
        let wanted = |home: &GivenHome| driver.as_ref().is_none_or(|driver| home.driver == *driver);
        let homes: Vec<_> = homes.into_iter().filter(wanted).collect();
        let mut strangers: Vec<_> = self.store.read(|state| {
            let stranger = |home: &&GivenHome| state.node(&home.node).is_none();
            homes.iter().filter(stranger).map(|home| home.node.clone()).collect()
        });
        strangers.sort();
        strangers.dedup();
        let count = homes.len();
        let learning = stream::iter(homes).map(|GivenHome { driver, node, id }| async move {
            ingest::found(&self.store, &driver, &Id::Volume(id), &node, bytes::Bytes::new()).await
        });
        let learned: Vec<_> = learning.buffer_unordered(AT_ONCE).collect().await;
        learned.into_iter().collect::<Result<(), _>>()?;
        let mut text = format!(
            "{count} homes were taken over; those that had another home keep it, see `csi-cloud volumes`"
        );
        if !strangers.is_empty() {
            text += &format!("; never linked so far: {}", names(&strangers));
        }
        Ok(done(text))
    }

    /// Asks the nodes for all that they have.
    async fn asked(&self, driver: Option<DriverName>) -> Result<Done, Refused> {
        let wanted = |(name, _): &(&DriverName, _)| driver.as_ref().is_none_or(|driver| *name == driver);
        let mut said = Vec::new();
        for (name, front) in self.fronts.iter().filter(wanted) {
            let rebuilt = front.lists().rebuild().await;
            said.push(format!("{name}: {}", summed(rebuilt)));
        }
        if said.is_empty() {
            return Err(Refused::unknown("there is no front of that driver; `csi-cloud drivers` shows them"));
        }
        Ok(done(said.join("\n")))
    }
}

/// What came of asking nodes for all that they have.
fn summed(rebuilt: Vec<(NodeName, Result<usize, String>)>) -> String {
    const FEW: usize = 10;
    let (mut answered, mut things, mut silent) = (0, 0, Vec::new());
    for (node, said) in rebuilt {
        match said {
            Ok(has) => (answered, things) = (answered + 1, things + has),
            Err(why) => silent.push(format!("{node} ({why})")),
        }
    }
    let text = format!("{answered} nodes have {things} volumes and snapshots");
    match silent.len() {
        0 => text,
        count => format!("{text}; {count} did not say: {}", silent.get(..FEW).unwrap_or(&silent).join(", ")),
    }
}

fn unknown_node(node: &NodeName) -> Refused {
    Refused::unknown(format!("{node} never linked; `csi-cloud nodes` shows those that did"))
}

/// What lives on a node.
fn homes_at(state: &State, node: &NodeName) -> Vec<(DriverName, Id)> {
    let here = |(driver, of): (&DriverName, &OfDriver)| {
        of.homes_of(node).map(|(id, _)| (driver.clone(), id.clone())).collect::<Vec<_>>()
    };
    state.drivers().into_iter().flat_map(here).collect()
}

fn intents_at(state: &State, node: &NodeName) -> usize {
    let open = |intent: &&Intent| intent.made.is_none() && intent.node == *node;
    state.drivers().values().map(|of| of.intents().values().filter(open).count()).sum()
}

/// Marks what lives on a node as lost, or as not lost. How many that were.
fn mark(txn: &mut Txn<'_>, node: &NodeName, lost: bool) -> usize {
    let mut marked = 0;
    for (driver, id) in homes_at(txn.state(), node) {
        // As it is now: it may have changed in the same commit.
        let home = txn.home(&driver, &id).filter(|home| home.node == *node && home.lost != lost).cloned();
        if let Some(home) = home {
            txn.set_home(&driver, &id, Some(Home { lost, ..home }));
            marked += 1;
        }
    }
    marked
}

fn open(txn: &Txn<'_>, driver: &DriverName, name: &Id) -> Result<Intent, Refused> {
    let intent = txn.intent(driver, name).cloned();
    let none =
        || Refused::unknown(format!("{driver} has no create of the name {} that is known", name.text()));
    let intent = intent.ok_or_else(none)?;
    match &intent.made {
        Some(made) => Err(Refused::conflict(format!(
            "it is known what came of it: it made {made} at {}; delete that, and the name is free",
            intent.node
        ))),
        None => Ok(intent),
    }
}

fn not_made(txn: &mut Txn<'_>, driver: &DriverName, name: &Id) -> Result<String, Refused> {
    let intent = open(txn, driver, name)?;
    txn.set_intent(driver, name, None);
    let (name, node) = (name.text(), intent.node);
    Ok(format!(
        "the create of {name} at {node} is taken for not carried out; the next one may go to another node, and if \
         {node} has made it nevertheless, that is left behind"
    ))
}

fn made_it(txn: &mut Txn<'_>, driver: &DriverName, name: &Id, made: String) -> Result<String, Refused> {
    let intent = open(txn, driver, name)?;
    let Id::Name(method, text) = name else { return Err(Refused::bad("that is no name")) };
    let kind = method.creates().ok_or_else(|| Refused::bad("nothing is made by this"))?;
    let id = kind.id(made.clone());
    let home = txn.home(driver, &id).cloned().unwrap_or_else(|| Home::at(intent.node.clone(), now()));
    if home.node != intent.node {
        let (home, node) = (home.node, intent.node);
        return Err(Refused::conflict(format!("{made} lives on {home}, and the create was sent to {node}")));
    }
    let (home_name, claim) =
        (Some(text.as_str().into()), home.claim.clone().or_else(|| intent.claim.clone()));
    txn.set_home(driver, &id, Some(Home { name: home_name, claim, ..home }));
    let node = intent.node.clone();
    txn.set_intent(driver, name, Some(Intent { made: Some(made.as_str().into()), ..intent }));
    Ok(format!("the create of {text} made {made} at {node}"))
}
