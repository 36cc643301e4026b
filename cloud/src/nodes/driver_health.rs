//! The health of the drivers at a node, as the node's edge reports it.
//!
//! It is in memory and ends with the link. It counts for that node alone, so a liar harms itself.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::control::health::{Health, HealthState};
use proto::control::hello::Driver;
use proto::names::DriverName;
use tokio::time::Instant;

/// A driver that is starting for longer counts as down. One that was down is starting for 30 s
/// after it answers again.
const STARTING: Duration = Duration::from_secs(60);
/// The longest reason that is kept of a driver, in bytes.
const LONGEST: usize = 256;

/// The health of a driver at one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverHealth {
    /// The edge's word.
    pub state: HealthState,
    /// The reason why it is not up, for an operator; empty if it is up.
    pub why: Box<str>,
    /// The time in this state before the report.
    before: Duration,
    /// The time of the report.
    reported_at: Instant,
}

/// The status of a driver at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverStatus {
    /// The node has no link, or has reported nothing yet on it. The driver counts as up.
    #[default]
    Unknown,
    /// It answers.
    Up,
    /// It does not answer, for this time; zero while it starts.
    Down(Duration),
}

/// The last report of a link's edge.
#[derive(Default)]
pub(super) struct ReportedHealth(Mutex<Option<HealthReport>>);

struct HealthReport {
    reported_at: Instant,
    /// As many as the quota of drivers allows.
    drivers: Box<[(DriverName, DriverHealth)]>,
}

impl DriverHealth {
    fn new(state: HealthState, why: &str, before: Duration) -> Self {
        let end = (0..=LONGEST.min(why.len())).rev().find(|end| why.is_char_boundary(*end));
        let why = why.get(..end.unwrap_or_default()).unwrap_or_default().into();
        Self { state, why, before, reported_at: Instant::now() }
    }

    /// The health that an edge reports now.
    pub(crate) fn reported(health: &Health) -> Self {
        Self::new(health.state, &health.why, Duration::from_secs(health.seconds))
    }

    /// The health in an edge's report. An older edge reports none: a driver that answers is up.
    fn of(driver: &Driver, last: Option<&Self>) -> Self {
        if let Some(health) = &driver.health {
            return Self::reported(health);
        }
        let presumed = match driver.answers.is_empty() {
            true => Self::new(HealthState::Starting, "it has not answered yet", Duration::ZERO),
            false => Self::new(HealthState::Up, "", Duration::ZERO),
        };
        last.filter(|last| last.state == presumed.state).cloned().unwrap_or(presumed)
    }

    /// A driver that the edge does not name any more.
    fn unnamed(reported_at: Instant) -> Self {
        let why = "csi-edge does not name it any more";
        Self { reported_at, ..Self::new(HealthState::Gone, why, Duration::ZERO) }
    }

    /// True if new volumes may go to it.
    pub fn is_up(&self) -> bool {
        self.state.is_up()
    }

    /// The time in this state.
    pub fn lasts(&self) -> Duration {
        self.before.saturating_add(self.reported_at.elapsed())
    }

    /// The time for which it has been down; none if it is not.
    pub fn down(&self) -> Option<Duration> {
        match self.state {
            HealthState::Up => None,
            HealthState::Starting => self.lasts().checked_sub(STARTING),
            HealthState::Gone | HealthState::Failing => Some(self.lasts()),
        }
    }

    /// The state's name, as on the wire.
    pub fn name(&self) -> &'static str {
        name(self.state)
    }
}

/// All states, in the order in which they are shown.
pub const STATES: [HealthState; 4] =
    [HealthState::Up, HealthState::Starting, HealthState::Gone, HealthState::Failing];

/// The name of a state, as on the wire.
pub fn name(state: HealthState) -> &'static str {
    match state {
        HealthState::Up => "up",
        HealthState::Starting => "starting",
        HealthState::Gone => "gone",
        HealthState::Failing => "failing",
    }
}

impl ReportedHealth {
    /// Keeps an edge's report of drivers that have a front.
    pub(super) fn set(&self, drivers: &[Driver], has_front: impl Fn(&DriverName) -> bool) {
        let mut report = self.lock();
        let last = |name: &DriverName| report.as_ref()?.of(name);
        let served = drivers.iter().filter(|driver| has_front(&driver.name));
        let drivers = served
            .map(|driver| (driver.name.clone(), DriverHealth::of(driver, last(&driver.name))))
            .collect();
        *report = Some(HealthReport { reported_at: Instant::now(), drivers });
    }

    /// The health of a driver; none before the first report.
    pub(super) fn of(&self, driver: &DriverName) -> Option<DriverHealth> {
        let report = self.lock();
        let report = report.as_ref()?;
        Some(
            report.of(driver).cloned().unwrap_or_else(|| DriverHealth::unnamed(report.reported_at)),
        )
    }

    /// The status of a driver.
    pub(super) fn status(&self, driver: &DriverName) -> DriverStatus {
        let report = self.lock();
        let Some(report) = report.as_ref() else { return DriverStatus::Unknown };
        match report.of(driver) {
            Some(health) if health.is_up() => DriverStatus::Up,
            Some(health) => DriverStatus::Down(health.down().unwrap_or_default()),
            None => DriverStatus::Down(report.reported_at.elapsed()),
        }
    }

    /// True if a driver is up. Before the edge has said anything, it counts as up.
    pub(super) fn is_up(&self, driver: &DriverName) -> bool {
        !matches!(self.status(driver), DriverStatus::Down(_))
    }

    fn lock(&self) -> MutexGuard<'_, Option<HealthReport>> {
        self.0.lock()
    }
}

impl HealthReport {
    fn of(&self, driver: &DriverName) -> Option<&DriverHealth> {
        self.drivers.iter().find(|(name, _)| name == driver).map(|(_, health)| health)
    }
}

#[cfg(test)]
mod tests;
