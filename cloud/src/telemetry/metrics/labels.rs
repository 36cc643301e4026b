//! The labels of the metrics. Each has few values.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use proto::names::DriverName;

/// The part of a call's way that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hop {
    /// From a request at the front to its answer.
    Front,
    /// From a call sent on a link to its answer, including the wait for a new link.
    Link,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Named(pub(super) DriverName);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DriverLabel {
    pub(super) driver: Named,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Answered {
    pub(super) rpc: &'static str,
    pub(super) driver: Named,
    pub(super) code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Passed {
    pub(super) hop: Hop,
    pub(super) rpc: &'static str,
    pub(super) driver: Named,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct InFlight {
    pub(super) driver: Named,
    pub(super) stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SetApart {
    pub(super) driver: Named,
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfState {
    pub(super) driver: Named,
    pub(super) state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Taken {
    pub(super) role: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AskedApi {
    pub(super) request: &'static str,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct QuotaLabel {
    pub(super) quota: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PeerLabel {
    pub(super) peer: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Of {
    pub(super) of: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Over {
    pub(super) transport: &'static str,
}

impl EncodeLabelValue for Named {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0.as_str(), encoder)
    }
}

impl EncodeLabelValue for Hop {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let hop = match self {
            Self::Front => "front",
            Self::Link => "link",
        };
        EncodeLabelValue::encode(&hop, encoder)
    }
}
