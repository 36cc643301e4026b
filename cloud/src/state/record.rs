//! The records of the store, as the rest of csi-cloud sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proto::csi::{Capabilities, Id, Local, Method, Segments, topology};
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::state::json;

/// Where a volume, snapshot or group snapshot lives, and what was last known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Home {
    /// The node.
    pub node: NodeName,
    /// The name that it was made under; none if it was made before us, or by somebody else.
    pub name: Option<Box<str>>,
    /// Its entry in a list, as protobuf: `ListVolumesResponse.Entry`, `ListSnapshotsResponse.Entry` or
    /// `VolumeGroupSnapshot`. Empty if it was never seen.
    #[serde(with = "json::base64")]
    pub entry: Bytes,
    /// Whose it is in Kubernetes, if the provisioner said so.
    pub claim: Option<Box<Claim>>,
    /// What of its class's parameters is ours (`edge-csi.io/…`).
    pub parameters: Option<Box<BTreeMap<String, String>>>,
    /// What its content was taken of, or what it is a snapshot of.
    #[serde(with = "json::source")]
    pub source: Option<Box<Id>>,
    /// When we learned of it, in ms since 1970.
    pub since: u64,
    /// The last whole list of its node did not have it, so lists do not show it.
    pub absent: bool,
    /// Its node was removed for good.
    pub lost: bool,
    /// Other nodes that say that it lives there. The first one keeps it; an operator has to look.
    pub rivals: Vec<NodeName>,
}

/// A PersistentVolumeClaim, as external-provisioner's `--extra-create-metadata` tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// The PersistentVolume's name.
    pub volume: Box<str>,
}

/// That a create was sent to a node, kept until what it made is deleted or is known not to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// The node.
    pub node: NodeName,
    /// When it was first sent, in ms since 1970.
    pub since: u64,
    /// Until when a call that was sent may still begin at the node, in ms since 1970.
    pub until: u64,
    /// The id of what it made, which has a home; none while nobody knows.
    pub made: Option<Box<str>>,
    /// Whose it is in Kubernetes, if the provisioner said so.
    pub claim: Option<Box<Claim>>,
}

/// A segment of a topology; nodes that are at it share it.
pub type Segment = Arc<(String, String)>;

/// A driver at a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeDriver {
    /// What it answers, by RPC method, as unframed messages; nodes that answer alike share it.
    #[serde(rename = "alike", with = "json::answers")]
    pub answers: Arc<BTreeMap<String, Bytes>>,
    /// What it answers to NodeGetInfo, the one answer that every node gives otherwise.
    #[serde(with = "json::answer")]
    pub info: Option<Bytes>,
    /// Its segments: its own topology, else ours.
    #[serde(rename = "place")]
    pub segments: Box<[Segment]>,
    /// When it first gave a whole list of its volumes, in ms since 1970; zero if never.
    pub listed: u64,
    /// Since when its node says nothing of it any more, in ms since 1970. What it said counts on: it may come back.
    #[serde(default)]
    pub gone: Option<u64>,
}

/// A node that ever linked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// When it first linked, in ms since 1970.
    pub since: u64,
    /// When an operator removed it for good, in ms since 1970.
    pub removed: Option<u64>,
}

/// Who has a volume that one guest owns: a pod of that node has it, or may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// The node.
    pub node: NodeName,
    /// Grows with each time that any volume is given to anybody.
    pub epoch: u64,
    /// The UID of the pod that it is published to there; empty if that is not known.
    pub pod: Box<str>,
    /// Since when that pod has it, in ms since 1970.
    pub since: u64,
}

/// Where a volume is attached that one guest owns, or that was tried (ControllerPublishVolume).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// The node.
    pub node: NodeName,
    /// As its driver called the node then: it is detached by that name, whatever the driver says later.
    pub id: Box<str>,
    /// Since when, in ms since 1970.
    pub since: u64,
}

/// That an operator took a volume from a node, which has not been given it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Broken {
    /// The node.
    pub node: NodeName,
    /// The epoch at which that was done: what the node was given before it has lost.
    pub epoch: u64,
}

/// Whose a volume is that one guest owns. What says nothing is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRecord {
    /// Who has it, if anybody.
    #[serde(rename = "owner")]
    pub holder: Option<Holder>,
    /// Where it is attached; another node than its owner's only in a store that was put back from an older copy.
    pub attached: Option<Attached>,
    /// From whom it was taken, the last one last; each node once.
    pub broken: Vec<Broken>,
}

/// One change of the store; no record means that there is none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Of a volume's, snapshot's or group's home.
    Home(DriverName, Id, Option<Home>),
    /// Of an intent; the id is a name.
    Intent(DriverName, Id, Option<Intent>),
    /// Of a driver at a node.
    NodeDriver(DriverName, NodeName, Option<NodeDriver>),
    /// Of a node.
    Node(NodeName, Option<Node>),
    /// Of the node that carries out the calls of a shared driver.
    Elected(DriverName, Option<NodeName>),
    /// Of whose a volume is.
    Lease(DriverName, Id, Option<LeaseRecord>),
    /// Of the epoch that was given last; it only grows.
    Epoch(u64),
}

impl Home {
    /// A home of which nothing but the node is known.
    pub fn at(node: NodeName, since: u64) -> Self {
        let (name, entry, claim, parameters, source, rivals) = Default::default();
        Self {
            node,
            name,
            entry,
            claim,
            parameters,
            source,
            since,
            absent: false,
            lost: false,
            rivals,
        }
    }

    /// The node where it counts as a volume.
    pub(super) fn counted(&self, id: &Id) -> Option<&NodeName> {
        (matches!(id, Id::Volume(_)) && !self.lost).then_some(&self.node)
    }
}

impl Intent {
    /// The node where it counts as a volume: that which is made counts by its home.
    pub(super) fn counted(&self) -> Option<&NodeName> {
        self.made.is_none().then_some(&self.node)
    }
}

impl NodeDriver {
    /// What it answers to a method; none if it does not implement it.
    pub fn answer(&self, local: Local) -> Option<&Bytes> {
        match local {
            Local::NodeInfo => self.info.as_ref(),
            Local::Info | Local::Probe | Local::Capabilities(_) => {
                self.answers.get(Method::answering(local).name())
            }
        }
    }

    /// Whether it has ever said what it can do.
    pub fn has_spoken(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Whether it has topology of its own; else the front gives it ours.
    pub fn has_own_topology(&self) -> bool {
        let answer = |local| self.answer(local).map_or(&[][..], |answer| answer);
        let plugin = Local::Capabilities(Capabilities::Plugin);
        topology::has_own(answer(plugin), answer(Local::NodeInfo))
    }

    /// Whether it is at a topology: whether its segments hold all that this asks for.
    pub fn is_at(&self, asked: &Segments) -> bool {
        let is_at = |key, value| {
            self.segments.iter().any(|segment| (&segment.0, &segment.1) == (key, value))
        };
        asked.iter().all(|(key, value)| is_at(key, value))
    }
}
