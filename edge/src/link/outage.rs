//! A time without a link: how long it lasts, how endpoints are dialed then, and what is logged.
//!
//! For five minutes endpoints are dialed as the cloud's cap says, so that a restart of csi-cloud
//! costs seconds. After that an edge may be alone for days, behind a metered link and with its log
//! on an SD card: the endpoints are dialed in rounds, and the log has a line a minute.

use std::time::Duration;

use parking_lot::Mutex;
use proto::link::NodeNetwork;
use proto::link::routes::Routes;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep_until};

/// Without a link for this long, endpoints are dialed in rounds.
const LONG: Duration = Duration::from_secs(300);
/// The delays between rounds in seconds: a link is found within a minute, and 1.5 MB are dialed an
/// hour.
const ROUND_SECONDS: std::ops::Range<f64> = 22.0..45.0;
/// The interval of looks for a changed route.
const ROUTE_LOOK: Duration = Duration::from_secs(5);
/// The interval of lines about failed dials.
const LINE: Duration = Duration::from_secs(60);
/// The leaders' names for which dialing begins anew in one outage.
const LEADERS_MAX: usize = 16;

/// The outage that lasts; empty while there is a link.
#[derive(Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    rounds: usize,
    routes: Option<Routes>,
    leaders: Vec<Vec<String>>,
}

impl Outage {
    /// Notes that a link is looked for.
    pub(super) fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Begins anew: endpoints are dialed without long delays again.
    fn anew(&mut self) {
        self.since = Some(Instant::now());
        self.routes = None;
    }

    /// Begins anew if these are the endpoints of a leader that was not named before.
    pub(super) fn named(&mut self, leader: &[String]) {
        if self.leaders.len() < LEADERS_MAX && self.leaders.iter().all(|named| named != leader) {
            self.leaders.push(leader.to_owned());
            self.anew();
        }
    }

    /// Notes that there is a link.
    pub(super) fn ended(&mut self) {
        *self = Self::default();
    }

    /// When endpoints are dialed in rounds.
    pub(super) fn long_at(&self) -> Instant {
        self.since.unwrap_or_else(Instant::now) + LONG
    }

    /// True if endpoints are dialed in rounds.
    pub(super) fn is_long(&self) -> bool {
        self.long_at() <= Instant::now()
    }

    /// Waits for the next round, and returns its number. `None` if a route has changed meanwhile,
    /// so that dialing begins anew.
    pub(super) async fn round(
        &mut self,
        network: &NodeNetwork,
        dice: &mut StdRng,
    ) -> Option<usize> {
        let delay = Duration::from_secs_f64(dice.random_range(ROUND_SECONDS));
        let end = Instant::now() + delay;
        while Instant::now() < end {
            if self.routes.get_or_insert_with(|| network.routes()).have_changed() {
                tracing::info!("this node's routes have changed; dialing at once");
                self.anew();
                return None;
            }
            sleep_until(end.min(Instant::now() + ROUTE_LOOK)).await;
        }
        self.rounds += 1;
        Some(self.rounds)
    }
}

/// Which failed dials are logged: the first one of each endpoint, and then one a minute.
#[derive(Default)]
pub(super) struct FailureLog(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    endpoints: Vec<usize>,
    last: Option<Instant>,
    unlogged: u64,
}

impl FailureLog {
    /// Notes that a dial of this endpoint failed. If that is to be logged, returns how many failed
    /// dials were not logged before it.
    pub(super) fn failed(&self, endpoint: usize) -> Option<u64> {
        let mut failures = self.0.lock();
        let is_first = !failures.endpoints.contains(&endpoint);
        if !is_first && failures.last.is_some_and(|last| last.elapsed() < LINE) {
            failures.unlogged += 1;
            return None;
        }
        if is_first {
            failures.endpoints.push(endpoint);
        }
        failures.last = Some(Instant::now());
        Some(std::mem::take(&mut failures.unlogged))
    }

    /// Notes that there is a link: the next failure of each endpoint is logged.
    pub(super) fn linked(&self) {
        self.0.lock().endpoints.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_failure_of_each_endpoint_is_logged_and_then_one_a_minute() {
        let log = FailureLog::default();
        assert_eq!([log.failed(0), log.failed(1), log.failed(0)], [Some(0), Some(0), None]);
        tokio::time::advance(LINE / 2).await;
        assert_eq!(log.failed(1), None);
        tokio::time::advance(LINE / 2).await;
        assert_eq!([log.failed(1), log.failed(0)], [Some(2), None]);
        log.linked();
        assert_eq!(log.failed(0), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_begins_anew_once_in_an_outage() {
        let mut outage = Outage::default();
        outage.begin();
        tokio::time::advance(LONG).await;
        assert!(outage.is_long());
        let [one, other] = ["wss://a:1", "wss://b:1"].map(|url| vec![url.to_owned()]);
        outage.named(&one);
        assert!(!outage.is_long());
        tokio::time::advance(LONG).await;
        outage.named(&one);
        assert!(outage.is_long(), "it is known already");
        outage.named(&other);
        assert!(!outage.is_long());
    }
}
