//! The keys that the driver uses in topologies and parameters.

/// The key of the one topology segment; its value is the node id.
pub const TOPOLOGY_KEY: &str = "topology.hostdir.edge-csi.io/node";
/// The one mutable parameter, with any value.
pub const MUTABLE_KEY: &str = "mutableKey";
