//! The index: the inventory, and the view of each node that asked for it.
//!
//! Pure. Nothing is said before every kind of objects was read once. Half of the objects would look
//! like deletions of the other half.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use proto::control::metadata::{Key, Kind, Position};
use tokio::sync::watch;

use crate::metadata::handlers::Handlers;
use crate::metadata::inventory::{Inventory, Observed, Touched};
use crate::metadata::transfer::Transfer;
use crate::metadata::view::{View, Wanted};

/// All kinds.
pub const KINDS: [Kind; 7] = [
    Kind::Pod,
    Kind::Claim,
    Kind::Volume,
    Kind::Attachment,
    Kind::Driver,
    Kind::RuntimeClass,
    Kind::Node,
];

/// A change that Kubernetes' watch reports for one kind of objects.
pub enum Change {
    /// A list begins that replaces all.
    Begin,
    /// An object of that list.
    Listed(Key, Option<Observed>),
    /// The list is whole.
    Whole,
    /// An object is new or has changed, or has nothing for us any more.
    Set(Key, Option<Observed>),
}

/// A node's view, and its followers.
struct Followed {
    view: View,
    changed: watch::Sender<u64>,
}

/// The index.
pub struct Index {
    epoch: u64,
    revision: u64,
    handlers: Option<Handlers>,
    inventory: Inventory,
    /// Lists that are being read.
    coming: BTreeMap<Kind, BTreeMap<Key, Observed>>,
    read: BTreeSet<Kind>,
    views: HashMap<Box<str>, Followed>,
}

impl Index {
    /// An empty index, which counts revisions under this number.
    pub fn new(epoch: u64) -> Self {
        Self {
            epoch,
            revision: 0,
            handlers: None,
            inventory: Inventory::default(),
            coming: BTreeMap::new(),
            read: BTreeSet::new(),
            views: HashMap::new(),
        }
    }

    /// Says that the watches run, and which handlers take direct volumes.
    pub(super) fn begin(&mut self, handlers: Handlers) {
        self.handlers = Some(handlers);
    }

    /// The handlers that take direct volumes; none without watches.
    pub fn handlers(&self) -> Option<&Handlers> {
        self.handlers.as_ref()
    }

    /// True if every kind was read once.
    pub fn is_whole(&self) -> bool {
        self.read.len() == KINDS.len()
    }

    /// The objects.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Takes a change from a watch.
    pub fn take(&mut self, kind: Kind, change: Change) {
        match change {
            Change::Begin => {
                self.coming.insert(kind, BTreeMap::new());
            }
            Change::Listed(key, Some(value)) => {
                self.coming.entry(kind).or_default().insert(key, value);
            }
            Change::Listed(_, None) => {}
            Change::Whole => self.replace(kind),
            Change::Set(key, value) => {
                if let Some(touched) = self.inventory.set(&key, value) {
                    self.look_again([touched]);
                }
            }
        }
    }

    /// Puts a whole list in the place of all objects of its kind.
    fn replace(&mut self, kind: Kind) {
        let coming = self.coming.remove(&kind).unwrap_or_default();
        let lost = self.inventory.keys(kind).into_iter().filter(|key| !coming.contains_key(key));
        let lost: Vec<_> = lost.map(|key| (key, None)).collect();
        let come = coming.into_iter().map(|(key, value)| (key, Some(value)));
        let mut touched = Vec::new();
        for (key, value) in lost.into_iter().chain(come) {
            touched.extend(self.inventory.set(&key, value));
        }
        self.read.insert(kind);
        if self.is_whole() {
            // It may be the last kind of the first time.
            touched.push(Touched::All);
        }
        self.look_again(touched);
    }

    /// Looks again at the views of these nodes.
    fn look_again(&mut self, touched: impl IntoIterator<Item = Touched>) {
        if !self.is_whole() {
            return;
        }
        let mut nodes = BTreeSet::new();
        for touched in touched {
            match touched {
                Touched::Nodes(some) => nodes.extend(some),
                Touched::All => nodes.extend(self.views.keys().cloned()),
            }
        }
        for node in nodes {
            let Some(followed) = self.views.get_mut(&node) else { continue };
            let now = self.inventory.concerning(&node);
            if let Some(latest) = followed.view.update(now, &mut self.revision) {
                followed.changed.send_replace(latest);
            } else if *followed.changed.borrow() == 0 {
                // The first time that it can be told, even if there is nothing.
                followed.changed.send_replace(self.revision.max(1));
            }
        }
    }

    /// Begins to keep a node's view, and says when it changes.
    pub fn follow(&mut self, node: &str) -> watch::Receiver<u64> {
        if let Some(followed) = self.views.get(node) {
            return followed.changed.subscribe();
        }
        self.revision += 1;
        let view = View::new(self.revision);
        let followed = Followed { view, changed: watch::Sender::new(0) };
        let receiver = followed.changed.subscribe();
        self.views.insert(node.into(), followed);
        self.look_again([Touched::Nodes([node.into()].into())]);
        receiver
    }

    /// The transfer for a node's edge with this position; none if it lacks nothing, or the objects
    /// are not known yet.
    pub fn since(&self, node: &str, position: Position, wanted: Wanted) -> Option<Transfer> {
        if !self.is_whole() {
            return None;
        }
        self.views.get(node)?.view.since(self.epoch, position, wanted)
    }

    /// The objects that concern a node, by key.
    pub fn concerning(&self, node: &str) -> BTreeMap<Key, Arc<proto::control::metadata::Object>> {
        self.inventory.concerning(node)
    }
}

#[cfg(test)]
mod tests;
