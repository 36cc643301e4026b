//! The figures that Prometheus reads.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::host::clock;
use proto::host::peer_log;
use proto::link::endpoint::Transport;
use proto::link::quic;
use proto::names::certificate::Validity;
use proto::names::{DriverName, NodeName};

use crate::admin::admin_state::{AdminState, InFlight, count_linked, nodes_with};
use crate::csi::dispatch::MAX_FRONT_CALLS;
use crate::nodes::cordon;
use crate::nodes::driver_health;
use crate::nodes::driver_health::STATES;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::policy::{Policy, Scope};
use crate::state::set_apart::ReasonKind;
use crate::telemetry::calls::Stage;
use crate::telemetry::metrics::{DriverNow, Now};

/// The links whose edge's certificate ends within this time are counted.
const WEEK: Duration = Duration::from_secs(7 * 86_400);

impl AdminState {
    /// All metrics as text.
    pub(super) fn metrics(&self) -> String {
        self.calls.metrics.text(&self.figures())
    }

    /// The figures of this moment.
    pub(super) fn figures(&self) -> Now {
        let linked = self.linked();
        let in_flight = self.in_flight();
        let links = self.links.by_transport();
        let count = |transport: Transport| {
            let scheme = transport.scheme();
            (scheme, links.get(scheme).copied().unwrap_or(0))
        };
        let drivers = self.policies.keys();
        Now {
            nodes: self.store.read(|state| (state.nodes().len(), count_removed(state))),
            links: Transport::ALL.map(count).into(),
            link_ups: self.links.made(),
            link_looks_untrusted: quic::untrusted_looks(),
            not_taken: self.not_taken(),
            quota_refusals: self.store.refusals().counts(),
            log_suppressed: peer_log::suppressed().into(),
            records_bytes: (
                self.store.read(|state| state.usage_of_all().bytes),
                self.store.quotas().store_bytes,
            ),
            certificates: self.certificates(),
            certificates_shared: cordon::shared_certificates(&self.links).len(),
            links_ending: self.links.ending(SystemTime::now() + WEEK),
            clock_doubted: clock::is_doubted(),
            store_older: self.store.read(|state| state.starts().lack().is_some()),
            queue: self.store.queued(),
            replica: self.replica_now(),
            drivers: drivers.map(|driver| self.driver_now(driver, &linked, &in_flight)).collect(),
        }
    }

    /// The seconds until the ends of csi-cloud's certificate and its CA's.
    fn certificates(&self) -> Vec<(&'static str, i64)> {
        let Some(credentials) = &self.credentials else { return Vec::new() };
        let now = seconds(SystemTime::now());
        let left = |validity: Validity| seconds(validity.not_after).saturating_sub(now);
        let ends = [("cloud", credentials.validity()), ("ca", credentials.ca_validity())];
        ends.into_iter().filter_map(|(of, end)| Some((of, left(end?)))).collect()
    }

    /// Direct volumes that no runtime took, and the nodes with some, without removed nodes.
    fn not_taken(&self) -> (u64, usize) {
        let mut totals = self.store.not_taken().totals();
        self.store.read(|state| totals.retain(|node, _| !state.is_removed(node)));
        (totals.values().fold(0, |sum, total| sum.saturating_add(*total)), totals.len())
    }

    fn driver_now(
        &self,
        driver: &DriverName,
        linked: &HashSet<NodeName>,
        in_flight: &InFlight,
    ) -> DriverNow {
        let stages = in_flight.get(driver);
        let calls = |stage| stages.and_then(|stages| stages.get(&stage)).copied().unwrap_or(0);
        let in_flight = Stage::ALL.map(|stage| (stage.name(), calls(stage) as u64));
        // Not within `read`, which it calls too.
        let is_shared = self.links.scope(driver) == Some(Scope::Shared);
        self.store.read(|state| {
            let of = state.driver(driver);
            DriverNow {
                driver: driver.clone(),
                nodes: of.map_or((0, 0), |of| (nodes_with(of).count(), count_linked(of, linked))),
                homes: of.map_or(0, |of| of.homes().len()),
                homes_unconfirmed: of
                    .filter(|_| !is_shared)
                    .map_or(0, |of| self.unconfirmed_count(driver, of)),
                intents: of.map_or(0, DriverState::open_intents),
                in_flight: in_flight.into(),
                limit: MAX_FRONT_CALLS,
                set_apart: set_apart(state, driver),
                health: of.map_or_else(Vec::new, |of| self.health_counts(driver, of)),
            }
        })
    }

    /// The number of homes that only their own node says. The only node of a driver has all of it.
    fn unconfirmed_count(&self, driver: &DriverName, of: &DriverState) -> usize {
        if of.nodes().len() < 2 {
            return 0;
        }
        let default = Policy::new(None);
        let policy = self.links.authority().policy(driver).unwrap_or(&default);
        of.homes().values().filter(|home| !policy.is_confirmed(home)).count()
    }

    /// The number of linked nodes by the health of a driver there.
    fn health_counts(&self, driver: &DriverName, of: &DriverState) -> Vec<(&'static str, usize)> {
        let mut counts = STATES.map(|state| (state, 0));
        let reported = nodes_with(of).filter_map(|node| self.links.driver_health(node, driver));
        for health in reported {
            for (_, count) in counts.iter_mut().filter(|(state, _)| *state == health.state) {
                *count += 1;
            }
        }
        counts.map(|(state, count)| (driver_health::name(state), count)).into()
    }
}

/// The number of nodes that are set apart for a driver, by kind of reason.
fn set_apart(state: &State, driver: &DriverName) -> Vec<(&'static str, usize)> {
    let mut counts = ReasonKind::ALL.map(|kind| (kind.name(), 0));
    for (node, _) in state.apart().for_driver(driver) {
        let kinds: HashSet<_> =
            state.apart().of(node, driver).map(|apart| apart.reason.kind().name()).collect();
        for (_, count) in counts.iter_mut().filter(|(kind, _)| kinds.contains(kind)) {
            *count += 1;
        }
    }
    counts.into()
}

fn count_removed(state: &State) -> usize {
    state.nodes().values().filter(|node| node.removed.is_some()).count()
}

/// Seconds since 1970.
fn seconds(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(since).unwrap_or(i64::MAX)
}
