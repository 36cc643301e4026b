//! Follows the chain from a subject to its node.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::names::DriverName;

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::subject::Subject;
use crate::kubernetes::objects::Objects;
use crate::nodes::links::Links;
use crate::state::store::writer::Store;
use crate::telemetry::calls::Calls;

/// What is looked at. It is made for each question.
pub struct Explainer<'a> {
    /// What is durable.
    pub store: &'a Store,
    /// All links.
    pub links: &'a Arc<Links>,
    /// The calls in flight.
    pub calls: &'a Calls,
    /// The drivers that have a front.
    pub drivers: BTreeSet<DriverName>,
    /// Kubernetes; none without it.
    pub objects: Option<&'a Objects>,
}

impl Explainer<'_> {
    /// Says why something waits, or that nothing is wrong.
    pub async fn explain(&self, subject: &Subject) -> Explanation {
        if !self.store.is_open() {
            let mut chain = Chain::default();
            chain.judge(Some(Verdict::of(
                Cause::StoreFails,
                "csi-cloud's store takes no more changes, so it answers no call that changes \
                 anything",
                "see EdgeCsiStoreFailing in docs/operations.md",
            )));
            return chain.end(|| Verdict::fine(""));
        }
        match subject {
            Subject::Pvc(claim) => self.claim(claim).await,
            Subject::Pv(name) => self.persistent_volume(name).await,
            Subject::Pod(pod) => self.pod(pod).await,
            Subject::Snapshot(snapshot) => self.snapshot(snapshot).await,
            Subject::Volume { driver, id } => self.volume(driver, id),
            Subject::Node(node) => self.node(node),
            Subject::Driver(driver) => self.driver(driver),
        }
    }

    /// Whether a driver has a front here. If not, that is the cause.
    pub(super) fn has_front(&self, chain: &mut Chain, driver: &DriverName) -> bool {
        let has = self.drivers.contains(driver);
        if has {
            chain.met(driver);
        } else {
            let ours: Vec<_> = self.drivers.iter().map(ToString::to_string).collect();
            chain.step(format!("driver {driver}"), "no front", "");
            chain.judge(Some(Verdict::of(
                Cause::NoFront,
                format!(
                    "driver {driver} has no front at this csi-cloud, which serves {}",
                    ours.join(", ")
                ),
                "if it shall, name it in csi-cloud's configuration (drivers, --driver)",
            )));
        }
        has
    }
}
