//! What a front says of its driver, made of what the driver says at its nodes.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::plugin_capability::{Type, service};
use proto::identity::NodeName;

use crate::policy::Scope;
use crate::store::At;

/// What a front says of itself.
#[derive(Default)]
pub struct Said {
    answers: Option<BTreeMap<String, Bytes>>,
    constrained: bool,
}

/// Nothing has been learned of the driver yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown;

impl Said {
    /// Made of what the driver says at its nodes.
    pub fn of(nodes: &BTreeMap<NodeName, At>) -> Self {
        let spoken = nodes.values().find(|at| at.has_spoken());
        Self {
            answers: spoken.map(|at| (*at.alike).clone()),
            constrained: nodes.values().any(is_constrained),
        }
    }

    /// How far volumes reach, by the driver's own word: CSI's VOLUME_ACCESSIBILITY_CONSTRAINTS, at any node.
    pub fn scope(&self) -> Scope {
        if self.constrained || self.answers.is_none() { Scope::Node } else { Scope::Shared }
    }

    /// The (unframed) answer to a method; none if the driver does not implement it.
    ///
    /// # Errors
    /// No node has said anything yet.
    pub fn answer(&self, method: &str) -> Result<Option<Bytes>, Unknown> {
        self.answers.as_ref().map(|answers| answers.get(method).cloned()).ok_or(Unknown)
    }
}

fn is_constrained(at: &At) -> bool {
    let said = at.answer("GetPluginCapabilities").cloned().unwrap_or_default();
    let said = csi::GetPluginCapabilitiesResponse::decode(said).unwrap_or_default();
    said.capabilities.into_iter().any(|capability| {
        matches!(capability.r#type, Some(Type::Service(service)) if service.r#type() == service::Type::VolumeAccessibilityConstraints)
    })
}
