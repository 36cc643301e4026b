//! How a driver is at one node, as the commands show it.

use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;

/// How a driver is at a linked node, by the node's word.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthView {
    /// `up`, `starting`, `gone` or `failing`.
    pub state: String,
    /// How long it has been so, in s.
    pub for_s: u64,
    /// Why it is not up; empty if it is.
    pub why: String,
}

impl AdminState {
    /// How a driver is at a node; none without a link.
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
    /// Whether new volumes may go to it.
    pub fn is_up(&self) -> bool {
        self.state == "up"
    }
}
