//! Whether csi-cloud is so late with its work that it takes no new links.
//!
//! What a link that comes up costs is its handshake, about a millisecond of CPU. Refused before
//! that, it costs next to nothing, and its edge comes back later. So a csi-cloud with more to do
//! than its cores can do keeps the links that it has, and the number of links grows to what it can
//! carry.

use std::sync::Arc;
use std::time::Duration;

use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// How often it is measured how late work begins.
const EVERY: Duration = Duration::from_millis(100);
/// As late as this, csi-cloud is overloaded. A whole fleet that links at once makes it a quarter of
/// a second late.
const LATE: Duration = Duration::from_millis(500);
/// It is no longer overloaded when it is no later than this.
const EASED: Duration = Duration::from_millis(250);
/// Each measurement counts for one part in so many of the mean, so that a process that was stopped
/// once does not count as overloaded.
const WEIGHT: u32 = 8;

/// Whether csi-cloud is overloaded. Clones share it.
#[derive(Clone)]
pub(super) struct Overload(Arc<watch::Sender<bool>>);

impl Default for Overload {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Overload {
    /// True while no new links are taken.
    pub(super) fn is_on(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is over.
    pub(super) async fn over(&self) {
        // Its sender is here.
        let _ = self.0.subscribe().wait_for(|is_on| !is_on).await;
    }

    /// Measures until it is dropped.
    pub(super) async fn measure(&self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut mean = Duration::ZERO;
        loop {
            mean = after(mean, ticks.tick().await.elapsed());
            let is_on = if self.is_on() { mean > EASED } else { mean > LATE };
            if self.0.send_if_modified(|on| std::mem::replace(on, is_on) != is_on) {
                log(is_on, mean);
            }
        }
    }
}

/// The mean lateness after another measurement.
fn after(mean: Duration, late: Duration) -> Duration {
    (mean * (WEIGHT - 1) + late) / WEIGHT
}

fn log(is_on: bool, late: Duration) {
    if is_on {
        peer_warn!(
            LogPeer::Stranger,
            ?late,
            "csi-cloud is overloaded: it takes no new links until it is in time again"
        );
    } else {
        peer_info!(LogPeer::Stranger, "csi-cloud is in time again, and takes new links");
    }
}

#[cfg(test)]
mod tests {
    use proto::host::tasks::Tasks;
    use tokio::time::{Instant, advance, sleep};

    use super::*;

    /// Whether it is on after so many spells of other work.
    async fn is_on_after(overload: &Overload, times: u32, busy: Duration) -> bool {
        for _ in 0..times {
            advance(busy).await;
            sleep(Duration::from_millis(1)).await;
        }
        overload.is_on()
    }

    #[tokio::test(start_paused = true)]
    async fn a_cloud_that_is_late_again_and_again_takes_no_links_until_it_is_in_time() {
        let (overload, tasks) = (Overload::default(), Tasks::default());
        let measured = overload.clone();
        tasks.spawn_until_stop("overload", async move { measured.measure().await });
        sleep(EVERY).await;
        let [little, long, longer] = [500, 900, 1_500].map(Duration::from_millis);
        assert!(!is_on_after(&overload, 40, little).await, "late by less than half a second");
        sleep(Duration::from_secs(5)).await;
        assert!(!is_on_after(&overload, 1, longer).await, "late once");
        assert!(is_on_after(&overload, 20, long).await);
        let begun = Instant::now();
        overload.over().await;
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    }
}
