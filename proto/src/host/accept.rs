//! Accepts connections. One that cannot be accepted ends no other: there may be no file descriptor.

use std::io;
use std::time::Duration;

use crate::host::peer_log::{LogPeer, peer_warn};

/// The wait after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The next connection of a listener; `whose` is for the log. May be dropped without loss if
/// `accept` may.
pub async fn accept<T, F>(whose: &str, accept: impl Fn() -> F) -> T
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                peer_warn!(LogPeer::Stranger, %error, "cannot accept {whose}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_accept_is_tried_again_after_a_pause() {
        let tries = Cell::new(0);
        let begun = Instant::now();
        let accepted = accept("a caller", || {
            tries.set(tries.get() + 1);
            let full = || io::Error::other("no more files");
            let is_full = tries.get() < 3;
            std::future::ready((!is_full).then_some(3).ok_or_else(full))
        });
        assert_eq!(accepted.await, 3);
        assert_eq!(begun.elapsed(), PAUSE * 2);
    }
}
