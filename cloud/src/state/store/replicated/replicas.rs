//! The replicas, as operators see them, and which one may take over.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of commits that a replica may lack when it takes over. It reads the rest at once.
const WARM: u64 = 1000;

/// A replica, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// Its version; none if it does not run.
    pub version: Option<String>,
    /// Its endpoints for edges.
    pub endpoints: Vec<String>,
    /// True if it leads.
    pub leads: bool,
    /// True if it shall not lead.
    pub drained: bool,
    /// The last commit that it says it has.
    pub commit: u64,
}

/// All replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    /// By name.
    pub by_name: BTreeMap<Arc<str>, Replica>,
    /// The number of the last commit.
    pub commit: u64,
}

impl Replicas {
    /// True if a replica runs, may lead and has nearly all commits.
    fn is_warm(&self, replica: &Replica) -> bool {
        let is_near = replica.commit.saturating_add(WARM) >= self.commit;
        replica.version.is_some() && !replica.drained && is_near
    }

    /// The replica that takes over from this one: the promoted one if there is such an order, else
    /// any if this one is drained.
    pub(super) fn successor(&self, of: &str, promoted: Option<&str>) -> Option<Arc<str>> {
        let is_drained = self.by_name.get(of).is_some_and(|replica| replica.drained);
        let mut others = self.by_name.iter().filter(|(name, replica)| {
            let is_wanted = promoted.map_or(is_drained, |promoted| ***name == *promoted);
            ***name != *of && is_wanted && self.is_warm(replica)
        });
        others.next().map(|(name, _)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(commit: u64) -> Replica {
        Replica { version: Some("1".into()), commit, ..Replica::default() }
    }

    fn three() -> Replicas {
        let gone = Replica { version: None, ..running(5000) };
        let by_name = [
            ("a", Replica { leads: true, ..running(5000) }),
            ("b", running(10)),
            ("c", running(4500)),
            ("d", gone),
        ];
        let by_name = by_name.into_iter().map(|(name, replica)| (name.into(), replica)).collect();
        Replicas { by_name, commit: 5000 }
    }

    #[test]
    fn a_leader_hands_over_to_the_promoted_one_when_that_is_warm() {
        let replicas = three();
        assert_eq!(replicas.successor("a", None), None, "nobody wants it");
        assert_eq!(replicas.successor("a", Some("c")).as_deref(), Some("c"));
        assert_eq!(replicas.successor("a", Some("b")), None, "it is behind");
        assert_eq!(replicas.successor("a", Some("d")), None, "it does not run");
        assert_eq!(replicas.successor("a", Some("a")), None, "it leads already");
    }

    #[test]
    fn a_drained_leader_hands_over_to_any_that_is_warm() {
        let mut replicas = three();
        replicas.by_name.get_mut("a").unwrap().drained = true;
        assert_eq!(replicas.successor("a", None).as_deref(), Some("c"));
        replicas.by_name.get_mut("c").unwrap().drained = true;
        assert_eq!(replicas.successor("a", None), None, "somebody has to lead");
    }
}
