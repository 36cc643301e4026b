//! The starts of csi-clouds on this store, and how many creates each has sent.
//!
//! A create gets its number in the commit of its intent, before it is sent, and its node is told
//! that number as a watermark. So a node that knows a later number of a start than the store, or a
//! start that the store does not know, shows that creates are missing in the store: an older copy
//! was put back. Then nothing is created, and no lease is granted, until an operator has accepted
//! what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use proto::names::NodeName;
use uuid::Uuid;

use crate::state::clock::now;
use crate::state::field::record;

/// The record of leases that the store lacks, which no start counts.
pub(super) const LEASES: Uuid = Uuid::nil();
/// The record of a store that was imported from an export which may be old.
pub(super) const IMPORTED: Uuid = Uuid::from_u128(1);
/// The most starts that are kept. A node that was away since one before them shows what looks like
/// an older store.
pub(super) const MOST: usize = 4096;

record! {
    /// A start of a csi-cloud that has sent creates.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    pub struct StartRecord {
        /// Its place among the starts of this store, from 1; 0 if the store lacks the start.
        #[serde(default)]
        pub order: u64 = 1 (uint64),
        /// The number of its last create in the store.
        #[serde(default)]
        pub last: u64 = 2 (uint64),
        /// The latest number beyond that a node knows; 0 if none does.
        #[serde(default)]
        pub beyond: u64 = 3 (uint64),
        /// The node that knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub known_by: Option<NodeName> = 4 (string, optional),
        /// True if an operator accepted what is missing of it.
        #[serde(default)]
        pub accepted: bool = 5 (bool),
    }
}

impl StartRecord {
    /// True if creates of it are missing in the store, and nobody has accepted that.
    pub(super) fn is_incomplete(&self) -> bool {
        self.beyond > 0 && !self.accepted
    }
}

/// The reason why the store may lack creates that were sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The operator's configuration says so.
    Said,
    /// This node knows of a later one.
    ShownBy(NodeName),
    /// The store was imported, and nobody said that it was moved.
    Imported,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said => f.write_str(
                "new_leases = false in csi-cloud's configuration says that the store may be older \
                 than what nodes made",
            ),
            Self::ShownBy(node) => write!(
                f,
                "the store is an older copy, because node {node} was told of a later create or \
                 lease than it has. When the nodes have linked and what they made since is known, \
                 `csi-cloud store accept` goes on"
            ),
            Self::Imported => f.write_str(
                "the store was imported, and may be older than what nodes made. When the nodes \
                 have linked and what they made since is known, `csi-cloud store accept` goes on",
            ),
        }
    }
}

/// All starts of the store, and the one of this process.
#[derive(Debug)]
pub struct Starts {
    own: Uuid,
    /// The time at which this process began, in ms since 1970.
    began: u64,
    records: BTreeMap<Uuid, StartRecord>,
    /// The one with the greatest order.
    newest: Option<Uuid>,
    /// Those of which creates are missing, and nobody has accepted that.
    incomplete: BTreeSet<Uuid>,
}

impl Default for Starts {
    fn default() -> Self {
        let own = Uuid::new_v4();
        let incomplete = BTreeSet::new();
        Self { own, began: now(), records: BTreeMap::new(), newest: None, incomplete }
    }
}

impl Starts {
    /// A start.
    pub(super) fn get(&self, start: &Uuid) -> Option<&StartRecord> {
        self.records.get(start)
    }

    /// All of them.
    pub fn all(&self) -> &BTreeMap<Uuid, StartRecord> {
        &self.records
    }

    /// The time at which this process began, in ms since 1970.
    pub(crate) fn began(&self) -> u64 {
        self.began
    }

    /// The reason why creates may be missing in the store. `None` if the store is whole.
    pub fn lack(&self) -> Option<Lack> {
        let mut incomplete = self.incomplete.iter().filter_map(|start| self.get(start));
        let shown_by = incomplete.find_map(|start| start.known_by.clone());
        let is_imported = self.incomplete.contains(&IMPORTED);
        shown_by.map(Lack::ShownBy).or_else(|| is_imported.then_some(Lack::Imported))
    }

    /// The last create that the store has; none before the first, and while creates are missing.
    pub(super) fn newest(&self) -> Option<(Uuid, u64)> {
        if self.incomplete.is_empty() { self.last_create().0 } else { None }
    }

    /// The last create that the store has, whatever is missing.
    pub(super) fn last_create(&self) -> LastCreate {
        let newest = self.newest.and_then(|start| Some((start, self.get(&start)?.last)));
        LastCreate(newest)
    }

    /// True if this number of a start is missing in the store, and that is not known yet.
    pub(super) fn lacks(&self, start: &Uuid, number: u64) -> bool {
        !self
            .records
            .get(start)
            .is_some_and(|record| record.accepted || number <= record.last.max(record.beyond))
    }

    /// The record of this process's start with one more create; and a start that is forgotten for
    /// it.
    pub(super) fn with_one_more(&self) -> (Uuid, StartRecord, Option<Uuid>) {
        let (own, known) = (self.own, self.records.get(&self.own));
        if let Some(known) = known {
            return (own, StartRecord { last: known.last + 1, ..known.clone() }, None);
        }
        let last = self.order_of_newest();
        let oldest = self.records.iter().min_by_key(|(_, record)| record.order);
        let surplus =
            oldest.filter(|(_, oldest)| self.records.len() >= MOST && !oldest.is_incomplete());
        let begun = StartRecord { order: last + 1, last: 1, ..StartRecord::default() };
        (own, begun, surplus.map(|(oldest, _)| *oldest))
    }

    fn order_of_newest(&self) -> u64 {
        let newest = self.newest.and_then(|newest| self.get(&newest));
        newest.map_or(0, |newest| newest.order)
    }

    /// Applies a durable change.
    pub(super) fn apply(&mut self, start: Uuid, record: Option<StartRecord>) {
        self.incomplete.remove(&start);
        let Some(record) = record else {
            self.records.remove(&start);
            return;
        };
        if record.order > self.order_of_newest() {
            self.newest = Some(start);
        }
        if record.is_incomplete() {
            self.incomplete.insert(start);
        }
        self.records.insert(start, record);
    }

    /// The same starts, in the process of another one.
    pub(super) fn in_process_of(self, other: &Self) -> Self {
        Self { own: other.own, began: other.began, ..self }
    }
}

/// The last create of a store, as `START.NUMBER`, or `none`. Who moves a store tells it, so that an
/// older export is not taken for what the store had at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCreate(Option<(Uuid, u64)>);

/// The text is not a [`LastCreate`].
#[derive(Debug, thiserror::Error)]
#[error("not the last create of a store, START.NUMBER or none: `csi-cloud store check` shows it")]
pub struct NotALastCreate;

impl fmt::Display for LastCreate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((start, number)) => write!(f, "{start}.{number}"),
            None => f.write_str("none"),
        }
    }
}

impl FromStr for LastCreate {
    type Err = NotALastCreate;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(None));
        }
        let (start, number) = text.split_once('.').ok_or(NotALastCreate)?;
        let start = start.parse().map_err(|_| NotALastCreate)?;
        let number = number.parse().map_err(|_| NotALastCreate)?;
        Ok(Self(Some((start, number))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_create_is_that_of_the_newest_start_and_is_read_as_it_is_shown() {
        let mut starts = Starts::default();
        assert_eq!(starts.last_create().to_string(), "none");
        let of = |order, last| StartRecord { order, last, ..StartRecord::default() };
        for (start, order, number) in [(7, 1, 9), (8, 2, 4), (9, 0, 12)] {
            starts.apply(Uuid::from_u128(start), Some(of(order, number)));
        }
        let last = starts.last_create();
        assert!(last.to_string().ends_with("8.4"), "{last}");
        for text in [last.to_string(), "none".into()] {
            let read: LastCreate = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
        }
        assert_eq!(last, last.to_string().parse().unwrap());
        for wrong in ["", "1", "x.1", &format!("{}.-1", Uuid::nil())] {
            assert!(wrong.parse::<LastCreate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_oldest_of_too_many_starts_is_forgotten() {
        let mut starts = Starts::default();
        for order in 1..=MOST as u64 {
            let id = Uuid::from_u128(order.into());
            starts.apply(id, Some(StartRecord { order, last: 1, ..StartRecord::default() }));
        }
        let (own, begun, forgotten) = starts.with_one_more();
        assert_eq!((begun.order, begun.last), (MOST as u64 + 1, 1));
        assert_eq!(forgotten, Some(Uuid::from_u128(1)));
        starts.apply(own, Some(begun));
        let (_, counted, forgotten) = starts.with_one_more();
        assert_eq!((counted.order, counted.last, forgotten), (MOST as u64 + 1, 2, None));
        assert_eq!(starts.newest(), Some((own, 1)));
    }
}
