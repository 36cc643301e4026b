//! Decides how a driver is, from what happens at one of its sockets. It does no I/O.
//!
//! Three failures in a row make a driver `gone` or `failing`. What a driver answers about one thing
//! is no failure; only Probe and the connection decide. A failure within a second of a
//! counted one is part of that one. A driver that was down is up after a time without a failure.
//! Nothing of it is durable. It uses no other room.

use std::collections::BTreeSet;
use std::time::Duration;

use proto::control::health::{Health, HealthState};
use tokio::time::Instant;

/// So many failures in a row make a driver down.
const DOWN_AFTER: u32 = 3;
/// Failures within this time of a counted one do not count: they have one cause.
const ONE_CAUSE: Duration = Duration::from_secs(1);
/// A driver that was down is up after so long without a failure.
const CALM: Duration = Duration::from_secs(30);

/// A shared driver that answers UNAVAILABLE about so many things in a row is failing.
const MANY: usize = 3;

/// The longest reason, in characters.
const LONGEST: usize = 512;

/// Failures in a row.
#[derive(Clone, Debug, Default)]
struct Row {
    count: u32,
    last: Option<Instant>,
}

impl Row {
    fn add(&mut self, now: Instant) {
        if self.last.is_none_or(|last| now.duration_since(last) >= ONE_CAUSE) {
            self.count = self.count.saturating_add(1);
            self.last = Some(now);
        }
    }

    fn is_down(&self) -> bool {
        self.count >= DOWN_AFTER
    }
}

/// The health of a driver at one socket.
#[derive(Clone, Debug)]
pub struct HealthTracker {
    state: HealthState,
    since: Instant,
    why: String,
    /// Attempts to connect that failed.
    attempts: Row,
    /// Answers that were failures.
    answers: Row,
    /// The reason why it is not ready, by its own word; none if it is ready.
    not_ready: Option<String>,
    /// The reason why it is not known what it can do; none if it is known.
    unknown: Option<String>,
    /// What it answered UNAVAILABLE about, and no other answer since.
    refused: BTreeSet<String>,
    /// The time of the latest of those.
    refused_at: Option<Instant>,
    /// It was reached at least once.
    was_reached: bool,
    /// It was down, and has not failed since then.
    calm_since: Option<Instant>,
}

impl HealthTracker {
    /// A driver that was never reached.
    pub fn new(now: Instant) -> Self {
        Self {
            state: HealthState::Starting,
            since: now,
            why: "it was not reached yet".into(),
            attempts: Row::default(),
            answers: Row::default(),
            not_ready: None,
            unknown: None,
            refused: BTreeSet::new(),
            refused_at: None,
            was_reached: false,
            calm_since: None,
        }
    }

    /// Nobody was there.
    pub fn unreachable(&mut self, now: Instant, why: &str) {
        self.attempts.add(now);
        self.restart_calm(now);
        if self.attempts.is_down() {
            // What it answered before says nothing of the next process.
            self.answers = Row::default();
            self.not_ready = None;
            self.unknown = None;
        }
        self.settle(now, why);
    }

    /// The driver is connected and has introduced itself. That alone ends no row of failures,
    /// because a driver that dies of each call gets that far too.
    pub fn connected(&mut self, now: Instant, is_ready: bool) {
        self.was_reached = true;
        self.set_ready(is_ready);
        if self.attempts.is_down() {
            self.calm_since = Some(now);
        }
        self.attempts = Row::default();
        self.settle(now, "");
    }

    /// It answered, or broke off, in a way that says that it is broken.
    pub fn failed(&mut self, now: Instant, why: &str) {
        self.answers.add(now);
        self.restart_calm(now);
        self.settle(now, why);
    }

    /// It answered a call, and not UNAVAILABLE.
    pub fn answered(&mut self, now: Instant) {
        self.refused.clear();
        self.end_row(now);
    }

    /// A shared driver answered UNAVAILABLE about this. For one volume that says nothing of the
    /// driver; for three in a row another node may be better off.
    pub fn refused(&mut self, now: Instant, about: &str, why: &str) {
        if self.refused.len() < MANY {
            self.refused.insert(about.to_owned());
        }
        self.refused_at = Some(now);
        self.settle(now, why);
    }

    fn end_row(&mut self, now: Instant) {
        if self.answers.is_down() {
            self.calm_since = Some(now);
        }
        self.answers = Row::default();
        self.settle(now, "");
    }

    fn is_refusing(&self) -> bool {
        self.refused.len() >= MANY
    }

    /// It has introduced itself, or why it has not.
    pub fn introduced(&mut self, now: Instant, unknown: Option<&str>) {
        self.unknown = unknown.map(str::to_owned);
        self.settle(now, "");
    }

    /// It answered whether it is ready.
    pub fn probed(&mut self, now: Instant, is_ready: bool) {
        self.set_ready(is_ready);
        self.end_row(now);
    }

    /// Time has passed.
    pub fn look(&mut self, now: Instant) {
        self.settle(now, "");
    }

    /// The next time at which [`HealthTracker::look`] may change something.
    pub fn due(&self) -> Option<Instant> {
        let refused = self.refused_at.filter(|_| !self.refused.is_empty());
        let since = [self.calm_since, refused].into_iter().flatten().min();
        since.map(|since| since + CALM)
    }

    /// True if an answer that is no failure would change nothing now.
    pub fn is_calm(&self) -> bool {
        self.answers.count == 0 && self.refused.is_empty()
    }

    /// True if it was reached at least once.
    pub fn was_reached(&self) -> bool {
        self.was_reached
    }

    /// The health, as it is reported.
    pub fn health(&self, now: Instant) -> Health {
        let seconds = now.saturating_duration_since(self.since).as_secs();
        Health { state: self.state, seconds, why: self.why.clone() }
    }

    /// The state and reason, which are reported when they change.
    pub fn reported(&self) -> (HealthState, &str) {
        (self.state, &self.why)
    }

    fn set_ready(&mut self, is_ready: bool) {
        self.not_ready = (!is_ready).then(|| "it says that it is not ready (Probe)".to_owned());
    }

    fn restart_calm(&mut self, now: Instant) {
        if let Some(since) = &mut self.calm_since {
            *since = now;
        }
    }

    /// Puts the state in force; `why` is the reason of the failure that just happened.
    fn settle(&mut self, now: Instant, why: &str) {
        if self.calm_since.is_some_and(|since| now.duration_since(since) >= CALM) {
            self.calm_since = None;
        }
        if self.refused_at.is_some_and(|at| now.duration_since(at) >= CALM) {
            // Nobody asks it any more, so it gets another chance.
            self.refused.clear();
            self.refused_at = None;
        }
        let was = self.state;
        self.state = self.now_is();
        if self.state != was {
            self.since = now;
        }
        self.why = match (self.state, self.not_ready.as_ref().or(self.unknown.as_ref())) {
            (HealthState::Up, _) => String::new(),
            (HealthState::Starting, Some(why)) => why.chars().take(LONGEST).collect(),
            (HealthState::Starting, None) if self.calm_since.is_some() => {
                format!("it was down; it is up after {CALM:?} without a failure")
            }
            // A failure of the other kind leaves the reason of the state.
            (state, _) if why.is_empty() || (state == was && !self.is_reason_of(state)) => {
                std::mem::take(&mut self.why)
            }
            // It may hold a driver's words.
            _ => why.chars().take(LONGEST).collect(),
        };
    }

    /// True if the latest failure is of the kind that the state is about.
    fn is_reason_of(&self, state: HealthState) -> bool {
        match state {
            HealthState::Gone => self.attempts.last >= self.answers.last,
            HealthState::Failing if self.is_refusing() => true,
            HealthState::Failing => self.answers.last >= self.attempts.last,
            HealthState::Up | HealthState::Starting => true,
        }
    }

    fn now_is(&self) -> HealthState {
        if self.attempts.is_down() {
            HealthState::Gone
        } else if self.answers.is_down() || self.is_refusing() {
            HealthState::Failing
        } else if !self.was_reached
            || self.not_ready.is_some()
            || self.unknown.is_some()
            || self.calm_since.is_some()
        {
            HealthState::Starting
        } else {
            HealthState::Up
        }
    }
}

#[cfg(test)]
mod tests;
