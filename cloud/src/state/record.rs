//! The records of the store.
//!
//! Their JSON is the format of an export: a renamed field keeps its name there.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proto::control::hello::Run;
use proto::control::leader::LeaderEpoch;
use proto::control::machine::MachineId;
use proto::csi::topology::NODE_SEGMENT;
use proto::csi::{Capabilities, Id, Local, Method, Segments, topology};
use proto::names::{DriverName, NodeName};

use crate::state::election::HOLD;
use crate::state::field::record;
use crate::state::json;
use crate::state::starts::StartRecord;
use crate::state::trust::TrustChange;
use uuid::Uuid;

/// The largest number of nodes noted as claiming another node's home.
const MAX_CONFLICTS: usize = 8;

record! {
    /// The home node of a volume, snapshot or group snapshot, and its last known state.
    #[serde(deny_unknown_fields)]
    pub struct Home {
        /// The home node.
        pub node: NodeName = 1 (string),
        /// The name it was created under; none if csi-cloud did not create it.
        pub name: Option<Box<str>> = 2 (string, optional),
        /// Its list entry as protobuf: `ListVolumesResponse.Entry`, `ListSnapshotsResponse.Entry`
        /// or `CreateVolumeGroupSnapshotResponse`. Empty if it was never seen.
        #[serde(with = "json")]
        pub entry: Bytes = 3 (bytes = "bytes"),
        /// The claim in Kubernetes, if the provisioner named it.
        pub claim: Option<Box<Claim>> = 4 (message, optional),
        /// The parameters of its class for csi-cloud (`edge-csi.io/…`).
        pub parameters: Option<Box<BTreeMap<String, String>>> = 5 (message, optional),
        /// The source of its content.
        #[serde(with = "json")]
        pub source: Option<Box<Id>> = 6 (message, optional),
        /// The time of its discovery, in ms since 1970.
        pub since: u64 = 7 (uint64),
        /// True if the last complete list of its node lacked it; lists then do not show it.
        pub absent: bool = 8 (bool),
        /// True if an operator removed its node.
        pub lost: bool = 9 (bool),
        /// Other nodes that claim it. The first node keeps it; an operator has to look.
        #[serde(rename = "rivals")]
        pub conflicts: Vec<NodeName> = 10 (string, repeated),
        /// True if the operator said that it is there, or if it was made as a part of a group.
        #[serde(default, skip_serializing_if = "is_false")]
        pub adopted: bool = 11 (bool),
    }
}

record! {
    /// The last home of something that was deleted.
    pub struct EndedHome {
        /// The node.
        pub node: NodeName = 1 (string),
        /// The time of the deletion, in ms since 1970.
        pub ended: u64 = 2 (uint64),
        /// True if more than the node's own word said that it was there. False also of an older
        /// csi-cloud, which did not note it.
        #[serde(default, skip_serializing_if = "is_false")]
        pub confirmed: bool = 3 (bool),
    }
}

record! {
    /// A PersistentVolumeClaim, as named by external-provisioner with `--extra-create-metadata`.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    pub struct Claim {
        /// Its namespace.
        pub namespace: Box<str> = 1 (string),
        /// Its name.
        pub name: Box<str> = 2 (string),
        /// The PersistentVolume's name.
        pub volume: Box<str> = 3 (string),
    }
}

record! {
    /// A create that was sent to a node, kept until its result is deleted or known not to exist.
    #[serde(deny_unknown_fields)]
    pub struct Intent {
        /// The node.
        pub node: NodeName = 1 (string),
        /// The time of the first attempt, in ms since 1970.
        pub since: u64 = 2 (uint64),
        /// The last moment at which a sent call may begin at the node, in ms since 1970.
        pub until: u64 = 3 (uint64),
        /// The id of the result, which has a home; none while the outcome is unknown.
        pub made: Option<Box<str>> = 4 (string, optional),
        /// The claim in Kubernetes, if the provisioner named it.
        pub claim: Option<Box<Claim>> = 5 (message, optional),
        /// The attempts that the driver may have got. None if the create has left a node that may
        /// carry it out yet, and of an older csi-cloud, which did not count: then the driver may
        /// have got the create for as long as the intent lives.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub attempts: Option<u32> = 6 (uint32, optional),
        /// Whether the volume is made as a direct one, if its class left that to the RuntimeClass
        /// of its pods. Every attempt is made by the same decision.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub direct: Option<bool> = 7 (bool, optional),
        /// The node's own topology, which every attempt asks for instead of the requested one. None
        /// if the driver is asked for what the call requests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub narrowed: Option<Box<BTreeMap<String, String>>> = 8 (message, optional),
        /// The machine that its attempts were sent to, while the outcome is unknown. `None` if the
        /// node told none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub machine: Option<Box<MachineId>> = 9 (string, optional),
    }
}

/// A topology segment; all nodes in it share one copy.
pub type Segment = Arc<(String, String)>;

record! {
    /// A driver at a node.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    pub struct NodeDriver {
        /// Its unframed answers by RPC method; nodes with equal answers share one copy.
        #[serde(rename = "alike", with = "json")]
        pub answers: Arc<BTreeMap<String, Bytes>> = 1 (btree_map = "string, bytes"),
        /// Its answer to NodeGetInfo, which differs on every node.
        #[serde(with = "json")]
        pub info: Option<Bytes> = 2 (bytes = "bytes", optional),
        /// Its topology segments: its own and ours.
        #[serde(rename = "place")]
        pub segments: Box<[Segment]> = 3 (message, repeated),
        /// The time of its first complete list of volumes, in ms since 1970; zero if none.
        pub listed: u64 = 4 (uint64),
        /// Since when its node no longer names it, in ms since 1970. Its answers stay valid,
        /// because it may come back.
        #[serde(default)]
        pub gone: Option<u64> = 5 (uint64, optional),
        /// The ids that its answers to NodeGetInfo had before, the latest last.
        #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
        pub former_ids: Box<[Box<str>]> = 6 (string, repeated),
    }
}

record! {
    /// The capabilities that a driver's front reports, whatever single nodes report later.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    pub struct Profile {
        /// The unframed answers by RPC method.
        #[serde(with = "json")]
        pub answers: Arc<BTreeMap<String, Bytes>> = 1 (btree_map = "string, bytes"),
        /// Since when it holds, in ms since 1970.
        pub since: u64 = 2 (uint64),
        /// Up to three of the nodes that agreed, or the one that an operator chose.
        pub from: Vec<NodeName> = 3 (string, repeated),
    }
}

impl Profile {
    /// The unframed answer to a method; none if the driver does not implement it.
    pub fn answer(&self, local: Local) -> Option<&Bytes> {
        self.answers.get(Method::answering(local).name())
    }
}

record! {
    /// A node that ever linked.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    pub struct Node {
        /// The time of its first link, in ms since 1970.
        pub since: u64 = 1 (uint64),
        /// The time at which an operator removed it, in ms since 1970.
        pub removed: Option<u64> = 2 (uint64, optional),
        /// The machine that may link as this node: the first that told its id, or the one that an
        /// operator accepted. `None` if none has told it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub machine: Option<MachineId> = 3 (string, optional),
        /// The highest issue number, in ms since 1970, of its certificates that have linked while
        /// they were on its disk. A lower one is not renewed. `None` if there was none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub issue: Option<u64> = 4 (uint64, optional),
        /// What is known of its certificate's use by several csi-edges. `None` if there never were
        /// any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub cordon: Option<Box<Cordon>> = 5 (message, optional),
    }
}

record! {
    /// Several runs of csi-edge that were alive with one node's certificate.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    pub struct Cordon {
        /// Those among which an operator has to choose. While there are any, no csi-edge may link
        /// as the node.
        pub alive: Vec<Run> = 1 (string, repeated),
        /// Those that may not link any more, since an operator chose another one.
        pub refused: Vec<Run> = 2 (string, repeated),
    }
}

impl Node {
    /// The runs of csi-edge because of which none may link; empty if one may.
    pub fn cordoned(&self) -> &[Run] {
        self.cordon.as_deref().map_or(&[], |cordon| &cordon.alive)
    }
}

record! {
    /// The holder of a direct volume: a pod of that node uses it, or may use it.
    #[serde(deny_unknown_fields)]
    pub struct Holder {
        /// The node.
        pub node: NodeName = 1 (string),
        /// Grows with each lease that is granted to anybody.
        pub epoch: u64 = 2 (uint64),
        /// The UID of the pod that it is published to; empty if unknown.
        pub pod: Box<str> = 3 (string),
        /// Since when that pod has it, in ms since 1970.
        pub since: u64 = 4 (uint64),
        /// True if the node has it by its own word, which no MAC proved.
        #[serde(default, skip_serializing_if = "is_false")]
        pub unproven: bool = 5 (bool),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

record! {
    /// A node's word that it holds a volume, which no MAC proved and which contradicts the record
    /// or another node's word.
    #[serde(deny_unknown_fields)]
    pub struct LeaseClaim {
        /// The node.
        pub node: NodeName = 1 (string),
        /// The epoch that it states.
        pub epoch: u64 = 2 (uint64),
        /// Since when it says so, in ms since 1970.
        pub since: u64 = 3 (uint64),
    }
}

record! {
    /// The attachment of a direct volume, done or attempted (ControllerPublishVolume).
    #[serde(deny_unknown_fields)]
    pub struct Attached {
        /// The node.
        pub node: NodeName = 1 (string),
        /// The node's id at the driver at that time. It is detached by this id, even if the driver
        /// renames the node.
        pub id: Box<str> = 2 (string),
        /// The time of the attachment, in ms since 1970.
        pub since: u64 = 3 (uint64),
    }
}

record! {
    /// A lease that an operator revoked, until the node is granted the volume again.
    #[serde(deny_unknown_fields)]
    pub struct Broken {
        /// The node.
        pub node: NodeName = 1 (string),
        /// The epoch of the revocation: all earlier epochs of the node are void.
        pub epoch: u64 = 2 (uint64),
    }
}

record! {
    /// The lease of a direct volume. A record without content is not kept.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    pub struct LeaseRecord {
        /// The current holder.
        #[serde(rename = "owner")]
        pub holder: Option<Holder> = 1 (message, optional),
        /// The attachment. It differs from the holder's node only in a store restored from an older
        /// copy.
        pub attached: Option<Attached> = 2 (message, optional),
        /// The revoked leases, the latest last; each node once.
        pub broken: Vec<Broken> = 3 (message, repeated),
        /// The unproven words of nodes, each node once. While there is no holder, they keep the
        /// volume from everybody.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub claims: Vec<LeaseClaim> = 4 (message, repeated),
    }
}

impl LeaseRecord {
    /// The holder, and the nodes that claim it.
    pub fn nodes(&self) -> Vec<NodeName> {
        let holder = self.holder.iter().map(|holder| &holder.node);
        holder.chain(self.claims.iter().map(|claim| &claim.node)).cloned().collect()
    }
}

record! {
    /// The node that carries out the calls of a shared driver.
    pub struct Elected {
        /// The node.
        pub node: NodeName = 1 (string),
        /// The nodes elected before it, where calls may still begin.
        pub before: Vec<Earlier> = 2 (message, repeated),
    }
}

record! {
    /// A node that was elected before another one.
    pub struct Earlier {
        /// The node.
        pub node: NodeName = 1 (string),
        /// The end of the time in which calls may begin there, in ms since 1970.
        pub until: u64 = 2 (uint64),
    }
}

impl Elected {
    /// The first node that is elected.
    pub fn first(node: NodeName) -> Self {
        Self { node, before: Vec::new() }
    }

    /// Another node after this one. Calls that were sent to this one may begin for [`HOLD`].
    pub fn followed_by(&self, node: NodeName, now: u64) -> Self {
        let stays = |earlier: &&Earlier| earlier.until > now && earlier.node != node;
        let mut before: Vec<_> = self.before.iter().filter(stays).cloned().collect();
        if self.node != node {
            let hold = u64::try_from(HOLD.as_millis()).unwrap_or(u64::MAX);
            before.push(Earlier { node: self.node.clone(), until: now.saturating_add(hold) });
        }
        Self { node, before }
    }
}

/// A change of the store; without a value the record is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The home of a volume, snapshot or group.
    Home(DriverName, Id, Option<Home>),
    /// The last home of something that was deleted.
    EndedHome(DriverName, Id, Option<EndedHome>),
    /// An intent; the id is a name.
    Intent(DriverName, Id, Option<Intent>),
    /// A driver at a node.
    NodeDriver(DriverName, NodeName, Option<NodeDriver>),
    /// A node.
    Node(NodeName, Option<Node>),
    /// The elected node of a shared driver.
    Elected(DriverName, Option<Elected>),
    /// The profile of a driver.
    Profile(DriverName, Option<Profile>),
    /// The lease of a direct volume.
    Lease(DriverName, Id, Option<LeaseRecord>),
    /// The last lease epoch; it only grows.
    Epoch(u64),
    /// The epoch of the last csi-cloud that led; it only grows. See `state::leader_epoch`.
    LeaderEpoch(LeaderEpoch),
    /// A start of a csi-cloud. See `state::starts`.
    Start(Uuid, Option<StartRecord>),
    /// A trust record.
    Trust(TrustChange),
}

impl Change {
    /// The driver, if this removes a record without which nobody may have the driver.
    pub(super) fn removes_of(&self) -> Option<&DriverName> {
        match self {
            Self::NodeDriver(driver, _, None)
            | Self::Elected(driver, None)
            | Self::Lease(driver, _, None) => Some(driver),
            Self::NodeDriver(..)
            | Self::Elected(..)
            | Self::Lease(..)
            | Self::Profile(..)
            | Self::Home(..)
            | Self::EndedHome(..)
            | Self::Intent(..)
            | Self::Node(..)
            | Self::Epoch(_)
            | Self::LeaderEpoch(_)
            | Self::Start(..)
            | Self::Trust(_) => None,
        }
    }
}

impl Home {
    /// A home with nothing known but its node.
    pub fn at(node: NodeName, since: u64) -> Self {
        Self {
            node,
            name: None,
            entry: Bytes::new(),
            claim: None,
            parameters: None,
            source: None,
            since,
            absent: false,
            lost: false,
            conflicts: Vec::new(),
            adopted: false,
        }
    }

    /// True if more than a node's own word says that it is there: a create of ours was answered, or
    /// it was adopted.
    pub fn is_confirmed(&self) -> bool {
        self.name.is_some() || self.adopted
    }

    /// Notes that another node claims it. Returns false if that is known, or enough nodes do: their
    /// claims are charged to the home, so they are bounded.
    pub fn add_conflict(&mut self, node: &NodeName) -> bool {
        let is_news = self.conflicts.len() < MAX_CONFLICTS && !self.conflicts.contains(node);
        if is_news {
            self.conflicts.push(node.clone());
        }
        is_news
    }

    /// The node whose load it counts for.
    pub(super) fn counted(&self, id: &Id) -> Option<&NodeName> {
        (matches!(id, Id::Volume(_)) && !self.lost).then_some(&self.node)
    }
}

impl Intent {
    /// The node whose load it counts for; a finished create counts by its home.
    pub(super) fn counted(&self) -> Option<&NodeName> {
        self.made.is_none().then_some(&self.node)
    }
}

impl NodeDriver {
    /// Its unframed answer to a method; none if it does not implement it.
    pub fn answer(&self, local: Local) -> Option<&Bytes> {
        match local {
            Local::NodeInfo => self.info.as_ref(),
            Local::Info | Local::Probe | Local::Capabilities(_) => {
                self.answers.get(Method::answering(local).name())
            }
        }
    }

    /// True if it has reported its answers at least once.
    pub fn has_spoken(&self) -> bool {
        !self.answers.is_empty()
    }

    /// True if it has a topology of its own; otherwise it uses ours. While NodeGetInfo alone is
    /// known, its segments say it: CSI allows them only with the capability.
    pub fn has_own_topology(&self) -> bool {
        let answer = |local| self.answer(local).map_or(&[][..], |answer| answer);
        let plugin = Local::Capabilities(Capabilities::Plugin);
        let info = answer(Local::NodeInfo);
        match self.has_spoken() {
            true => topology::has_own(answer(plugin), info),
            false => topology::has_segments(info),
        }
    }

    /// Its segments without ours.
    pub fn own_segments(&self) -> Segments {
        let own = self.segments.iter().filter(|segment| segment.0 != NODE_SEGMENT);
        own.map(|segment| (**segment).clone()).collect()
    }

    /// True if a volume of this requested topology may be at it.
    pub fn is_requested(&self, topology: &[Segments], required: bool) -> bool {
        // CSI: without requisite topologies the plugin may choose any.
        !required || topology.iter().any(|segments| self.is_at(segments))
    }

    /// True if its segments include all of these.
    pub fn is_at(&self, wanted: &Segments) -> bool {
        let is_at = |key, value| {
            self.segments.iter().any(|segment| (&segment.0, &segment.1) == (key, value))
        };
        wanted.iter().all(|(key, value)| is_at(key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_claim_of_a_home_has_an_end() {
        let mut home = Home::at("n1".parse().unwrap(), 1);
        let node = |n: usize| format!("liar-{n}").parse().unwrap();
        assert!(home.add_conflict(&node(0)) && !home.add_conflict(&node(0)));
        let noted = (1..100).filter(|n| home.add_conflict(&node(*n))).count();
        assert_eq!((noted + 1, home.conflicts.len()), (MAX_CONFLICTS, MAX_CONFLICTS));
    }
}
