//! Accepts connections. One that cannot be accepted ends no other: there may be no file descriptor.
//!
//! Callers may not take the last descriptors, which a program needs to dial: a node whose front has
//! too many callers would never link again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use crate::host::peer_log::{LogPeer, peer_warn};

/// The wait after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The descriptors that callers leave free: for a race of two sockets, a resolver's, those of files
/// that are replaced, a driver's new connection, and a caller that waits at each of some fronts.
const RESERVE: u64 = 16;

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

/// Waits until this connection, which was just accepted, leaves the reserve of descriptors free.
pub async fn leave_reserve(accepted: impl AsFd) {
    // The system gives the lowest free number, so a high one says that all below it are taken.
    let mut number = accepted.as_fd().as_raw_fd();
    while is_in_reserve(number) {
        peer_warn!(
            LogPeer::Caller,
            "a caller waits: the last {RESERVE} file descriptors are kept for the link; raise the \
             limit (LimitNOFILE, ulimit -n)"
        );
        tokio::time::sleep(PAUSE).await;
        let probe = accepted.as_fd().try_clone_to_owned();
        number = probe.map_or(RawFd::MAX, |probe| probe.as_raw_fd());
    }
}

/// True if a descriptor of this number is among the last ones. A quarter of a very low limit is
/// enough.
fn is_in_reserve(number: RawFd) -> bool {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return false };
    u64::try_from(number).is_ok_and(|number| number >= limit - RESERVE.min(limit / 4))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    #[test]
    fn the_last_descriptors_are_a_reserve() {
        let limit = getrlimit(Resource::Nofile).current.unwrap();
        let first = RawFd::try_from(limit - RESERVE).unwrap();
        assert!(!is_in_reserve(0) && !is_in_reserve(first - 1));
        assert!(is_in_reserve(first) && is_in_reserve(RawFd::MAX));
    }

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
