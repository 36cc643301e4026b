//! The shape of a run's fleet, and the rules of its driver.

use std::time::Duration;

use cloud::state::node_set::NodeSet;
use cloud::state::policy::{Controllers, KeyKind, Policy, Scope};
use cloud::state::quotas::Quotas;
use drivers::testdriver::TOPOLOGY_KEY;
use proto::names::DriverName;

use super::dice::Dice;
use super::keys::NODES;

/// The one driver of a fleet.
pub const DRIVER: &str = "test.edge-csi.io";

/// The volumes and snapshots that a node may have where there is a liar, who lists more. No honest
/// node has half as many.
const VOLUMES: u64 = 100;

/// The name of the one driver.
///
/// # Errors
/// None: it is one.
pub fn driver_name() -> anyhow::Result<DriverName> {
    Ok(DRIVER.parse()?)
}

/// The shape of a fleet.
#[derive(Clone, Copy)]
pub struct Shape {
    /// How many nodes, without the liar.
    pub nodes: usize,
    /// How far the driver's volumes reach.
    pub scope: Scope,
    /// Where edges dial the cloud, the preferred address first.
    pub endpoints: &'static [&'static str],
    /// How many of a hundred lives of the cloud end at one of its commits.
    pub crashes: u32,
    /// After how long without a call the cloud ends an HTTP/2 connection.
    pub idle: Duration,
    /// Whether lists and sums of capacities use answers of nodes that are recent, as among many
    /// nodes.
    pub is_like_many: bool,
    /// How many clouds there are, of which one leads.
    pub replicas: usize,
    /// Whether two csi-edges may run on one machine. They keep no state then, so that none of them
    /// answers a challenge.
    pub are_doubled: bool,
    /// One more node that lies, in some runs.
    pub liar: Option<Lying>,
}

/// What the operator knows of a liar, and when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Lying {
    /// Whether the operator's `nodes` name it.
    pub is_allowed: bool,
    /// Whether it links from the start; otherwise when the cloud knows all honest nodes.
    pub is_early: bool,
    /// Whether the operator declared the driver's topology key.
    pub is_declared: bool,
}

impl Lying {
    /// Draws one beside so many honest nodes.
    pub(super) fn draw(dice: &mut Dice, nodes: usize) -> Self {
        let is_allowed = dice.chance(75);
        let is_early = dice.chance(50);
        // A key that nobody declared tells nodes apart only if two honest nodes said it before.
        let is_declared = is_early || nodes < 2 || dice.chance(50);
        Self { is_allowed, is_early, is_declared }
    }
}

impl Shape {
    /// The rules for the driver.
    pub fn policy(&self) -> Policy {
        // A node that `nodes` names counts before it has linked, so only those that will are named.
        let names = || NODES.iter().take(self.nodes);
        let honest = || NodeSet::new(names().filter_map(|node| node.parse().ok()).collect());
        let is_excluded = self.liar.is_some_and(|liar| !liar.is_allowed);
        let is_declared = self.liar.is_some_and(|liar| liar.is_declared);
        let default = Policy::new(None);
        Policy {
            scope: Some(self.scope),
            // Whoever may be elected can do all to a shared driver's volumes.
            controllers: Some(Controllers::Of(honest())),
            nodes: is_excluded.then(honest),
            topology: is_declared
                .then(|| (TOPOLOGY_KEY.to_owned(), KeyKind::Node))
                .into_iter()
                .collect(),
            always_asked: if self.is_like_many { 0 } else { default.always_asked },
            ..default
        }
    }

    /// The quotas of a node.
    pub fn quotas(&self) -> Quotas {
        match self.liar {
            Some(_) => Quotas { volumes: VOLUMES, ..Quotas::default() },
            None => Quotas::default(),
        }
    }

    /// Whether volumes may be made at the liar, and calls about them come to it.
    pub fn is_liar_a_place(&self) -> bool {
        self.scope == Scope::Node && self.liar.is_some_and(|liar| liar.is_allowed)
    }
}
