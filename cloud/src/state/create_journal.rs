//! Creates: written down before they are sent, and what came of them before it is answered, so that no crash
//! makes two volumes of one name or loses where one is.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use bytes::Bytes;
use proto::csi::{Id, Made};
use proto::host::chain;
use proto::names::{DriverName, NodeName};
use tonic::Code;
use tracing::{info, warn};

use crate::state::clock::now;
use crate::state::record::{Claim, Home, Intent};
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

/// What is kept of a create's request.
#[derive(Clone, Default)]
pub struct CreateFacts {
    /// Whose it is in Kubernetes.
    pub claim: Option<Box<Claim>>,
    /// What of the parameters is ours.
    pub parameters: Option<Box<std::collections::BTreeMap<String, String>>>,
    /// Until when the call may begin at its node, in ms since 1970.
    pub until: u64,
}

/// The creates of one driver.
pub struct CreateJournal {
    driver: DriverName,
    store: Store,
    /// How many calls are on their way for each name.
    running: Mutex<HashMap<Id, usize>>,
}

/// One create on its way.
pub struct PendingCreate<'a> {
    creates: &'a CreateJournal,
    name: &'a Id,
}

impl CreateJournal {
    /// The creates of a driver, kept in this store.
    pub fn new(driver: DriverName, store: Store) -> Self {
        Self { driver, store, running: Mutex::default() }
    }

    /// Begins a call that makes something of this name.
    pub fn begin<'a>(&'a self, name: &'a Id) -> PendingCreate<'a> {
        *self.running().entry(name.clone()).or_default() += 1;
        PendingCreate { creates: self, name }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Id, usize>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingCreate<'_> {
    fn drop(&mut self) {
        let mut running = self.creates.running();
        let left = running.get(self.name).map_or(0, |calls| calls - 1);
        if left == 0 {
            running.remove(self.name)
        } else {
            running.insert(self.name.clone(), left)
        };
    }
}

impl PendingCreate<'_> {
    /// Writes down that this is sent to one of these nodes, the one with the fewest volumes. Gives back where it
    /// goes: where it was sent before, if it was and may still begin there.
    ///
    /// # Errors
    /// It is not durable; the call may not be sent.
    pub async fn intend(
        &self,
        nodes: Vec<NodeName>,
        asked: &CreateFacts,
        elsewhere: bool,
    ) -> Result<NodeName, Error> {
        let (driver, name) = (self.creates.driver.clone(), self.name.clone());
        let (claim, until) = (asked.claim.clone(), asked.until);
        let intended = self.creates.store.write(move |txn| {
            let before = txn.intent(&driver, &name).cloned();
            let fewest = || nodes.iter().min_by_key(|node| txn.load(&driver, node)).cloned();
            let node = match &before {
                // A shared driver's volumes can be made from any node.
                Some(before) if elsewhere && before.until <= now() => fewest(),
                Some(before) => Some(before.node.clone()),
                None => fewest(),
            }?;
            let since = before.as_ref().map_or_else(now, |before| before.since);
            let made = before.as_ref().and_then(|before| before.made.clone());
            let until = until.max(before.map_or(0, |before| before.until));
            let intent = Intent { node: node.clone(), since, until, made, claim };
            txn.set_intent(&driver, &name, Some(intent));
            Some(node)
        });
        let node = intended.await.map_err(|source| Error::NotDurable { source: source.into() })?;
        // Nodes are never empty: the plan was made of them.
        node.ok_or_else(|| Error::NotDurable { source: "no node was left to choose from".into() })
    }

    /// Keeps where that lives which was made; after this it may be answered. What a shared driver made was perhaps
    /// made from `elsewhere` before, and any node finds it.
    ///
    /// # Errors
    /// It is not durable, or lives on another node: the answer may not be given.
    pub async fn made(
        &self,
        node: &NodeName,
        made: Vec<Made>,
        asked: CreateFacts,
        elsewhere: bool,
    ) -> Result<(), Error> {
        let (driver, name, at) = (self.creates.driver.clone(), self.name.clone(), node.clone());
        let learned = self.creates.store.write(move |txn| {
            let mut asked = Some((name, asked));
            // The first is what was asked for; a group's snapshots follow it.
            let homes: Vec<_> = made
                .into_iter()
                .map(|made| {
                    let id = made.id.clone();
                    if elsewhere
                        && let Some(home) = txn.home(&driver, &id).filter(|home| home.node != at)
                    {
                        let moved = Home { node: at.clone(), ..home.clone() };
                        txn.set_home(&driver, &id, Some(moved));
                    }
                    (id, keep(txn, (&driver, &at), made, asked.take()))
                })
                .collect();
            homes.into_iter().find(|(_, home)| *home != at)
        });
        let elsewhere =
            learned.await.map_err(|source| Error::NotDurable { source: source.into() })?;
        elsewhere.map_or(Ok(()), |(id, home)| {
            Err(Error::Claimed { id: id.text().into(), home, node: node.clone() })
        })
    }

    /// Takes a driver's refusal: it forgets the intent if nothing was made, so that it may be sent elsewhere.
    pub async fn refused(&self, code: Code) {
        let alone = self.creates.running().get(self.name) == Some(&1);
        if !alone || !is_nothing_made(code) {
            return;
        }
        let (driver, name) = (self.creates.driver.clone(), self.name.clone());
        let forgotten = self.creates.store.write(move |txn| {
            if txn.intent(&driver, &name).is_some_and(|intent| intent.made.is_none()) {
                txn.set_intent(&driver, &name, None);
            }
        });
        if let Err(error) = forgotten.await {
            // It stays, and the next try goes to the same node.
            warn!(driver = %self.creates.driver, error = chain(&error), "a refused create is not forgotten");
        }
    }
}

/// Keeps what a node made, under the name that it was asked for if it was; gives back where it lives.
fn keep(
    txn: &mut Txn<'_>,
    (driver, node): (&DriverName, &NodeName),
    made: Made,
    asked: Option<(Id, CreateFacts)>,
) -> NodeName {
    let Made { id, entry, source } = made;
    let is_new = txn.home(driver, &id).is_none();
    let mut home = home(txn.home(driver, &id).cloned(), node, entry, source);
    if let Some((name, asked)) = asked {
        if let Some(intent) = txn.intent(driver, &name).cloned() {
            if let Some(before) = intent.made.as_deref().filter(|before| *before != id.text()) {
                warn!(%driver, %node, name = name.text(), before, now = id.text(),
                    "the driver made another one under a name that it had made before; both are kept");
            }
            txn.set_intent(driver, &name, Some(Intent { made: Some(id.text().into()), ..intent }));
        }
        if home.node == *node {
            (home.name, home.claim, home.parameters) =
                (Some(name.text().into()), asked.claim, asked.parameters);
        }
    }
    if let Some(claim) = home.claim.as_deref().filter(|_| is_new) {
        let Claim { namespace, name, .. } = claim;
        info!(%driver, %node, volume = id.text(), claim = format!("{namespace}/{name}"), "made");
    }
    let lives = home.node.clone();
    txn.set_home(driver, &id, Some(home));
    lives
}

/// The home of what a node says that it has: the first node that says so keeps it.
fn home(before: Option<Home>, node: &NodeName, entry: Bytes, source: Option<Id>) -> Home {
    let mut home = before.unwrap_or_else(|| Home::at(node.clone(), now()));
    if home.node == *node {
        // Copied: a part of what was read from a link would keep all of that in memory.
        let entry = Bytes::copy_from_slice(&entry);
        (home.entry, home.source, home.absent) = (entry, source.map(Box::new), false);
    } else if !home.rivals.contains(node) {
        home.rivals.push(node.clone());
    }
    home
}

/// Whether a driver that answers this code says that there is nothing of the name now. What it does not say so
/// surely keeps its node.
fn is_nothing_made(code: Code) -> bool {
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => true,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => false,
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::Method;
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::state::store::memory::Memory;

    /// Lets n1 and then n2 answer one create with the same id; gives what the second may say, and the home.
    async fn made_twice(elsewhere: bool) -> (bool, NodeName) {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let (driver, id) =
            ("test.edge-csi.io".parse::<DriverName>().unwrap(), Id::Volume("v".into()));
        let (creates, name) = (
            CreateJournal::new(driver.clone(), store.clone()),
            Id::Name(Method::CreateVolume, "pvc".into()),
        );
        let create = creates.begin(&name);
        let mut answered = true;
        for node in ["n1", "n2"] {
            let made = vec![Made { id: id.clone(), entry: Bytes::new(), source: None }];
            let node = node.parse().unwrap();
            answered = create.made(&node, made, CreateFacts::default(), elsewhere).await.is_ok();
        }
        let home =
            store.read(|state| state.driver(&driver)?.home(&id).map(|home| home.node.clone()));
        (answered, home.unwrap())
    }

    #[tokio::test]
    async fn what_is_kept_of_an_answer_does_not_keep_all_that_was_read_with_it() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let (driver, node) =
            ("test.edge-csi.io".parse::<DriverName>().unwrap(), "n1".parse().unwrap());
        let (creates, name) = (
            CreateJournal::new(driver.clone(), store.clone()),
            Id::Name(Method::CreateVolume, "pvc".into()),
        );
        let read = Bytes::from(vec![0; 64 * 1024]);
        let made = vec![Made { id: Id::Volume("v".into()), entry: read.slice(..8), source: None }];
        creates.begin(&name).made(&node, made, CreateFacts::default(), false).await.unwrap();
        let found = Id::Volume("found".into());
        crate::state::ingest::discovered(&store, &driver, &found, &node, read.slice(8..16))
            .await
            .unwrap();
        for id in [Id::Volume("v".into()), found] {
            let kept =
                store.read(|state| state.driver(&driver)?.home(&id).map(|home| home.entry.len()));
            assert_eq!(kept, Some(8));
        }
        assert!(read.is_unique());
    }

    #[tokio::test]
    async fn only_what_a_shared_driver_made_may_be_made_again_from_another_node() {
        assert_eq!(made_twice(true).await, (true, "n2".parse().unwrap()));
        assert_eq!(made_twice(false).await, (false, "n1".parse().unwrap()));
    }
}
