//! Nodes that are set apart, for one driver or for all.
//!
//! A node that is set apart gets no new volumes, and its capacity counts as 0. Its existing volumes
//! are served. This is in memory only. Each reason follows from durable records and from the node's
//! next link, so it is found again after a restart.

use std::collections::BTreeMap;
use std::fmt;

use proto::csi::Method;
use proto::names::{DriverName, NodeName};

use crate::state::clock::now;

/// The reason why a node is set apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The operator's `nodes` for the driver exclude it. It counts for nothing.
    NotAllowed,
    /// The operator's `nodes` select by label, and the API server has not named any label yet. It
    /// counts for nothing until then.
    LabelsUnknown,
    /// Its driver says another plugin name.
    OtherName {
        /// The name that it says.
        says: String,
    },
    /// Its driver lacks capabilities of the driver's profile.
    LessThanProfile {
        /// The capabilities that it lacks.
        lacks: String,
    },
    /// It claims a topology segment that is another node's.
    OthersSegment {
        /// The key of the segment.
        key: String,
        /// The value of the segment.
        value: String,
        /// The node that has the segment.
        owner: NodeName,
    },
    /// Its answer to a question that went to many nodes cannot be used.
    BadAnswer {
        /// The RPC.
        method: Method,
        /// The fault of the answer.
        why: String,
    },
    /// It is over a limit for one node.
    OverLimit {
        /// The limit, and how it is exceeded.
        what: String,
    },
    /// It sent more control messages than it may.
    TooManyMessages {
        /// The limit, and how it is exceeded.
        what: String,
    },
}

/// The kind of a reason. A node has at most one reason of each kind for a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReasonKind {
    /// See [`Reason::NotAllowed`] and [`Reason::LabelsUnknown`].
    NotAllowed,
    /// See [`Reason::OtherName`].
    OtherName,
    /// See [`Reason::LessThanProfile`].
    LessThanProfile,
    /// See [`Reason::OthersSegment`].
    OthersSegment,
    /// See [`Reason::BadAnswer`].
    BadAnswer,
    /// See [`Reason::OverLimit`].
    OverLimit,
    /// See [`Reason::TooManyMessages`].
    TooManyMessages,
}

/// A node that is set apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apart {
    /// The reason.
    pub reason: Reason,
    /// Since when, in ms since 1970.
    pub since: u64,
}

/// The nodes that are set apart.
#[derive(Default)]
pub struct ApartNodes {
    /// By node and driver; without a driver it is apart for all drivers.
    nodes: BTreeMap<NodeName, BTreeMap<Option<DriverName>, BTreeMap<ReasonKind, Apart>>>,
}

impl Reason {
    /// The kind of this reason.
    pub fn kind(&self) -> ReasonKind {
        match self {
            Self::NotAllowed | Self::LabelsUnknown => ReasonKind::NotAllowed,
            Self::OtherName { .. } => ReasonKind::OtherName,
            Self::LessThanProfile { .. } => ReasonKind::LessThanProfile,
            Self::OthersSegment { .. } => ReasonKind::OthersSegment,
            Self::BadAnswer { .. } => ReasonKind::BadAnswer,
            Self::OverLimit { .. } => ReasonKind::OverLimit,
            Self::TooManyMessages { .. } => ReasonKind::TooManyMessages,
        }
    }
}

// Text of a peer is quoted and escaped, because this is shown in logs, tables and Events.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed => f.write_str("it is not among the driver's `nodes`"),
            Self::LabelsUnknown => f.write_str(
                "the driver's `nodes` select by label, and Kubernetes has not named the nodes yet",
            ),
            Self::OtherName { says } => write!(f, "its driver calls itself {says:?}"),
            Self::LessThanProfile { lacks } => {
                write!(f, "its driver lacks {lacks} of the driver's profile")
            }
            Self::OthersSegment { key, value, owner } => {
                write!(f, "it claims the topology {key:?}={value:?} of node {owner}")
            }
            Self::BadAnswer { method, why } => {
                write!(f, "its answer to {} is no use: {why}", method.name())
            }
            Self::OverLimit { what } => write!(f, "it is over a limit: {what}"),
            Self::TooManyMessages { what } => write!(f, "it sent too much: {what}"),
        }
    }
}

impl ReasonKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::NotAllowed,
        Self::OtherName,
        Self::LessThanProfile,
        Self::OthersSegment,
        Self::BadAnswer,
        Self::OverLimit,
        Self::TooManyMessages,
    ];

    /// True if the node counts for nothing: no question goes to it, and its reports do not count.
    /// Only calls for its own homes go there.
    pub fn excludes(self) -> bool {
        matches!(self, Self::NotAllowed | Self::OtherName)
    }

    /// The kind's name in metrics and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotAllowed => "not_allowed",
            Self::OtherName => "other_name",
            Self::LessThanProfile => "less_than_profile",
            Self::OthersSegment => "others_segment",
            Self::BadAnswer => "bad_answer",
            Self::OverLimit => "over_limit",
            Self::TooManyMessages => "too_many_messages",
        }
    }
}

impl ApartNodes {
    /// Sets a node apart for a driver, or for all. A reason of the same kind is replaced and keeps
    /// its time. Returns whether this is news.
    pub(super) fn set(
        &mut self,
        node: &NodeName,
        driver: Option<&DriverName>,
        reason: Reason,
    ) -> bool {
        let reasons =
            self.nodes.entry(node.clone()).or_default().entry(driver.cloned()).or_default();
        let since = match reasons.get(&reason.kind()) {
            Some(before) if before.reason == reason => return false,
            Some(before) => before.since,
            None => now(),
        };
        reasons.insert(reason.kind(), Apart { reason, since });
        true
    }

    /// Removes a reason; returns it if it was there.
    pub(super) fn clear(
        &mut self,
        node: &NodeName,
        driver: Option<&DriverName>,
        kind: ReasonKind,
    ) -> Option<Apart> {
        let drivers = self.nodes.get_mut(node)?;
        let reasons = drivers.get_mut(&driver.cloned())?;
        let cleared = reasons.remove(&kind);
        if reasons.is_empty() {
            drivers.remove(&driver.cloned());
        }
        if drivers.is_empty() {
            self.nodes.remove(node);
        }
        cleared
    }

    /// Removes all reasons of a node, for example when an operator removed it.
    pub(super) fn forget(&mut self, node: &NodeName) {
        self.nodes.remove(node);
    }

    /// The reasons for one driver: its own, then those for all drivers.
    pub fn of<'a>(
        &'a self,
        node: &NodeName,
        driver: &DriverName,
    ) -> impl Iterator<Item = &'a Apart> {
        // Nearly always empty; a routing decision asks for each candidate.
        let drivers = self.nodes.get(node);
        let own = drivers.and_then(|drivers| drivers.get(&Some(driver.clone())));
        let general = drivers.and_then(|drivers| drivers.get(&None));
        [own, general].into_iter().flatten().flat_map(BTreeMap::values)
    }

    /// The reason why a node is apart for a driver: the first reason.
    pub fn why(&self, node: &NodeName, driver: &DriverName) -> Option<&Apart> {
        self.of(node, driver).next()
    }

    /// The RPC for whose answers a node is apart for a driver.
    pub fn bad_answer(&self, node: &NodeName, driver: &DriverName) -> Option<Method> {
        self.of(node, driver).find_map(|apart| match apart.reason {
            Reason::BadAnswer { method, .. } => Some(method),
            _ => None,
        })
    }

    /// All reasons of one node, those for all drivers first.
    pub fn at(&self, node: &NodeName) -> impl Iterator<Item = (Option<&DriverName>, &Apart)> {
        let drivers = self.nodes.get(node).into_iter().flatten();
        drivers.flat_map(|(driver, reasons)| {
            reasons.values().map(move |apart| (driver.as_ref(), apart))
        })
    }

    /// The nodes that are set apart, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// The nodes that are set apart for a driver, each with its first reason.
    pub fn for_driver<'a>(
        &'a self,
        driver: &'a DriverName,
    ) -> impl Iterator<Item = (&'a NodeName, &'a Apart)> {
        self.nodes.keys().filter_map(|node| Some((node, self.why(node, driver)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(what: &str) -> Reason {
        Reason::OverLimit { what: what.into() }
    }

    #[test]
    fn a_reason_stays_until_it_is_cleared_whatever_else_is_said() {
        let mut apart = ApartNodes::default();
        let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        let [a, b]: [DriverName; 2] = ["a.example", "b.example"].map(|name| name.parse().unwrap());
        assert!(apart.set(&n1, Some(&a), Reason::NotAllowed));
        assert!(!apart.set(&n1, Some(&a), Reason::NotAllowed), "it is no news");
        assert!(apart.set(&n1, Some(&a), limit("64 drivers")));
        assert!(apart.set(&n1, None, limit("1 GiB")));
        assert_eq!(apart.of(&n1, &a).count(), 3);
        assert_eq!(apart.why(&n1, &b).map(|apart| &apart.reason), Some(&limit("1 GiB")));
        assert_eq!(apart.why(&n2, &a), None);
        assert!(apart.clear(&n1, Some(&a), ReasonKind::NotAllowed).is_some());
        assert!(apart.clear(&n1, Some(&a), ReasonKind::NotAllowed).is_none());
        assert_eq!(apart.why(&n1, &a).map(|apart| &apart.reason), Some(&limit("64 drivers")));
        assert_eq!(apart.for_driver(&a).count(), 1);
        apart.forget(&n1);
        assert_eq!((apart.why(&n1, &a), apart.nodes().count()), (None, 0));
    }

    #[test]
    fn a_reason_that_changes_keeps_its_time() {
        let mut apart = ApartNodes::default();
        let node = "n1".parse().unwrap();
        apart.set(&node, None, limit("1"));
        let since = apart.at(&node).next().map(|(_, apart)| apart.since);
        assert!(apart.set(&node, None, limit("2")));
        let (driver, after) = apart.at(&node).next().unwrap();
        assert_eq!((driver, &after.reason, Some(after.since)), (None, &limit("2"), since));
    }

    #[test]
    fn the_text_of_a_peer_is_escaped() {
        let says = "x\n\u{1b}[31m".into();
        let text = Reason::OtherName { says }.to_string();
        assert!(!text.contains(char::is_control), "{text}");
    }
}
