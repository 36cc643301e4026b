//! The runs of csi-edge.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One run of csi-edge, from its start to its end. The cloud compares it with others of the node,
/// and sees by it that two programs have one certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run(Uuid);

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Run {
    type Err = NotARun;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| NotARun)
    }
}

/// The text is not a [`Run`].
#[derive(Debug, thiserror::Error)]
#[error("not a run of csi-edge: a UUID, as csi-cloud's log and `explain` name it")]
pub struct NotARun;

impl Run {
    #[cfg(test)]
    pub(super) fn nil() -> Self {
        Self(Uuid::nil())
    }

    /// A new run, different from all others.
    pub fn begin() -> Self {
        Self(Uuid::new_v4())
    }
}
