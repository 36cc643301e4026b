//! Who may have which driver: the operator's word, from the drivers' sections.
//!
//! A certificate says which node speaks. Only this says of which drivers it may.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::names::{DriverName, NodeName};

use crate::state::policy::Policy;
use crate::state::profile;
use crate::state::set_apart::{Kind, Reason};
use crate::state::store::writer::Store;

/// The policies of all drivers that have a front. Clones share them.
#[derive(Clone, Default)]
pub struct Authority {
    /// None where no operator has spoken: then every driver of every node counts.
    policies: Option<Arc<BTreeMap<DriverName, Policy>>>,
}

impl Authority {
    /// The operator's word about these drivers. No other driver has a front.
    pub fn new(policies: BTreeMap<DriverName, Policy>) -> Self {
        Self { policies: Some(Arc::new(policies)) }
    }

    /// Whether a driver has a front.
    pub fn serves(&self, driver: &DriverName) -> bool {
        self.policies.as_ref().is_none_or(|policies| policies.contains_key(driver))
    }

    /// Whether a node may have a driver.
    pub fn allows(&self, driver: &DriverName, node: &NodeName) -> bool {
        self.policy(driver).is_none_or(|policy| policy.allows(node))
    }

    /// The policy of a driver, if it has a front.
    pub fn policy(&self, driver: &DriverName) -> Option<&Policy> {
        self.policies.as_ref()?.get(driver)
    }

    /// Sets a node apart for a driver that it may not have, or ends that. Returns whether it may.
    pub(super) fn check(&self, store: &Store, driver: &DriverName, node: &NodeName) -> bool {
        let is_allowed = self.allows(driver, node);
        if is_allowed {
            store.clear_apart(node, Some(driver), Kind::NotAllowed);
        } else {
            store.set_apart(node, Some(driver), Reason::NotAllowed);
        }
        is_allowed
    }

    /// Sets apart all known nodes that may not have a driver, or whose record lacks something of
    /// its profile. An operator may have changed the configuration since the store was written.
    pub fn apply(&self, store: &Store) {
        for driver in self.policies.iter().flat_map(|policies| policies.keys()) {
            let nodes: Vec<_> = store.read(|state| {
                let of = state.driver(driver);
                of.into_iter().flat_map(|of| of.nodes().keys()).cloned().collect()
            });
            for node in nodes {
                self.check(store, driver, &node);
            }
            profile::check(store, driver);
        }
    }
}
