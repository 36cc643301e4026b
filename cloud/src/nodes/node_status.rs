//! The status of a node for one driver: what routing and elections decide by.

use std::time::Duration;

use proto::names::{DriverName, NodeName};

use super::driver_health::DriverStatus;
use super::links::Links;
use crate::state::clock::now;
use crate::state::known::State;

/// The status of a node for one driver at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// True if the node has a link.
    pub linked: bool,
    /// The driver at the node, by the node's word.
    pub driver: DriverStatus,
    /// The time since the node lost its link, at most since csi-cloud leads. `None` if it has one.
    pub away: Option<Duration>,
    /// True if an operator removed the node.
    pub removed: bool,
    /// The reason why the node is set apart for the driver, and since when. `None` if it is not.
    pub apart: Option<(String, Duration)>,
}

impl NodeStatus {
    /// The status of `node` for `driver` now.
    pub(crate) fn new(state: &State, links: &Links, node: &NodeName, driver: &DriverName) -> Self {
        let link = links.now(node);
        let apart = state.apart().why(node, driver).map(|apart| {
            let lasts = Duration::from_millis(now().saturating_sub(apart.since));
            (apart.reason.to_string(), lasts)
        });
        Self {
            linked: link.is_some(),
            driver: link.as_ref().map(|link| link.health.status(driver)).unwrap_or_default(),
            away: match link {
                Some(_) => None,
                None => Some(links.away(node).unwrap_or_default()),
            },
            removed: state.is_removed(node),
            apart,
        }
    }

    /// True if the node has a link and is not set apart.
    pub fn is_free(&self) -> bool {
        self.linked && self.apart.is_none()
    }

    /// True if the node can carry out a create now.
    pub fn is_able(&self) -> bool {
        self.is_free() && !matches!(self.driver, DriverStatus::Down(_))
    }
}
