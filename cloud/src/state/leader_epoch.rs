//! The epochs of csi-clouds that lead, one after another: each is greater than all before it.
//!
//! Seconds since 1970 are a lower bound beside the last epoch of the store. So an older state that
//! was put back gives no epoch again; `docs/decisions/0018-several-clouds.md` says more.

use proto::control::leader::LeaderEpoch;
use proto::host::clock;

/// The epoch after this one. Whoever takes it makes it durable before it is used.
pub(super) fn next(last: Option<LeaderEpoch>) -> LeaderEpoch {
    let seconds = clock::now() / 1000;
    let after = last.map_or(1, |LeaderEpoch(last)| last.saturating_add(1));
    LeaderEpoch(after.max(seconds))
}

/// The latest epoch that nodes hear: 30 days after the clock, as their own fence has it.
pub(crate) fn latest() -> LeaderEpoch {
    const AHEAD: u64 = 30 * 24 * 3600;
    LeaderEpoch(clock::now() / 1000 + AHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_only_grows() {
        let first = next(None);
        assert!(first.0 > 1_700_000_000, "{first}: an older state has a lower one");
        assert_eq!(next(Some(first)).0, first.0 + 1);
        let future = LeaderEpoch(u64::MAX / 2);
        assert_eq!(next(Some(future)).0, future.0 + 1, "a clock was ahead once");
        assert!(next(Some(LeaderEpoch(7))) >= first);
    }
}
