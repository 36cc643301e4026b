//! The keys that the driver uses in topologies and parameters.

/// The key of the one topology segment; its value is the node id.
pub const TOPOLOGY_KEY: &str = "topology.hostdir.edge-csi.io/node";
/// The name of a pipe in the state directory. Attachments wait while it has no writer, so that
/// tests have one that hangs while the driver is well.
pub const ATTACH_WAITS: &str = "attach-waits";
/// The begin of the name of such a pipe for one volume, whose id follows: it is not published while
/// the pipe has no writer.
pub const PUBLISH_WAITS: &str = "publish-waits-";
/// The one mutable parameter, with any value.
pub const MUTABLE_KEY: &str = "mutableKey";
