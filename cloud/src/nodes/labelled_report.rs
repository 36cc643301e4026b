//! Keeps an edge's last driver report, and replays it when the node's labels allow other drivers.
//!
//! Nothing is recorded of a driver that the node may not have. When its labels change so that it
//! may, the report is recorded as if the edge had just sent it.

use std::future::pending;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proto::control::hello::Driver;
use proto::names::NodeName;
use tokio::sync::watch;

use crate::state::authority::Authority;
use crate::state::node_labels::Labels;

/// The last report of an edge, if labels decide about it. Boxed, as the future of an idle link
/// holds it and most have none.
#[derive(Default)]
pub(super) struct LabelledReport(Option<Box<EdgeReport>>);

struct EdgeReport {
    authority: Authority,
    node: NodeName,
    drivers: Vec<Driver>,
    /// For each driver, true if the node was last allowed to have it.
    allowed: Vec<bool>,
    changes: watch::Receiver<Option<Labels>>,
}

impl LabelledReport {
    /// Keeps a report if the labels of nodes decide about one of its drivers. Make it before the
    /// report is recorded, so that no change is missed.
    pub(super) fn new(authority: &Authority, node: &NodeName, drivers: &[Driver]) -> Self {
        let by_label = |driver: &Driver| {
            authority.policy(&driver.name).is_some_and(|policy| policy.labels().is_some())
        };
        let labels = authority.labels().filter(|_| drivers.iter().any(by_label));
        let report = labels.map(|labels| {
            let changes = labels.changes();
            let mut report = EdgeReport {
                authority: authority.clone(),
                node: node.clone(),
                drivers: drivers.to_vec(),
                allowed: Vec::new(),
                changes,
            };
            report.decide();
            Box::new(report)
        });
        Self(report)
    }

    /// Ends when the node may have other drivers of the report than before. Never without one.
    ///
    /// Boxed, so that the future of an idle link stays small.
    pub(super) fn changed(&mut self) -> BoxFuture<'_, Vec<Driver>> {
        match &mut self.0 {
            Some(report) => report.changed().boxed(),
            None => pending().boxed(),
        }
    }
}

impl EdgeReport {
    async fn changed(&mut self) -> Vec<Driver> {
        while self.changes.changed().await.is_ok() {
            if self.decide() {
                return self.drivers.clone();
            }
        }
        pending().await
    }

    /// Decides which drivers the node may have; returns whether that changed.
    fn decide(&mut self) -> bool {
        let Self { authority, node, drivers, .. } = self;
        let allowed = drivers.iter().map(|driver| authority.allows(&driver.name, node)).collect();
        let before = std::mem::replace(&mut self.allowed, allowed);
        before != self.allowed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto::names::DriverName;

    use super::*;
    use crate::state::node_labels::NodeLabels;
    use crate::state::node_set::NodeSet;
    use crate::state::policy::Policy;

    #[test]
    fn a_report_comes_again_when_the_labels_of_its_node_change_what_counts() {
        let labels = NodeLabels::default();
        let selector = "node-restriction.kubernetes.io/storage=yes".parse().unwrap();
        let nodes = NodeSet::new(vec![selector]).with_labels(&labels);
        let policy = Policy { nodes: Some(nodes), ..Policy::new(None) };
        let [of_all, of_some]: [DriverName; 2] =
            ["a.example", "b.example"].map(|name| name.parse().unwrap());
        let policies = [(of_all.clone(), Policy::new(None)), (of_some.clone(), policy)].into();
        let authority = Authority::new(policies);
        let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        let said = |name: &DriverName| Driver {
            name: name.clone(),
            answers: BTreeMap::new(),
            health: None,
        };
        let set = |nodes: &[&NodeName]| {
            let label = ("node-restriction.kubernetes.io/storage".to_owned(), "yes".to_owned());
            let of = |node: &&NodeName| ((*node).clone(), [label.clone()].into());
            labels.set(nodes.iter().map(of).collect());
        };
        let mut plain = LabelledReport::new(&authority, &n1, &[said(&of_all)]);
        let mut report = LabelledReport::new(&authority, &n1, &[said(&of_all), said(&of_some)]);
        assert!(report.changed().now_or_never().is_none());
        set(&[&n2]);
        assert!(report.changed().now_or_never().is_none(), "it is another node's label");
        set(&[&n1, &n2]);
        assert_eq!(report.changed().now_or_never().map(|drivers| drivers.len()), Some(2));
        assert!(report.changed().now_or_never().is_none(), "once");
        set(&[]);
        assert!(report.changed().now_or_never().is_some());
        assert!(plain.changed().now_or_never().is_none(), "labels decide nothing about it");
    }
}
