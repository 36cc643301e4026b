//! What a lying edge says: its drivers, and its answers.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Response;
use prost::Message;
use proto::control::hello::{Driver, Protobuf};
use proto::csi::controller_service_capability::rpc;
use proto::csi::group_controller_service_capability::rpc::Type as GroupRpc;
use proto::csi::plugin_capability::{Service, Type, service};
use proto::csi::{self, Capabilities, List, Local, Method, frame};
use proto::http2::body::Body;
use proto::http2::forward::Answer;
use tonic::{Code, Status};

use super::dice::Dice;
use super::fleet::{DRIVER, driver_name};
use super::keys::{LIAR, name};
use drivers::testdriver::TOPOLOGY_KEY;

/// Codes of refusals.
const CODES: [Code; 8] = [
    Code::Unimplemented,
    Code::Unavailable,
    Code::NotFound,
    Code::Internal,
    Code::Aborted,
    Code::ResourceExhausted,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
];

/// The drivers of a hello: as an honest edge says, but for one lie.
pub(super) fn drivers(dice: &mut Dice, honest: usize) -> Vec<Driver> {
    let Ok(driver) = driver_name() else { return Vec::new() };
    let victim = name(dice.below(honest));
    let mut it = Said::honest();
    match dice.below(10) {
        0 => it.name = "other.example".into(),
        1 => it.controller.clear(),
        2 => it.controller.truncate(4),
        3 => it.plugin.clear(),
        4 => it.segment = (TOPOLOGY_KEY.into(), victim.into()),
        5 => it.segment = ("topology.edge-csi.io/node".into(), victim.into()),
        6 => it.node_id = victim.into(),
        7 => return Vec::new(),
        8 => return vec![Driver { name: driver, answers: garbage(dice) }],
        _ => {}
    }
    vec![Driver { name: driver, answers: it.answers() }]
}

/// What a driver says of itself.
struct Said {
    name: String,
    plugin: Vec<service::Type>,
    controller: Vec<rpc::Type>,
    node_id: String,
    segment: (String, String),
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
            controller: (1..=17).filter_map(|n| rpc::Type::try_from(n).ok()).collect(),
            node_id: LIAR.into(),
            segment: (TOPOLOGY_KEY.into(), LIAR.into()),
        }
    }

    fn answers(self) -> BTreeMap<String, Protobuf> {
        let Self { name, plugin, controller, node_id, segment } = self;
        let info = csi::GetPluginInfoResponse {
            name,
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        };
        let service = |kind: service::Type| csi::PluginCapability {
            r#type: Some(Type::Service(Service { r#type: kind.into() })),
        };
        let plugin = csi::GetPluginCapabilitiesResponse {
            capabilities: plugin.into_iter().map(service).collect(),
        };
        let rpc = |kind: rpc::Type| csi::ControllerServiceCapability {
            r#type: Some(csi::controller_service_capability::Type::Rpc(
                csi::controller_service_capability::Rpc { r#type: kind.into() },
            )),
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
        let node = csi::NodeGetInfoResponse {
            node_id,
            accessible_topology: Some(csi::Topology { segments: [segment].into() }),
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
            named(Local::NodeInfo, node.encode_to_vec()),
        ]
        .into()
    }
}

fn garbage(dice: &mut Dice) -> BTreeMap<String, Protobuf> {
    let mut bytes = || Protobuf((0..9).map(|_| dice.pick(&[0, 8, 10, 26, 255])).collect());
    let names = ["GetPluginInfo", "GetPluginCapabilities", "NodeGetInfo", "Nonsense"];
    names.into_iter().map(|name| (name.to_owned(), bytes())).collect()
}

/// One of these ids.
pub(super) fn id(dice: &mut Dice, ids: &[String]) -> Option<String> {
    ids.get(dice.below(ids.len())).cloned()
}

/// A refusal with this code.
pub(super) fn refusal(code: Code) -> Response<Body> {
    Status::new(code, "a lie").into_http()
}

/// The answer to a call: a claim of what honest nodes have, a refusal, or garbage.
pub(super) fn answer(
    dice: &mut Dice,
    method: Method,
    volumes: &[String],
    snapshots: &[String],
) -> Response<Body> {
    let message = match dice.below(10) {
        0..3 => return refusal(dice.pick(&CODES)),
        3 => (0..9).map(|_| dice.pick(&[0, 8, 10, 26, 255])).collect(),
        4 => Vec::new(),
        _ => claim(dice, method, volumes, snapshots),
    };
    Answer::of(frame::frame(&message)).response()
}

/// An OK that says that the liar has what it was asked about, and more.
fn claim(dice: &mut Dice, method: Method, volumes: &[String], snapshots: &[String]) -> Vec<u8> {
    let next_token = dice.pick(&["", "", "", "again"]).to_owned();
    let listed = |dice: &mut Dice, ids: &[String]| -> Vec<String> {
        let mut listed: Vec<_> = ids.iter().filter(|_| dice.chance(60)).cloned().collect();
        listed.push(format!("lie-{}", dice.below(5)));
        listed
    };
    if method == Method::listing(List::Volumes) {
        let entries = listed(dice, volumes).into_iter().map(|volume_id| {
            let status =
                csi::list_volumes_response::VolumeStatus { published_node_ids: vec![LIAR.into()] };
            let volume = csi::Volume { volume_id, ..Default::default() };
            csi::list_volumes_response::Entry { volume: Some(volume), status: Some(status) }
        });
        let entries = entries.collect();
        return csi::ListVolumesResponse { entries, next_token }.encode_to_vec();
    }
    if method == Method::listing(List::Snapshots) {
        let entries = listed(dice, snapshots).into_iter().map(|snapshot_id| {
            let snapshot = csi::Snapshot { snapshot_id, ..Default::default() };
            csi::list_snapshots_response::Entry { snapshot: Some(snapshot) }
        });
        let entries = entries.collect();
        return csi::ListSnapshotsResponse { entries, next_token }.encode_to_vec();
    }
    // For CreateVolume and GetCapacity, too: field 1 is a volume, or a number of bytes.
    let volume =
        csi::Volume { volume_id: id(dice, volumes).unwrap_or_default(), ..Default::default() };
    let created = csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec();
    let capacity = csi::GetCapacityResponse { available_capacity: i64::MAX, ..Default::default() };
    dice.pick(&[Bytes::new(), created.into(), capacity.encode_to_vec().into()]).into()
}
