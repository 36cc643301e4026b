//! The tables of a store: one for each kind of record.
//!
//! A table's name is part of the format, so it never changes.

use crate::state::record::Change;
use crate::state::trust::TrustChange;

/// A kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Table {
    Nodes,
    Elected,
    Homes,
    EndedHomes,
    Intents,
    NodeDrivers,
    Leases,
    Epochs,
    Profiles,
    Secrets,
    Tokens,
    Revocations,
    Starts,
}

impl Table {
    /// The order of loading: volumes are counted before nodes are sorted by load.
    pub(super) const ALL: [Self; 13] = [
        Self::Nodes,
        Self::Elected,
        Self::Homes,
        Self::EndedHomes,
        Self::Intents,
        Self::NodeDrivers,
        Self::Leases,
        Self::Epochs,
        Self::Profiles,
        Self::Secrets,
        Self::Tokens,
        Self::Revocations,
        Self::Starts,
    ];

    /// True if a store of this format may lack the table, because an older csi-cloud created it.
    pub(super) fn may_be_missing(self) -> bool {
        match self {
            Self::Nodes | Self::Elected | Self::Homes | Self::Intents | Self::NodeDrivers => false,
            Self::EndedHomes | Self::Leases | Self::Epochs | Self::Profiles => true,
            Self::Secrets | Self::Tokens | Self::Revocations | Self::Starts => true,
        }
    }

    /// The table of a change.
    pub(super) fn of(change: &Change) -> Self {
        match change {
            Change::Home(..) => Self::Homes,
            Change::EndedHome(..) => Self::EndedHomes,
            Change::Intent(..) => Self::Intents,
            Change::NodeDriver(..) => Self::NodeDrivers,
            Change::Node(..) => Self::Nodes,
            Change::Elected(..) => Self::Elected,
            Change::Lease(..) => Self::Leases,
            Change::Epoch(_) | Change::LeaderEpoch(_) => Self::Epochs,
            Change::Profile(..) => Self::Profiles,
            Change::Start(..) => Self::Starts,
            Change::Trust(TrustChange::Secrets(_)) => Self::Secrets,
            Change::Trust(TrustChange::Token(..)) => Self::Tokens,
            Change::Trust(TrustChange::Revocation(..)) => Self::Revocations,
        }
    }

    /// The table of this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name().as_bytes() == name)
    }

    /// The name in every backend and every export; it never changes.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Homes => "homes",
            Self::EndedHomes => "ended",
            Self::Intents => "intents",
            Self::NodeDrivers => "at",
            Self::Nodes => "nodes",
            Self::Elected => "elected",
            Self::Leases => "owners",
            Self::Epochs => "epochs",
            Self::Profiles => "profiles",
            Self::Secrets => "secrets",
            Self::Tokens => "tokens",
            Self::Revocations => "revocations",
            Self::Starts => "starts",
        }
    }
}
