//! The tables of a store: one for each kind of record.
//!
//! A table's name is part of the format, so it never changes.

use crate::state::record::Change;

/// A kind of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Table {
    Nodes,
    Elected,
    Homes,
    Intents,
    NodeDrivers,
    Leases,
    Epochs,
}

impl Table {
    /// In the order in which a store is loaded: a node is sorted in by its load once, after its volumes were counted.
    pub(super) const ALL: [Self; 7] = [
        Self::Nodes,
        Self::Elected,
        Self::Homes,
        Self::Intents,
        Self::NodeDrivers,
        Self::Leases,
        Self::Epochs,
    ];

    /// Whether stores of the format of now may be without it: those that a csi-cloud made which did not know it.
    pub(super) fn may_be_missing(self) -> bool {
        matches!(self, Self::Leases | Self::Epochs)
    }

    /// The table of a change.
    pub(super) fn of(change: &Change) -> Self {
        match change {
            Change::Home(..) => Self::Homes,
            Change::Intent(..) => Self::Intents,
            Change::NodeDriver(..) => Self::NodeDrivers,
            Change::Node(..) => Self::Nodes,
            Change::Elected(..) => Self::Elected,
            Change::Lease(..) => Self::Leases,
            Change::Epoch(_) => Self::Epochs,
        }
    }

    /// Its name in every backend and every export; it never changes.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Homes => "homes",
            Self::Intents => "intents",
            Self::NodeDrivers => "at",
            Self::Nodes => "nodes",
            Self::Elected => "elected",
            Self::Leases => "owners",
            Self::Epochs => "epochs",
        }
    }
}
