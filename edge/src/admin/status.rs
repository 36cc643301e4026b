//! `csi-edge status`: this node at a glance.

use proto::names::NodeName;
use serde::{Deserialize, Serialize};

use super::state::AdminState;
use crate::discovery::table::Registration;

/// The path of the command.
pub const PATH: &str = "/status";

/// How csi-edge is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    /// This node.
    pub node: NodeName,
    /// The version of csi-edge.
    pub version: String,
    /// For how long it has run.
    pub runs_s: u64,
    /// Why it is not ready; empty if it is.
    pub not_ready: String,
    /// The endpoint of the link in use; none without a link.
    pub cloud: Option<String>,
    /// For how long that link has been up.
    pub linked_s: Option<u64>,
    /// The number of drivers.
    pub drivers: usize,
    /// How many of them are up.
    pub drivers_up: usize,
    /// The number of calls in flight.
    pub calls: usize,
    /// All that has announced itself.
    pub announcements: Vec<Registration>,
}

impl AdminState {
    /// This node at a glance.
    pub(super) fn status(&self) -> StatusView {
        let linked = self.linked.borrow().clone();
        let drivers = self.drivers.all();
        StatusView {
            node: self.drivers.node().clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            runs_s: self.began.elapsed().as_secs(),
            not_ready: self.not_ready().unwrap_or_default().into(),
            cloud: linked.as_ref().map(|linked| linked.cloud.clone()),
            linked_s: linked.map(|linked| linked.since.elapsed().as_secs()),
            drivers: drivers.len(),
            drivers_up: drivers.iter().filter(|driver| driver.health().state.is_up()).count(),
            calls: self.executor.running().len(),
            announcements: self.registrations.all(),
        }
    }
}
