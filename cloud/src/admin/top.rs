//! `csi-cloud top`: everything at a glance.

use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::calls::CallView;
use crate::telemetry::calls::Totals;
use crate::telemetry::metrics::DriverNow;

/// The path of the command.
pub(crate) const PATH: &str = "/top";

/// The most calls that are shown.
const GLANCE: usize = 20;

/// Everything at a glance. Counts of calls and commits are since csi-cloud began.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopView {
    /// Nodes that ever linked.
    pub nodes: usize,
    /// Nodes that have a link.
    pub nodes_linked: usize,
    /// Changes that wait to become durable.
    pub store_queue: usize,
    /// By driver.
    pub drivers: Vec<TopDriver>,
    /// The oldest calls in flight, 20 at most.
    pub calls: Vec<CallView>,
}

/// A driver at a glance.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopDriver {
    /// Its name.
    pub name: DriverName,
    /// The number of nodes that have it.
    pub nodes: usize,
    /// The number of them that are linked.
    pub nodes_linked: usize,
    /// The number of known volumes, snapshots and groups.
    pub homes: usize,
    /// The number of creates with an unknown outcome.
    pub intents_open: usize,
    /// Calls in flight.
    pub calls_in_flight: usize,
    /// Calls that were answered.
    pub calls_answered: u64,
    /// Calls that were answered with another code than OK.
    pub calls_failed: u64,
    /// The sum of the durations of answered calls, in ms.
    pub calls_ms: u64,
}

impl AdminState {
    /// Everything at a glance.
    pub(super) fn top(&self) -> TopView {
        let now = self.figures();
        let totals = self.calls.totals();
        let drivers = now.drivers.into_iter().map(|driver| {
            let totals = totals.get(&driver.driver).copied().unwrap_or_default();
            view(driver, totals)
        });
        TopView {
            nodes: now.nodes.0,
            nodes_linked: self.links.linked().len(),
            store_queue: now.queue,
            drivers: drivers.collect(),
            calls: self.oldest_calls(GLANCE),
        }
    }
}

fn view(driver: DriverNow, totals: Totals) -> TopDriver {
    let in_flight: u64 = driver.in_flight.iter().map(|(_, calls)| calls).sum();
    TopDriver {
        name: driver.driver,
        nodes: driver.nodes.0,
        nodes_linked: driver.nodes.1,
        homes: driver.homes,
        intents_open: driver.intents,
        calls_in_flight: usize::try_from(in_flight).unwrap_or(usize::MAX),
        calls_answered: totals.calls,
        calls_failed: totals.failed,
        calls_ms: u64::try_from(totals.time.as_millis()).unwrap_or(u64::MAX),
    }
}
