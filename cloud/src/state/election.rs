//! Elects the node that carries out the calls of a shared driver. Pure.
//!
//! The elected node stays until its link has been gone, or its driver down, for the grace period.
//! An earlier change could start a call twice.

use std::time::Duration;

use proto::names::NodeName;

/// How long a call may begin after it was sent, if its caller has no deadline.
pub const HOLD: Duration = Duration::from_secs(120);

/// How a node is, for an election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Availability {
    /// The time for which it has had no link, or has been set apart; none if neither.
    pub away: Option<Duration>,
    /// The time for which its driver has been down; zero if it is neither up nor down, and none if
    /// it is up.
    pub down: Option<Duration>,
}

impl Availability {
    fn is_lost(self, grace: Duration) -> bool {
        self.away.max(self.down).is_some_and(|lost| lost >= grace)
    }
}

/// Elects another node if the current one has been lost for the grace period. It is the first by
/// name that has a link and whose driver is up. A node whose driver is not up replaces only one
/// that is away. None if the current node stays, or no node is better.
///
/// `nodes` are the driver's nodes ordered by name, without removed ones.
pub fn elect<'a, I: Iterator<Item = &'a NodeName>>(
    current: Option<&NodeName>,
    nodes: impl Fn() -> I,
    standing: impl Fn(&NodeName) -> Availability,
    grace: Duration,
) -> Option<&'a NodeName> {
    let now = current.map(&standing);
    if now.is_some_and(|now| !now.is_lost(grace)) {
        return None;
    }
    let is_there = |node: &&NodeName| standing(node).away.is_none();
    let is_up = |node: &&NodeName| is_there(node) && standing(node).down.is_none();
    let up = nodes().find(is_up);
    let is_away = || now.is_none_or(|now| now.away.is_some_and(|away| away >= grace));
    up.or_else(|| nodes().find(is_there).filter(|_| is_away()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRACE: Duration = Duration::from_secs(10);
    const NAMES: [&str; 3] = ["n1", "n2", "n3"];

    /// Elects among n1, n2 and n3, which have been away and down for these seconds.
    fn among(
        current: Option<&str>,
        gone: [Option<u64>; 3],
        down: [Option<u64>; 3],
    ) -> Option<String> {
        let nodes = NAMES.map(|name| name.parse::<NodeName>().unwrap());
        let current: Option<NodeName> = current.map(|name| name.parse().unwrap());
        let standing = |node: &NodeName| {
            let at = nodes.iter().position(|name| name == node);
            let lasts = |of: [Option<u64>; 3]| at.and_then(|at| of[at]).map(Duration::from_secs);
            let nowhere = at.is_none().then_some(Duration::MAX);
            Availability { away: nowhere.or_else(|| lasts(gone)), down: lasts(down) }
        };
        elect(current.as_ref(), || nodes.iter(), standing, GRACE).map(ToString::to_string)
    }

    /// The same if all drivers are up.
    fn next(current: Option<&str>, gone: [Option<u64>; 3]) -> Option<String> {
        among(current, gone, [None; 3])
    }

    #[test]
    fn the_first_linked_node_is_elected_and_stays() {
        assert_eq!(next(None, [Some(99), None, None]).as_deref(), Some("n2"));
        assert_eq!(next(Some("n2"), [None, None, None]), None, "back only by need");
        assert_eq!(next(None, [Some(1), Some(1), Some(1)]), None, "nobody is there");
    }

    #[test]
    fn another_one_takes_over_after_the_grace_and_not_before() {
        assert_eq!(next(Some("n2"), [None, Some(9), None]), None);
        assert_eq!(next(Some("n2"), [None, Some(10), None]).as_deref(), Some("n1"));
        assert_eq!(next(Some("n2"), [Some(10), Some(10), Some(10)]), None, "no better one");
        assert_eq!(next(Some("removed"), [Some(10), Some(10), None]).as_deref(), Some("n3"));
    }

    #[test]
    fn a_node_whose_driver_is_down_is_left_after_the_grace_for_one_that_is_up() {
        let here = [None; 3];
        assert_eq!(among(Some("n2"), here, [None, Some(9), None]), None);
        assert_eq!(among(Some("n2"), here, [None, Some(10), None]).as_deref(), Some("n1"));
        let n1_starts = [Some(0), Some(10), None];
        assert_eq!(among(Some("n2"), here, n1_starts).as_deref(), Some("n3"));
        assert_eq!(among(Some("n2"), here, [Some(99), Some(10), Some(0)]), None, "no better one");
        assert_eq!(among(None, here, [Some(5), None, None]).as_deref(), Some("n2"));
        // Better one that may come up than one that is away.
        assert_eq!(among(None, here, [Some(5); 3]).as_deref(), Some("n1"));
        let away = [None, Some(10), None];
        assert_eq!(among(Some("n2"), away, [Some(99); 3]).as_deref(), Some("n1"));
    }

    proptest! {
        #[test]
        fn who_is_elected_stays_and_is_no_worse(
            current in proptest::option::of(0..3_usize),
            gone in [proptest::option::of(0..20_u64), proptest::option::of(0..20_u64),
                proptest::option::of(0..20_u64)],
            down in [proptest::option::of(0..20_u64), proptest::option::of(0..20_u64),
                proptest::option::of(0..20_u64)],
        ) {
            let next = among(current.map(|at| NAMES[at]), gone, down);
            let at = next.as_deref().map(|name| NAMES.iter().position(|n| *n == name).unwrap());
            if let Some(current) = current {
                let lost = gone[current].max(down[current]).is_some_and(|lost| lost >= 10);
                prop_assert!(lost || at.is_none(), "it left a node within the grace");
            }
            if let Some(at) = at {
                prop_assert_eq!(gone[at], None);
                let is_up = (0..3).any(|n| gone[n].is_none() && down[n].is_none());
                prop_assert!(down[at].is_none() || !is_up, "another one was up");
                prop_assert_eq!(among(Some(NAMES[at]), gone, down), None, "and again");
            }
        }
    }
}
