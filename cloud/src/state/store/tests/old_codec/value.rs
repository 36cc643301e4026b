//! The values of records, as protobuf messages.
//!
//! Fields may be added; a number is never used again.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use proto::csi::Id;

use crate::state::key::parts;
use crate::state::record::{
    Claim, Earlier, Elected, Home, Intent, LeaseRecord, NodeDriver, Profile, Segment,
};

#[derive(Clone, PartialEq, Message)]
pub(super) struct HomeValue {
    #[prost(string, tag = "1")]
    pub(super) node: String,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) entry: Bytes,
    #[prost(message, optional, tag = "4")]
    pub(super) claim: Option<ClaimValue>,
    #[prost(message, optional, tag = "5")]
    pub(super) parameters: Option<ParametersValue>,
    #[prost(message, optional, tag = "6")]
    pub(super) source: Option<IdValue>,
    #[prost(uint64, tag = "7")]
    pub(super) since: u64,
    #[prost(bool, tag = "8")]
    pub(super) absent: bool,
    #[prost(bool, tag = "9")]
    pub(super) lost: bool,
    #[prost(string, repeated, tag = "10")]
    pub(super) conflicts: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClaimValue {
    #[prost(string, tag = "1")]
    pub(super) namespace: String,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) volume: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ParametersValue {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(super) ours: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct IdValue {
    #[prost(uint32, tag = "1")]
    pub(super) kind: u32,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(string, tag = "3")]
    pub(super) text: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct IntentValue {
    #[prost(string, tag = "1")]
    pub(super) node: String,
    #[prost(uint64, tag = "2")]
    pub(super) since: u64,
    #[prost(uint64, tag = "3")]
    pub(super) until: u64,
    #[prost(string, optional, tag = "4")]
    pub(super) made: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub(super) claim: Option<ClaimValue>,
    #[prost(uint32, optional, tag = "6")]
    pub(super) attempts: Option<u32>,
    #[prost(bool, optional, tag = "7")]
    pub(super) direct: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeDriverValue {
    #[prost(btree_map = "string, bytes", tag = "1")]
    pub(super) answers: BTreeMap<String, Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(super) info: Option<Bytes>,
    #[prost(message, repeated, tag = "3")]
    pub(super) segments: Vec<SegmentValue>,
    #[prost(uint64, tag = "4")]
    pub(super) listed: u64,
    #[prost(uint64, optional, tag = "5")]
    pub(super) gone: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SegmentValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeValue {
    #[prost(uint64, tag = "1")]
    pub(super) since: u64,
    #[prost(uint64, optional, tag = "2")]
    pub(super) removed: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ElectedValue {
    #[prost(string, tag = "1")]
    pub(super) node: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) before: Vec<EarlierValue>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct EarlierValue {
    #[prost(string, tag = "1")]
    pub(super) node: String,
    #[prost(uint64, tag = "2")]
    pub(super) until: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseValue {
    #[prost(message, optional, tag = "1")]
    pub(super) holder: Option<HolderValue>,
    #[prost(message, optional, tag = "2")]
    pub(super) attached: Option<AttachedValue>,
    #[prost(message, repeated, tag = "3")]
    pub(super) broken: Vec<BrokenValue>,
    #[prost(message, repeated, tag = "4")]
    pub(super) claims: Vec<LeaseClaimValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HolderValue {
    #[prost(string, tag = "1")]
    pub(super) node: String,
    #[prost(uint64, tag = "2")]
    pub(super) epoch: u64,
    #[prost(string, tag = "3")]
    pub(super) pod: String,
    #[prost(uint64, tag = "4")]
    pub(super) since: u64,
    #[prost(bool, tag = "5")]
    pub(super) unproven: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseClaimValue {
    #[prost(string, tag = "1")]
    pub(super) node: String,
    #[prost(uint64, tag = "2")]
    pub(super) epoch: u64,
    #[prost(uint64, tag = "3")]
    pub(super) since: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttachedValue {
    #[prost(string, tag = "1")]
    pub(super) node: String,
    #[prost(string, tag = "2")]
    pub(super) id: String,
    #[prost(uint64, tag = "3")]
    pub(super) since: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BrokenValue {
    #[prost(string, tag = "1")]
    pub(super) node: String,
    #[prost(uint64, tag = "2")]
    pub(super) epoch: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProfileValue {
    #[prost(btree_map = "string, bytes", tag = "1")]
    pub(super) answers: BTreeMap<String, Bytes>,
    #[prost(uint64, tag = "2")]
    pub(super) since: u64,
    #[prost(string, repeated, tag = "3")]
    pub(super) from: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EpochValue {
    #[prost(uint64, tag = "1")]
    pub(super) last: u64,
}

impl From<&LeaseRecord> for LeaseValue {
    fn from(lease: &LeaseRecord) -> Self {
        let holder = lease.holder.as_ref().map(|holder| HolderValue {
            node: holder.node.to_string(),
            epoch: holder.epoch,
            pod: holder.pod.to_string(),
            since: holder.since,
            unproven: holder.unproven,
        });
        let attached = lease.attached.as_ref().map(|attached| AttachedValue {
            node: attached.node.to_string(),
            id: attached.id.to_string(),
            since: attached.since,
        });
        let broken = lease.broken.iter();
        let broken =
            broken.map(|broken| BrokenValue { node: broken.node.to_string(), epoch: broken.epoch });
        let claims = lease.claims.iter().map(|claim| LeaseClaimValue {
            node: claim.node.to_string(),
            epoch: claim.epoch,
            since: claim.since,
        });
        Self { holder, attached, broken: broken.collect(), claims: claims.collect() }
    }
}

impl From<&Elected> for ElectedValue {
    fn from(elected: &Elected) -> Self {
        let earlier = |of: &Earlier| EarlierValue { node: of.node.to_string(), until: of.until };
        Self {
            node: elected.node.to_string(),
            before: elected.before.iter().map(earlier).collect(),
        }
    }
}

impl From<&Profile> for ProfileValue {
    fn from(profile: &Profile) -> Self {
        Self {
            answers: (*profile.answers).clone(),
            since: profile.since,
            from: profile.from.iter().map(ToString::to_string).collect(),
        }
    }
}

impl From<&Home> for HomeValue {
    fn from(home: &Home) -> Self {
        let id = |id: &Id| {
            let (kind, method, text) = parts(id);
            IdValue {
                kind: kind.into(),
                method: method.unwrap_or_default().into(),
                text: text.into(),
            }
        };
        Self {
            node: home.node.to_string(),
            name: home.name.as_deref().map(Into::into),
            entry: home.entry.clone(),
            claim: home.claim.as_deref().map(Into::into),
            parameters: home
                .parameters
                .as_deref()
                .map(|ours| ParametersValue { ours: ours.clone() }),
            source: home.source.as_deref().map(id),
            since: home.since,
            absent: home.absent,
            lost: home.lost,
            conflicts: home.conflicts.iter().map(ToString::to_string).collect(),
        }
    }
}

impl From<&Intent> for IntentValue {
    fn from(intent: &Intent) -> Self {
        Self {
            node: intent.node.to_string(),
            since: intent.since,
            until: intent.until,
            made: intent.made.as_deref().map(Into::into),
            claim: intent.claim.as_deref().map(Into::into),
            attempts: intent.attempts,
            direct: intent.direct,
        }
    }
}

impl From<&Claim> for ClaimValue {
    fn from(claim: &Claim) -> Self {
        let text = |text: &str| text.to_owned();
        Self {
            namespace: text(&claim.namespace),
            name: text(&claim.name),
            volume: text(&claim.volume),
        }
    }
}

impl From<ClaimValue> for Claim {
    fn from(claim: ClaimValue) -> Self {
        Self {
            namespace: claim.namespace.into(),
            name: claim.name.into(),
            volume: claim.volume.into(),
        }
    }
}

impl From<&NodeDriver> for NodeDriverValue {
    fn from(at: &NodeDriver) -> Self {
        let segment = |of: &Segment| SegmentValue { key: of.0.clone(), value: of.1.clone() };
        Self {
            answers: (*at.answers).clone(),
            info: at.info.clone(),
            segments: at.segments.iter().map(segment).collect(),
            listed: at.listed,
            gone: at.gone,
        }
    }
}

impl From<NodeDriverValue> for NodeDriver {
    fn from(at: NodeDriverValue) -> Self {
        Self {
            answers: Arc::new(at.answers),
            info: at.info,
            segments: at
                .segments
                .into_iter()
                .map(|segment| Arc::new((segment.key, segment.value)))
                .collect(),
            listed: at.listed,
            gone: at.gone,
            former_ids: Box::default(),
        }
    }
}
