//! The facts that every check reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::names::DriverName;

use super::answer::{Cause, Chain, Verdict};
use crate::kubernetes::objects::Objects;
use crate::nodes::links::Links;
use crate::state::store::writer::Store;
use crate::telemetry::calls::Calls;

/// The inputs of one `explain` query.
pub struct Explainer<'a> {
    /// The durable state.
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
