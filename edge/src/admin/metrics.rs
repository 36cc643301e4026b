//! The figures that Prometheus reads, made anew at each scrape.
//!
//! Labels are bounded: the drivers of a node, and fixed sets of words.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use proto::control::health::HealthState;
use proto::host::peer_log;
use tracing::warn;

use super::state::AdminState;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DriverHealth {
    driver: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPeer {
    peer: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDriver {
    driver: String,
}

/// The states of health, and their words.
const STATES: [(HealthState, &str); 4] = [
    (HealthState::Up, "up"),
    (HealthState::Starting, "starting"),
    (HealthState::Gone, "gone"),
    (HealthState::Failing, "failing"),
];

impl AdminState {
    /// All metrics as text.
    pub(super) fn metrics(&self) -> String {
        let mut registry = Registry::with_prefix("csi_edge");
        let mut gauge = |name, help, value: i64| {
            let gauge: Gauge = Gauge::default();
            gauge.set(value);
            registry.register(name, help, gauge);
        };
        let linked = i64::from(self.linked.borrow().is_some());
        gauge("linked", "Whether there is a link to csi-cloud", linked);
        let not_taken = self.not_taken.borrow().as_ref().map_or(0, |report| report.total);
        let not_taken = i64::try_from(not_taken).unwrap_or(i64::MAX);
        gauge("direct_not_taken", "Direct volumes that no runtime took as a device", not_taken);
        if let Some(end) = self.identity.as_ref().and_then(|identity| identity.validity()) {
            let left = seconds(end.not_after).saturating_sub(seconds(SystemTime::now()));
            gauge("certificate_seconds", "Until the node's certificate ends", left);
        }
        let refused: Counter = Counter::default();
        refused.inc_by(self.executor.deletes_refused());
        let help = "Deletes of csi-cloud that were refused because they were too many";
        registry.register("deletes_refused", help, refused);
        register_log(&mut registry);
        self.register_drivers(&mut registry);
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &registry) {
            warn!(%error, "the metrics cannot be written");
        }
        text
    }

    fn register_drivers(&self, registry: &mut Registry) {
        let health = Family::<DriverHealth, Gauge>::default();
        let in_flight = Family::<OfDriver, Gauge>::default();
        for driver in self.drivers.all().iter() {
            let is = driver.health().state;
            for (state, word) in STATES {
                let label = DriverHealth { driver: driver.name.to_string(), state: word };
                health.get_or_create(&label).set(i64::from(is == state));
            }
            in_flight.get_or_create(&OfDriver { driver: driver.name.to_string() }).set(0);
        }
        for run in self.executor.running() {
            in_flight.get_or_create(&OfDriver { driver: run.driver.to_string() }).inc();
        }
        let help = "1 for the state that a driver is in, 0 for the others";
        registry.register("driver_health", help, health);
        registry.register("calls_in_flight", "Calls in flight at a driver", in_flight);
    }
}

fn register_log(registry: &mut Registry) {
    let lines = Family::<OfPeer, Counter>::default();
    for (peer, suppressed) in peer_log::suppressed() {
        lines.get_or_create(&OfPeer { peer }).inc_by(suppressed);
    }
    registry.register("log_lines_suppressed", "Lines about peers that were left out", lines);
}

/// Seconds since 1970.
fn seconds(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(since).unwrap_or(i64::MAX)
}
