//! The values of the table's columns: how one RPC differs from another.
//!
//! Each is a small enum, so that a caller matches exhaustively and names no method.

/// A kind of resource that a driver makes and lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
    /// A volume group snapshot.
    Group,
}

impl Resource {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Volume, Self::Snapshot, Self::Group];

    /// Its place in [`Self::ALL`].
    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// A list over all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum List {
    /// The volumes.
    Volumes,
    /// The snapshots.
    Snapshots,
    /// The health of the volumes.
    Health,
}

impl List {
    /// All lists.
    pub const ALL: [Self; 3] = [Self::Volumes, Self::Snapshots, Self::Health];

    /// Its place in [`Self::ALL`].
    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// A call that a front answers itself, from drivers' earlier answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Local {
    /// The driver's name and version.
    Info,
    /// Whether the driver is ready.
    Probe,
    /// The capabilities of one of the driver's services.
    Capabilities(Capabilities),
    /// The node's id and topology.
    NodeInfo,
}

impl Local {
    /// All calls that a front answers itself.
    pub const ALL: [Self; 7] = [
        Self::Info,
        Self::Probe,
        Self::NodeInfo,
        Self::Capabilities(Capabilities::Plugin),
        Self::Capabilities(Capabilities::Controller),
        Self::Capabilities(Capabilities::Group),
        Self::Capabilities(Capabilities::Node),
    ];

    /// Its place in [`Self::ALL`].
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Info => 0,
            Self::Probe => 1,
            Self::NodeInfo => 2,
            Self::Capabilities(of) => 3 + of as usize,
        }
    }
}

/// The service whose capabilities are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capabilities {
    /// Identity: those of the plugin.
    Plugin,
    /// Controller.
    Controller,
    /// GroupController.
    Group,
    /// Node.
    Node,
}

impl Capabilities {
    /// All services that have capabilities.
    pub const ALL: [Self; 4] = [Self::Plugin, Self::Controller, Self::Group, Self::Node];
}

/// The rewriting of the request and its answer by csi-cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rewrite {
    /// None: both pass as they came.
    Nothing,
    /// The answer gets the capability of our topology.
    PluginCapabilities,
    /// The answer gets the node's segment.
    NodeInfo,
    /// The request loses `edge-csi.io/` parameters and segments; the answer gets the node's
    /// segment.
    CreateVolume,
    /// The same for a snapshot, which has no `edge-csi.io/` parameters.
    CreateSnapshot,
    /// The request loses `edge-csi.io/` parameters and segments.
    Capacity,
    /// Each entry of the answer is rewritten like CreateVolume's answer.
    ListVolumes,
    /// Each entry of the answer is rewritten like CreateSnapshot's answer.
    ListSnapshots,
}

/// The effect of a call on a direct volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DirectCall {
    /// It makes one.
    Create,
    /// It asks for the space for one.
    Capacity,
    /// It attaches one to a node.
    Attach,
    /// It asks whether one can be used in some way.
    Validate,
    /// It grows one.
    Expand,
    /// It deletes one.
    Delete,
    /// It is a step on the node.
    Node(NodeStep),
}

/// The effect of a call on a direct volume on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeStep {
    /// NodeStageVolume.
    Stage,
    /// NodeUnstageVolume.
    Unstage,
    /// NodePublishVolume.
    Publish,
    /// NodeUnpublishVolume.
    Unpublish,
    /// NodeGetVolumeStats.
    Stats,
    /// NodeExpandVolume.
    Expand,
    /// NodeGetVolumeHealth.
    Health,
}

/// What a call locks at its node while its driver carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    /// Nothing: it only reads.
    Nothing,
    /// The name of what it makes. It shares the volumes and the snapshot that this is made of.
    Made,
    /// What it deletes. A volume also at the node: a driver that is not attached may be unstaging
    /// it. A group also with its members, which are in this field.
    Gone {
        /// The field of the members' ids; none if it deletes no group.
        members: Option<u32>,
    },
    /// The volume's size. It shares the volume.
    Size,
    /// The volume's attributes, which some drivers change together with the size. It shares the
    /// volume.
    Attributes,
    /// The volume at the node whose id is in this field, and all of the volume if there is none. It
    /// shares the volume.
    Attachment(u32),
    /// The volume at this node.
    AtNode,
    /// The path in this field. It shares the volume at this node.
    Target(u32),
}

/// A class of Kubernetes, whose parameters a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// StorageClass.
    Storage,
    /// VolumeAttributesClass.
    VolumeAttributes,
    /// VolumeSnapshotClass.
    VolumeSnapshot,
    /// VolumeGroupSnapshotClass.
    VolumeGroupSnapshot,
}

impl Class {
    /// Its kind in Kubernetes.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Storage => "StorageClass",
            Self::VolumeAttributes => "VolumeAttributesClass",
            Self::VolumeSnapshot => "VolumeSnapshotClass",
            Self::VolumeGroupSnapshot => "VolumeGroupSnapshotClass",
        }
    }
}

/// Field numbers of a request that the driver of a direct volume gets in an edited form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The field of the volume's capability, or capabilities.
    pub capability: u32,
    /// The fields of the volume's context and of parameters; empty if the request has none.
    pub context: &'static [u32],
}
