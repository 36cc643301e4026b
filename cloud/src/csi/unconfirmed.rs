//! Decides what a home may not have that is its own node's word alone. Pure.
//!
//! Any node can claim an id. What goes there by that claim must cost nothing if the claim is a lie:
//! no secrets leave csi-cloud, and nothing is copied from what nobody may have.

use proto::csi::{Id, Method};
use proto::names::NodeName;

use crate::csi::facts::{Plan, RoutingFacts};
use crate::csi::unclear::Unclear;
use crate::state::affinity::{NodesOf, VolumeAnswer};
use crate::state::policy::Scope;

/// What a call takes to the home of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HomeUse {
    /// The request as it is.
    Request,
    /// A snapshot is taken of it, which copies its data.
    Copy,
}

impl RoutingFacts<'_> {
    /// The question to ask before a call goes to the home of this id, unless it may go at once.
    ///
    /// # Errors
    /// Nobody but the home's own node says that it has the id.
    pub(super) fn before_sent(
        &self,
        method: Method,
        id: &Id,
        taken: HomeUse,
    ) -> Result<Option<Plan>, Unclear> {
        let Some(driver) = self.driver.filter(|_| self.scope == Scope::Node) else {
            return Ok(None);
        };
        let home = driver.home(id).filter(|home| !self.policy.is_confirmed(home));
        // The caller at a node's own front is at that node.
        let Some(home) = home.filter(|_| self.only.is_none() && self.only_home().is_none()) else {
            return Ok(None);
        };
        if taken == HomeUse::Request && !self.has_secrets(method) {
            return Ok(None);
        }
        let Id::Volume(volume) = id else { return Err(unconfirmed(&home.node, id, taken, "")) };
        let nodes = NodesOf { driver, policy: Some(self.policy) };
        let why = match self.kubernetes.get(volume) {
            None => return Ok(Some(Plan::AskKubernetes(volume.clone()))),
            Some(answer) if answer.confirms(&home.node, nodes) => return Ok(None),
            Some(VolumeAnswer::Known(_)) => ", and its PersistentVolume does not say the same",
            Some(VolumeAnswer::Unknown) => ", and no PersistentVolume has it",
            Some(VolumeAnswer::Silent) => ", and Kubernetes cannot be asked",
        };
        Err(unconfirmed(&home.node, id, taken, why))
    }

    /// True if the request has secrets, or cannot be read.
    fn has_secrets(&self, method: Method) -> bool {
        !matches!(method.without_secrets(self.request), Ok(None))
    }
}

fn unconfirmed(node: &NodeName, id: &Id, taken: HomeUse, why: &str) -> Unclear {
    let consequence = match taken {
        HomeUse::Request => "it does not get the secrets of this call",
        HomeUse::Copy => "nothing is copied from it",
    };
    let word = id.word();
    let text = id.text();
    Unclear::Yet(format!(
        "only node {node} itself says that it has {word} {text:?}{why}; until that is confirmed, \
         {consequence}. If it is true: `csi-cloud volume adopt` with the node, or `csi-cloud homes \
         rebuild --from` a file for many"
    ))
}
