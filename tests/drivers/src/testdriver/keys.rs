//! The keys and the RPC that only this driver has.

/// The topology segment of the driver's nodes.
pub const TOPOLOGY_KEY: &str = "topology.test.edge-csi.io/node";
/// The key of the publish context that `ControllerPublishVolume` answers.
pub const PUBLISH_KEY: &str = "test.edge-csi.io/device";
/// The path of an RPC that CSI does not have; it echoes the bytes of its request.
pub const FUTURE_PATH: &str = "/csi.v1.Controller/ControllerFutureThing";
/// The name of an RPC that CSI does not have.
pub(super) const FUTURE_METHOD: &str = "ControllerFutureThing";
