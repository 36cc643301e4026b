//! The health of a driver at one node, as the commands show it.

use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;

/// The health of a driver at a linked node, as its edge reports it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthView {
    /// `up`, `starting`, `gone` or `failing`.
    pub state: String,
    /// The time in this state, in s.
    pub for_s: u64,
    /// The reason why it is not up; empty if it is.
    pub why: String,
}

impl AdminState {
    /// The health of a driver at a node; none without a link.
    pub(super) fn health(&self, node: &NodeName, driver: &DriverName) -> Option<HealthView> {
        let health = self.links.driver_health(node, driver)?;
        Some(HealthView {
            state: health.name().into(),
            for_s: health.lasts().as_secs(),
            why: health.why.to_string(),
        })
    }
}

impl HealthView {
    /// True if new volumes may go to it.
    pub fn is_up(&self) -> bool {
        self.state == "up"
    }
}
