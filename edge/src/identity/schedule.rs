//! Schedules the renewal of a certificate, and the attempts after a failure.

use std::time::{Duration, SystemTime};

use proto::host::backoff::Backoff;
use proto::names::certificate::Validity;

/// The interval at which the clock is read: it may be set, and it runs while a machine sleeps.
const LOOK: Duration = Duration::from_secs(60);

/// The time of renewal: from a half to two thirds of the certificate's life. `dice`, from 0 to 1,
/// spreads it, so a fleet that joined together does not renew together.
pub fn renew_at(validity: &Validity, dice: f64) -> SystemTime {
    let share = 0.5 + dice.clamp(0.0, 1.0) / 6.0;
    validity.not_before + validity.life().mul_f64(share)
}

/// The delays after failed attempts, without jitter: 5 min, doubling to 1 h. A certificate with a
/// short life has shorter ones, so that many attempts come before its end.
pub fn delays(life: Duration) -> Backoff {
    let first = (life / 60).clamp(Duration::from_secs(1), Duration::from_secs(300));
    let last = (life / 12).clamp(Duration::from_secs(2), Duration::from_secs(3600));
    Backoff::new(first, last)
}

/// Waits until the clock shows this time.
pub async fn reached(time: SystemTime) {
    while let Ok(left) = time.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validity(life: u64) -> Validity {
        let not_before = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        Validity { not_before, not_after: not_before + Duration::from_secs(life) }
    }

    #[test]
    fn it_is_renewed_between_a_half_and_two_thirds_of_its_life() {
        let validity = validity(600);
        for (dice, expected) in [(0.0, 1300), (0.5, 1350), (1.0, 1400), (7.0, 1400)] {
            let at = renew_at(&validity, dice).duration_since(SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(at.as_secs(), expected);
        }
    }

    #[test]
    fn delays_fit_into_what_is_left_of_a_life() {
        for (life, first, last) in [(30 * 86_400, 300, 3600), (120, 2, 10), (6, 1, 2)] {
            let mut delays = delays(Duration::from_secs(life));
            let all: Vec<_> = (0..20).map(|_| delays.jittered(rand::random())).collect();
            let [begin, end] = [first, last].map(Duration::from_secs);
            assert!(all[0] >= begin && all[0] <= 2 * begin, "{life}: {all:?}");
            // Jitter adds to the delay as much again at most.
            assert!(all.iter().all(|delay| *delay <= 2 * end), "{life}: {all:?}");
            assert!(all[19] >= end, "{life}: {all:?}");
        }
    }
}
