//! Limits wrong tokens, for each address and for all.
//!
//! A token cannot be guessed; this keeps those who try from the log. A token is compared first, so
//! wrong ones keep nobody out, behind the same address either.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use proto::host::limit::{Window, host_network};
use tokio::time::Instant;

/// The time for which failures count.
const WINDOW: Duration = Duration::from_secs(60);
/// Failures of one address in that time.
const EACH: usize = 10;
/// Failures of all addresses in that time.
const ALL: usize = 200;
/// The addresses that are counted; others count among all only.
const SOURCES: usize = 1024;

/// The failed logins of the last minute.
#[derive(Default)]
pub(crate) struct Attempts(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    all: Window,
    each: HashMap<Option<IpAddr>, Window>,
}

/// Too many logins failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany {
    /// How long it is to be waited.
    pub(crate) wait: Duration,
}

impl Attempts {
    /// Notes the result of a check of a token from an address; `None` for one of this host.
    ///
    /// # Errors
    /// The token is wrong, and so were too many before.
    pub(crate) fn attempt<T>(
        &self,
        from: Option<IpAddr>,
        checked: Option<T>,
    ) -> Result<Option<T>, TooMany> {
        if checked.is_some() {
            return Ok(checked);
        }
        let source = from.map(host_network);
        let mut failures = self.0.lock();
        let each = failures.each.get(&source).copied().unwrap_or_default();
        let now = Instant::now();
        let wait = failures.all.wait(ALL, WINDOW, now).max(each.wait(EACH, WINDOW, now));
        if let Some(wait) = wait {
            return Err(TooMany { wait });
        }
        failures.note(source, now);
        Ok(None)
    }
}

impl Failures {
    fn note(&mut self, source: Option<IpAddr>, now: Instant) {
        self.all.add(WINDOW, now);
        if self.each.len() >= SOURCES {
            self.each.retain(|_, count| count.is_current(WINDOW, now));
        }
        if self.each.len() < SOURCES || self.each.contains_key(&source) {
            self.each.entry(source).or_default().add(WINDOW, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[tokio::test(start_paused = true)]
    async fn after_some_wrong_tokens_an_address_waits_with_wrong_ones() {
        let attempts = Attempts::default();
        for _ in 0..EACH {
            assert_eq!(attempts.attempt(from(1), None::<()>), Ok(None));
            assert_eq!(attempts.attempt(from(2), Some(())), Ok(Some(())), "no failure");
        }
        assert_eq!(attempts.attempt(from(1), None::<()>), Err(TooMany { wait: WINDOW }));
        assert_eq!(attempts.attempt(from(1), Some(())), Ok(Some(())), "a good one is good");
        assert_eq!(attempts.attempt(from(2), Some(())), Ok(Some(())));
        tokio::time::advance(WINDOW).await;
        assert_eq!(attempts.attempt(from(1), Some(())), Ok(Some(())));
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_together_are_limited_and_bounded() {
        let attempts = Attempts::default();
        for last in 0..ALL {
            let last = u8::try_from(last).unwrap();
            assert_eq!(attempts.attempt(from(last), None::<()>), Ok(None));
        }
        assert!(attempts.attempt(from(255), None::<()>).is_err());
        assert!(attempts.attempt(None, None::<()>).is_err());
        assert_eq!(attempts.attempt(from(255), Some(())), Ok(Some(())));
        let mut failures = Failures::default();
        for address in 0..2 * u32::try_from(SOURCES).unwrap() {
            let address = IpAddr::from(address.to_be_bytes());
            failures.note(Some(host_network(address)), Instant::now());
        }
        assert_eq!(failures.each.len(), SOURCES);
    }
}
