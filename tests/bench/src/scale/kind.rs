//! What light edges say of themselves: their driver, its place and its health.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use proto::control::health::Health;
use proto::control::hello::{Driver, Protobuf};
use proto::csi;
use proto::csi::controller_service_capability::rpc::Type as Rpc;
use proto::names::{DriverName, NodeName};

use harness::answers::node_local;

/// The driver that every edge has.
pub const DRIVER: &str = "scale.test.edge-csi.io";
/// The segment of its topology that is an edge's name.
pub const SEGMENT: &str = "topology.scale.example/node";
/// The key of that segment.
pub const ZONE: &str = "topology.scale.example/zone";

/// What some edges of a fleet are like.
#[derive(Clone, Default)]
pub struct Kind {
    /// Their numbers.
    pub numbers: Range<usize>,
    /// For how many days their certificates are good.
    pub days: u16,
    /// How their driver is; they do not say without it.
    pub health: Option<Health>,
    /// A segment of their topology that they share.
    pub zone: Option<String>,
    /// How often each sends a sign of life of its own; csi-cloud chooses without it.
    pub signs: Option<Duration>,
}

impl Kind {
    /// The answers of a driver of node-local disks about itself.
    pub(super) fn driver(&self, node: &NodeName, name: DriverName) -> Driver {
        let info = csi::GetPluginInfoResponse {
            name: DRIVER.into(),
            vendor_version: "1.2.3".into(),
            manifest: Default::default(),
        };
        let [plugin, controller] = node_local(&[
            Rpc::CreateDeleteVolume,
            Rpc::PublishUnpublishVolume,
            Rpc::GetCapacity,
            Rpc::CreateDeleteSnapshot,
            Rpc::ExpandVolume,
        ]);
        let zone = self.zone.iter().map(|zone| (ZONE.to_owned(), zone.clone()));
        let segments = zone.chain([(SEGMENT.to_owned(), node.to_string())]).collect();
        let node = csi::NodeGetInfoResponse {
            node_id: node.to_string(),
            max_volumes_per_node: 64,
            accessible_topology: Some(csi::Topology { segments }),
        };
        let answers = [
            ("GetPluginInfo", info.encode_to_vec()),
            plugin,
            controller,
            ("NodeGetCapabilities", csi::NodeGetCapabilitiesResponse::default().encode_to_vec()),
            ("NodeGetInfo", node.encode_to_vec()),
        ];
        let answers =
            answers.map(|(method, bytes)| (method.to_owned(), Protobuf(Bytes::from(bytes))));
        Driver { name, answers: answers.into(), health: self.health.clone() }
    }
}
