//! The calls that came to drivers, with the callers' calls that they belong to.

use std::time::Duration;

use drivers::testdriver::Received;
use http::HeaderValue;
use proto::http2::forward;
use tokio::time::Instant;

use super::model::World;
use super::record::NUMBER;
use super::replicas::RUN;

/// By so much the edge is earlier than the driver at the end of a call. What is left is given in
/// whole units, and takes some time to get there.
const GRACE: Duration = Duration::from_millis(1100);
/// gRPC writes a timeout in eight digits, so from this one on it is given in whole seconds.
const IN_SECONDS: Duration = Duration::from_millis(100_000_000);

/// One call at a driver.
pub(super) struct Run {
    pub(super) node: usize,
    pub(super) received: Received,
    /// The number of the caller's call.
    pub(super) number: Option<usize>,
}

impl Run {
    pub(super) fn ended(&self) -> Option<Instant> {
        self.received.ended.map(|(at, _)| at)
    }

    /// The time at which the edge ends it; none if it never does. The driver's own deadline is a
    /// second later.
    pub(super) fn given_until(&self) -> Option<Instant> {
        let now = Instant::now();
        let deadline = forward::deadline(&self.received.headers).ok()??;
        let left = deadline.saturating_duration_since(now);
        Some(self.received.at + left + cut_off(left) - GRACE)
    }

    /// The cloud's life that sent it, with several clouds.
    pub(super) fn cloud(&self) -> Option<&HeaderValue> {
        self.received.headers.get(RUN)
    }
}

/// How much of a timeout may not have been given.
fn cut_off(timeout: Duration) -> Duration {
    if timeout >= IN_SECONDS { Duration::from_secs(1) } else { Duration::ZERO }
}

/// All of them, node after node.
pub(super) fn runs(world: &World) -> Vec<Run> {
    let mut runs = Vec::new();
    for (node, driver) in world.fleet.drivers.iter().enumerate() {
        for received in driver.calls() {
            let number =
                received.headers.get(NUMBER).and_then(|value| value.to_str().ok()?.parse().ok());
            runs.push(Run { node, received, number });
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_timeout_of_nine_digits_is_cut_to_seconds() {
        assert_eq!(cut_off(Duration::from_millis(99_999_999)), Duration::ZERO);
        assert_eq!(cut_off(Duration::from_secs(100_000)), Duration::from_secs(1));
    }
}
