//! The shape of a run's fleet, and the rules of its driver.

use cloud::state::node_set::NodeSet;
use cloud::state::policy::{Controllers, Policy, Scope};

use super::keys::NODES;

/// The shape of a fleet.
#[derive(Clone, Copy)]
pub struct Shape {
    /// How many nodes.
    pub nodes: usize,
    /// How far the driver's volumes reach.
    pub scope: Scope,
    /// Where edges dial the cloud, the preferred address first.
    pub ways: &'static [&'static str],
    /// How many of a hundred lives of the cloud end at one of its commits.
    pub crashes: u32,
    /// Whether one more node lies.
    pub liar: bool,
}

impl Shape {
    /// The rules for the driver.
    pub fn policy(&self) -> Policy {
        // Whoever may be elected can do all to a shared driver's volumes.
        let honest = NODES.iter().filter_map(|node| node.parse().ok()).collect();
        let controllers = Some(Controllers::Of(NodeSet::new(honest)));
        Policy { scope: Some(self.scope), controllers, ..Policy::new(None) }
    }
}
