//! Records a node's list, page by page as it streams in. A page without news writes nothing.
//!
//! Only a whole list hides what is missing: its end is a change of its own, after all pages.
//!
//! A list is older than changes made while it was read. Homes that changed since are left alone. An
//! id that changed and has no home requires another list. Homes are never removed here: an id that
//! the list lacks becomes absent. It is not shown, but a delete still goes to its node.
//!
//! An id without a home is held back while another node may have it: see the file `first_lists`.

use std::collections::HashSet;

use ahash::HashMap;
use bytes::Bytes;
use proto::csi::{Id, Made};
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::names::{DriverName, NodeName};

use super::first_lists::{FirstLists, Held};
use super::kind::ListKind;
use crate::state::clock::now;
use crate::state::known::State;
use crate::state::quotas::{OverQuota, Quota, Quotas};
use crate::state::recent::Stale;
use crate::state::record::{Home, NodeDriver};
use crate::state::txn::Txn;

/// All entries of one kind at a node, when they are few enough for one page.
pub(super) struct WholeList {
    pub(super) kind: ListKind,
    /// The driver's count of changes before the node was asked.
    pub(super) since: u64,
    pub(super) entries: Vec<Made>,
}

/// One page of a node's list.
pub(super) struct ListPage {
    pub(super) kind: ListKind,
    /// The driver's count of changes before the node was asked for the first page.
    pub(super) since: u64,
    pub(super) entries: Vec<Made>,
}

/// The end of a node's list, of which all pages are recorded.
pub(super) struct ListEnd {
    pub(super) kind: ListKind,
    /// The driver's count of changes before the node was asked for the first page.
    pub(super) since: u64,
    /// The ids on all pages.
    pub(super) ids: HashSet<Id>,
    /// True if no page was too old.
    pub(super) is_complete: bool,
    /// The ids that were held back.
    pub(super) held: Option<HeldBack>,
}

/// Ids that are not kept, because another node may have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldBack {
    pub(super) ids: Vec<Id>,
    /// The reason for the first one.
    pub(super) why: Held,
}

impl HeldBack {
    /// Checks the quotas for ids that are held back, because they take memory like kept ones.
    ///
    /// # Errors
    /// They are more than the quota of volumes.
    pub(super) fn check(&self, quotas: &Quotas) -> Result<(), OverQuota> {
        let what = || "ids that another node may have".to_owned();
        quotas.check(Quota::Volumes, self.ids.len(), what)
    }
}

/// The transaction that records one node's list.
struct Recorder<'r, 's> {
    txn: &'r mut Txn<'s>,
    driver: &'r DriverName,
    node: &'r NodeName,
    since: u64,
    /// Ids without a home that changed after the list began. None if that is unknown.
    stale: Option<HashMap<&'s Id, Stale>>,
    quotas: &'r Quotas,
    kind: ListKind,
    first_lists: &'r FirstLists,
    /// The other nodes of which nothing is known; looked up for the first id without a home.
    unknown: Option<Vec<NodeName>>,
    held: Option<HeldBack>,
}

/// The outcome of recording a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// All of it is recorded.
    Complete,
    /// It may be older than a call: the node must be asked again.
    TooOld,
    /// Its entries are recorded, but for these ids.
    Held(HeldBack),
    /// Its entries are recorded up to the quota, and no more.
    Over(OverQuota),
    /// Nothing is recorded: the node does not count for the driver.
    NotCounted,
}

impl WholeList {
    /// Records the list, as far as it is within the quotas.
    pub(super) fn record(
        self,
        txn: &mut Txn<'_>,
        driver: &DriverName,
        node: &NodeName,
        quotas: &Quotas,
        first_lists: &FirstLists,
    ) -> Recorded {
        let Self { kind, since, entries } = self;
        let ids = entries.iter().map(|entry| entry.id.clone()).collect();
        let page = ListPage { kind, since, entries };
        let recorded = page.record(txn, driver, node, quotas, first_lists);
        let mut end = ListEnd { kind, since, ids, is_complete: true, held: None };
        match &recorded {
            Recorded::Complete => {}
            Recorded::TooOld => end.is_complete = false,
            Recorded::Held(held) => end.held = Some(held.clone()),
            Recorded::Over(_) | Recorded::NotCounted => return recorded,
        }
        end.record(txn, driver, node);
        recorded
    }
}

impl ListPage {
    /// Records the page, as far as it is within the quotas.
    ///
    /// A node may be removed or excluded after it was asked. After a purge, a removed node's page
    /// would bring its volumes back. An excluded node could invent volumes.
    pub(super) fn record(
        self,
        txn: &mut Txn<'_>,
        driver: &DriverName,
        node: &NodeName,
        quotas: &Quotas,
        first_lists: &FirstLists,
    ) -> Recorded {
        if !txn.counts(driver, node) {
            return Recorded::NotCounted;
        }
        let Self { kind, since, entries } = self;
        let stale = match txn.state().driver(driver) {
            Some(driver) => driver.stale_since(since),
            None => Some(HashMap::default()),
        };
        let mut recorder = Recorder {
            txn,
            driver,
            node,
            since,
            stale,
            quotas,
            kind,
            first_lists,
            unknown: None,
            held: None,
        };
        let mut is_complete = true;
        for entry in entries {
            match recorder.record(entry) {
                Ok(is_current) => is_complete &= is_current,
                Err(over) => return Recorded::Over(over),
            }
        }
        match recorder.held {
            _ if !is_complete => Recorded::TooOld,
            Some(held) => Recorded::Held(held),
            None => Recorded::Complete,
        }
    }
}

impl ListEnd {
    /// Hides entries that the whole list lacks, and notes that the node was listed.
    pub(super) fn record(self, txn: &mut Txn<'_>, driver: &DriverName, node: &NodeName) {
        let Self { kind, since, ids, is_complete, held } = self;
        for id in missing(txn.state(), driver, node, kind, since, &ids) {
            set_absent(txn, driver, &id);
        }
        if is_complete && held.is_none() && kind == ListKind::Volumes {
            set_listed(txn, driver, node);
        }
    }
}

impl Recorder<'_, '_> {
    /// Records an entry. Returns false if it may be older than a call.
    fn record(&mut self, made: Made) -> Result<bool, OverQuota> {
        let Made { id, entry, source } = made;
        match self.txn.home(self.driver, &id).cloned() {
            Some(home) if home.node != *self.node => self.record_conflict(&id, home),
            _ if self.txn.is_changing(self.driver, &id) => {}
            Some(home) => self.update(&id, entry, source, home)?,
            None => match self.why_stale(&id) {
                None if self.is_held(&id)? => {}
                None => {
                    let source = source.map(Box::new);
                    let home = Home { entry, source, ..Home::at(self.node.clone(), now()) };
                    self.keep(&id, home)?;
                }
                // The id was deleted after the list began.
                Some(Stale::Forgotten) => {}
                Some(Stale::Changed) => return Ok(false),
            },
        }
        Ok(true)
    }

    /// Whether another node may have an id without a home; then it is held back.
    fn is_held(&mut self, id: &Id) -> Result<bool, OverQuota> {
        let Self { txn, driver, node, kind, first_lists, .. } = self;
        let state = txn.state();
        let unknown =
            self.unknown.get_or_insert_with(|| first_lists.unknown(state, driver, node, *kind));
        let why = if state.awaits_labels(driver) {
            Held::Unlabelled
        } else if unknown.is_empty() {
            match first_lists.claimants(state, driver, node, id) {
                others if !others.is_empty() => Held::Disputed(others),
                _ => match state.adopts_from(driver, now()) {
                    Some(from) => Held::New(from),
                    None => return Ok(false),
                },
            }
        } else {
            Held::Unknown(unknown.clone())
        };
        let held = self.held.get_or_insert_with(|| HeldBack { ids: Vec::new(), why });
        held.ids.push(id.clone());
        held.check(self.quotas)?;
        Ok(true)
    }

    fn keep(&mut self, id: &Id, home: Home) -> Result<(), OverQuota> {
        self.txn.set_home_within(self.quotas, self.node, (self.driver, id), home)
    }

    /// The reason why the list is stale for an id without a home. An unknown history counts as a
    /// change.
    fn why_stale(&self, id: &Id) -> Option<Stale> {
        match &self.stale {
            Some(stale) if !self.txn.is_stale(self.driver, id) => stale.get(id).copied(),
            _ => Some(Stale::Changed),
        }
    }

    /// Updates the entry of a home, unless the home changed after the list began.
    fn update(
        &mut self,
        id: &Id,
        entry: Bytes,
        source: Option<Id>,
        home: Home,
    ) -> Result<(), OverQuota> {
        let driver = self.txn.state().driver(self.driver);
        if driver.is_some_and(|driver| driver.changed_since(self.node, id, self.since)) {
            return Ok(());
        }
        if home.absent || home.entry != entry {
            let source = source.map(Box::new).or(home.source);
            self.keep(id, Home { absent: false, entry, source, ..home })?;
        }
        Ok(())
    }

    /// Records that another node lists an id too. The first node keeps it.
    fn record_conflict(&mut self, id: &Id, mut home: Home) {
        if !home.add_conflict(self.node) {
            return;
        }
        peer_warn!(
            LogPeer::Node(self.node),
            driver = %self.driver,
            home = %home.node,
            node = %self.node,
            id = id.text(),
            "two nodes list the same id; the first one keeps it, and no call for it reaches \
             the other"
        );
        self.txn.set_home(self.driver, id, Some(home));
    }
}

fn set_absent(txn: &mut Txn<'_>, driver: &DriverName, id: &Id) {
    if txn.is_changing(driver, id) {
        return;
    }
    if let Some(home) = txn.home(driver, id).filter(|home| !home.absent).cloned() {
        txn.set_home(driver, id, Some(Home { absent: true, ..home }));
    }
}

/// Records that the node's volumes were listed completely once.
fn set_listed(txn: &mut Txn<'_>, driver: &DriverName, node: &NodeName) {
    if let Some(at) = txn.at(driver, node).filter(|at| at.listed == 0) {
        let at = NodeDriver { listed: now(), ..at.clone() };
        txn.set_at(driver, node, Some(at));
    }
}

/// The ids that earlier lists of a node showed, and this one lacks.
pub(super) fn missing(
    state: &State,
    driver: &DriverName,
    node: &NodeName,
    kind: ListKind,
    since: u64,
    listed: &HashSet<Id>,
) -> Vec<Id> {
    let Some(driver) = state.driver(driver) else { return Vec::new() };
    let homes = driver.homes_of(node).filter(|(id, change)| kind.is_of(id) && *change <= since);
    let shown = homes.filter(|(id, _)| driver.home(id).is_some_and(|home| !home.absent));
    shown.map(|(id, _)| id).filter(|id| !listed.contains(id)).cloned().collect()
}
