//! Binds what a program serves, and tries again while that fails.
//!
//! When a machine starts, an address may not be there yet, and a file system may be read-only until
//! it was checked. Nobody drives to such a machine to start the program again.

use std::error::Error;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use super::backoff::Backoff;
use super::chain;
use super::tasks::Tasks;

/// The delays between two attempts.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Returns what `bind` bound at last; `first` is what its first attempt said. `None` if the tasks
/// are told to stop before. Each new reason why `served`, such as "the admin socket", cannot be
/// bound is logged once.
pub async fn until_bound<T, E: Error + 'static>(
    served: &str,
    first: Result<T, E>,
    mut bind: impl FnMut() -> Result<T, E>,
    tasks: &Tasks,
) -> Option<T> {
    let mut delays = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
    let mut logged = String::new();
    let mut attempt = first;
    loop {
        let error = match attempt {
            Ok(bound) => {
                if !logged.is_empty() {
                    info!("{served} can be served now");
                }
                return Some(bound);
            }
            Err(error) => chain(&error),
        };
        if error != logged {
            warn!(error, "{served} cannot be served yet; it is tried again");
            logged = error;
        }
        tokio::select! {
            biased;
            () = tasks.stopped() => return None,
            () = sleep(delays.delay()) => attempt = bind(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_bound_is_tried_again_until_it_can() {
        let tasks = Tasks::default();
        let refused = || Err(io::Error::from(io::ErrorKind::AddrNotAvailable));
        let begun = Instant::now();
        let mut attempts = 0;
        let bind = || {
            attempts += 1;
            if attempts < 6 { refused() } else { Ok(attempts) }
        };
        assert_eq!(until_bound("HTTP", refused(), bind, &tasks).await, Some(6));
        assert_eq!(begun.elapsed(), Duration::from_secs(1 + 2 + 4 + 8 + 10 + 10));
        assert_eq!(until_bound("HTTP", Ok(7), refused, &tasks).await, Some(7));
        tasks.stop();
        assert_eq!(until_bound("HTTP", refused(), || Ok(8), &tasks).await, None);
    }
}
