//! What csi-page asks about one thing, and the answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::fleet::{HealthDetails, PageTarget};
use super::node_state::NodeState;
use crate::names::{DriverName, NodeName};

/// Asks about a node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeOf {
    /// Its name.
    pub node: NodeName,
}

/// Asks about a volume.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeOf {
    /// Its driver.
    pub driver: DriverName,
    /// Its id, or the name under which it was or is to be made.
    pub id: String,
}

/// Asks about a name.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextOf {
    /// The name.
    pub text: String,
}

/// Asks for the values of a segment's or label's key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupsOf {
    /// The key; `None` asks for the keys only.
    pub key: Option<String>,
}

/// Asks for an explanation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ExplainQuery {
    /// Of a driver.
    Driver(DriverName),
    /// Of a pod, as `NAMESPACE/NAME`.
    Pod(String),
    /// Of a PersistentVolume.
    Pv(String),
}

/// What `explain` says of something.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainAnswer {
    /// The chain from what was asked about to its node.
    pub steps: Vec<ExplainStep>,
    /// True if nothing is wrong.
    pub is_fine: bool,
    /// The verdict, in one sentence.
    pub text: String,
    /// What to do next; empty if there is nothing to do.
    pub next: String,
}

/// One link of the chain.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainStep {
    /// The object: `claim shop/data`.
    pub object: String,
    /// Its state, in a word or two.
    pub state: String,
    /// What was found about it; may be empty.
    pub found: String,
}

/// A node, with its volumes and the last calls there.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodePage {
    /// What is known of it.
    pub facts: NodeDetails,
    /// What `explain` says of it.
    pub explanation: ExplainAnswer,
    /// The first of its volumes.
    pub volumes: Vec<VolumeDetails>,
    /// Whether it has more.
    pub has_more: bool,
    /// The last calls there, the oldest first.
    pub calls: Vec<TimelineMoment>,
}

/// What is known of a node.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDetails {
    /// The time at which it first linked, in ms since 1970.
    pub since_ms: u64,
    /// `wss` or `quic`.
    pub transport: Option<String>,
    /// The address from which it dialed.
    pub address: Option<String>,
    /// The version of csi-edge.
    pub version: Option<String>,
    /// Its drivers, with their health as far as it is known.
    pub drivers: BTreeMap<DriverName, Option<HealthDetails>>,
    /// Drivers that it names and that have no front.
    pub unserved: Vec<DriverName>,
    /// Direct volumes there that no runtime took.
    pub not_taken: u64,
    /// The time at which it was removed, in ms since 1970.
    pub removed_ms: Option<u64>,
    /// The time at which its certificates were revoked, in ms since 1970.
    pub revoked_ms: Option<u64>,
    /// The reasons why it is set apart.
    pub set_apart: Vec<SetApartDetails>,
}

/// A reason for which a node is set apart.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetApartDetails {
    /// The driver for which it is set apart; `None` for all.
    pub driver: Option<DriverName>,
    /// The kind of the reason, for programs.
    pub reason: String,
    /// The reason, for people.
    pub why: String,
    /// Its begin, in ms since 1970.
    pub since_ms: u64,
}

/// A volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeDetails {
    /// Its id.
    pub id: String,
    /// Its driver.
    pub driver: DriverName,
    /// Its home node.
    pub node: NodeName,
    /// The name under which it was created.
    pub name: Option<String>,
    /// Its last known size, in bytes.
    pub capacity_bytes: Option<i64>,
    /// The driver's ids of the nodes to which it is published.
    pub published: Vec<String>,
    /// The namespace and name of its claim.
    pub claim: Option<(String, String)>,
    /// The name of its PersistentVolume.
    pub persistent_volume: Option<String>,
    /// The time at which csi-cloud learned of it, in ms since 1970.
    pub since_ms: u64,
    /// `ok`, `absent`, `lost` or `claimed`.
    pub state: String,
}

/// A volume, with its life.
#[derive(Debug, Serialize, Deserialize)]
pub struct VolumePage {
    /// Its id, if it was asked for by the name under which it was made.
    pub id: String,
    /// What is known of it; `None` if it has no home.
    pub facts: Option<VolumeDetails>,
    /// What `explain` says of it.
    pub explanation: ExplainAnswer,
    /// Its life.
    pub life: Timeline,
}

/// A claim, with the life of its volume.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClaimPage {
    /// What `explain` says of it.
    pub explanation: ExplainAnswer,
    /// Its volume, or the name under which one is to be made, as far as it is known.
    pub volume: Option<VolumeOf>,
    /// The life of that volume.
    pub life: Timeline,
}

/// The life of a volume, as far as csi-cloud knows it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// What is known, the oldest first.
    pub moments: Vec<TimelineMoment>,
    /// What is not known.
    pub unknown: Vec<String>,
}

/// A moment of it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineMoment {
    /// The time, in ms since 1970.
    pub at: u64,
    /// What happened.
    pub what: String,
    /// How it ended.
    pub outcome: MomentOutcome,
    /// The node at which it happened.
    pub node: Option<NodeName>,
    /// More of it.
    pub detail: String,
}

/// How a moment ended.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentOutcome {
    /// It is a record of csi-cloud.
    Recorded,
    /// A call was carried out.
    Done,
    /// A call failed with this code.
    Failed(String),
    /// A call runs, in this stage.
    Runs(String),
}

/// Calls in flight, and those that ended.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct CallsPage {
    /// The oldest calls in flight, the oldest first.
    pub running: Vec<CallRow>,
    /// The number of ended calls that are kept.
    pub kept: usize,
    /// The latencies of those, by RPC.
    pub latencies: BTreeMap<String, Latency>,
    /// The last that failed, the oldest first.
    pub failures: Vec<TimelineMoment>,
}

/// A call in flight.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRow {
    /// Its RPC method.
    pub rpc: String,
    /// The driver at whose front it is.
    pub driver: DriverName,
    /// The node to which it was sent last.
    pub node: Option<NodeName>,
    /// The id or name that it is about; empty if there is none.
    pub subject: String,
    /// Its age, in ms.
    pub age_ms: u64,
    /// `front`, `sent`, or `waiting` for its node's next link.
    pub stage: String,
}

/// The latencies of one RPC, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// The number of calls.
    pub calls: usize,
    /// The median.
    pub half: u64,
    /// The 95th percentile.
    pub most: u64,
    /// The longest.
    pub longest: u64,
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// In the order in which they are shown.
    pub hits: Vec<Hit>,
    /// Whether there is more.
    pub is_cut: bool,
}

/// One thing that was found.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    /// The thing.
    pub target: PageTarget,
    /// Its name.
    pub label: String,
    /// Its state, if it is a node.
    pub state: Option<NodeState>,
    /// Where it is.
    pub detail: String,
}

/// The values by which nodes can be grouped.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupValues {
    /// The keys of segments and labels.
    pub keys: Vec<String>,
    /// The values of the key that was asked for.
    pub values: BTreeMap<NodeName, String>,
}
