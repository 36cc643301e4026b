//! The drivers of a lying edge's hello.

use std::collections::BTreeMap;

use prost::Message;
use proto::control::hello::{Driver, Protobuf};
use proto::csi::controller_service_capability::{Rpc, Type as Controller, rpc};
use proto::csi::group_controller_service_capability::rpc::Type as GroupRpc;
use proto::csi::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use proto::csi::topology::NODE_SEGMENT;
use proto::csi::{self, Capabilities, Local, Method};

use crate::dice::Dice;
use crate::keys::{LIAR, name};
use crate::shape::{DRIVER, driver_name};
use drivers::testdriver::TOPOLOGY_KEY;

/// A capability that CSI does not define yet.
const FUTURE: i32 = 99;

/// The drivers of a hello: as an honest edge says, but for a lie, so often of a hundred times.
pub(super) fn drivers(dice: &mut Dice, honest: usize, often: u32) -> Vec<Driver> {
    let Ok(driver) = driver_name() else { return Vec::new() };
    let victim = name(dice.below(honest));
    let mut it = Said::honest();
    match dice.below(16) {
        _ if !dice.chance(often) => {}
        0 => it.name = "other.example".into(),
        1 => it.controller.clear(),
        2 => it.controller.truncate(4),
        3 => it.controller.push(FUTURE),
        4 => it.plugin.clear(),
        5 => it.segments = vec![(TOPOLOGY_KEY.into(), victim.into())],
        6 => it.segments = vec![(NODE_SEGMENT.into(), victim.into())],
        7 => it.segments.push((NODE_SEGMENT.into(), victim.into())),
        8 => it.segments.clear(),
        9 => it.node_id = victim.into(),
        10 => {
            it.node_id = victim.into();
            it.segments = vec![(TOPOLOGY_KEY.into(), victim.into())];
        }
        11 => return Vec::new(),
        12 => return vec![Driver { name: driver, answers: garbage(dice), health: None }],
        13 => return vec![Driver { name: driver, answers: BTreeMap::new(), health: None }],
        _ => {}
    }
    vec![Driver { name: driver, answers: it.answers(), health: None }]
}

/// What a driver says of itself.
struct Said {
    name: String,
    plugin: Vec<service::Type>,
    controller: Vec<i32>,
    node_id: String,
    segments: Vec<(String, String)>,
}

impl Said {
    /// What the honest nodes' drivers say.
    fn honest() -> Self {
        use service::Type as Kind;
        Self {
            name: DRIVER.into(),
            plugin: vec![
                Kind::ControllerService,
                Kind::GroupControllerService,
                Kind::SnapshotMetadataService,
                Kind::VolumeAccessibilityConstraints,
            ],
            controller: (1..=17).filter(|n| rpc::Type::try_from(*n).is_ok()).collect(),
            node_id: LIAR.into(),
            segments: vec![(TOPOLOGY_KEY.into(), LIAR.into())],
        }
    }

    fn answers(self) -> BTreeMap<String, Protobuf> {
        let Self { name, plugin, controller, node_id, segments } = self;
        let info = csi::GetPluginInfoResponse {
            name,
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        };
        let service = |kind: service::Type| csi::PluginCapability {
            r#type: Some(Type::Service(Service { r#type: kind.into() })),
        };
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let online = csi::PluginCapability { r#type: Some(Type::VolumeExpansion(online)) };
        let plugin = csi::GetPluginCapabilitiesResponse {
            capabilities: plugin.into_iter().map(service).chain([online]).collect(),
        };
        let rpc = |kind| csi::ControllerServiceCapability {
            r#type: Some(Controller::Rpc(Rpc { r#type: kind })),
        };
        let controller = csi::ControllerGetCapabilitiesResponse {
            capabilities: controller.into_iter().map(rpc).collect(),
        };
        let group = csi::group_controller_service_capability::Rpc {
            r#type: GroupRpc::CreateDeleteGetVolumeGroupSnapshot.into(),
        };
        let group = csi::GroupControllerGetCapabilitiesResponse {
            capabilities: vec![csi::GroupControllerServiceCapability {
                r#type: Some(csi::group_controller_service_capability::Type::Rpc(group)),
            }],
        };
        let info_of_node = csi::NodeGetInfoResponse {
            node_id,
            accessible_topology: Some(csi::Topology { segments: segments.into_iter().collect() }),
            ..Default::default()
        };
        let named = |local, message: Vec<u8>| {
            (Method::answering(local).name().to_owned(), Protobuf(message.into()))
        };
        [
            named(Local::Info, info.encode_to_vec()),
            named(Local::Capabilities(Capabilities::Plugin), plugin.encode_to_vec()),
            named(Local::Capabilities(Capabilities::Controller), controller.encode_to_vec()),
            named(Local::Capabilities(Capabilities::Group), group.encode_to_vec()),
            named(Local::Capabilities(Capabilities::Node), of_node().encode_to_vec()),
            named(Local::NodeInfo, info_of_node.encode_to_vec()),
        ]
        .into()
    }
}

/// What the honest nodes' drivers can at a node.
fn of_node() -> csi::NodeGetCapabilitiesResponse {
    use csi::node_service_capability::{Rpc, Type, rpc::Type as Kind};
    let kinds = [
        Kind::StageUnstageVolume,
        Kind::GetVolumeStats,
        Kind::ExpandVolume,
        Kind::SingleNodeMultiWriter,
        Kind::VolumeMountGroup,
        Kind::GetVolumeHealth,
        Kind::GetStorageHealth,
    ];
    let capability = |kind: Kind| csi::NodeServiceCapability {
        r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
    };
    csi::NodeGetCapabilitiesResponse { capabilities: kinds.map(capability).into() }
}

fn garbage(dice: &mut Dice) -> BTreeMap<String, Protobuf> {
    let mut bytes = || Protobuf((0..9).map(|_| dice.pick(&[0, 8, 10, 26, 255])).collect());
    let names = ["GetPluginInfo", "GetPluginCapabilities", "NodeGetInfo", "Nonsense"];
    names.into_iter().map(|name| (name.to_owned(), bytes())).collect()
}
