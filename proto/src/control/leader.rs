//! Which of several csi-clouds leads, as its edges are told.

use serde::{Deserialize, Serialize};

/// The epoch of a leading csi-cloud. A later leader has a greater one.
///
/// An edge carries out no call of an epoch lower than the greatest it was told. A csi-cloud with a
/// store of its own has no epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaderEpoch(pub u64);

impl std::fmt::Display for LeaderEpoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
