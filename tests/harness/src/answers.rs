//! What drivers answer about themselves.

use prost::Message as _;
use proto::csi;
use proto::csi::controller_service_capability::rpc::Type as Rpc;

/// The capability answers of a driver of node-local storage, with their methods.
pub fn node_local(rpcs: &[Rpc]) -> [(&'static str, Vec<u8>); 2] {
    use csi::plugin_capability::service::Type as Service;
    use csi::{controller_service_capability as controller, plugin_capability as plugin};
    let service = |kind: Service| csi::PluginCapability {
        r#type: Some(plugin::Type::Service(plugin::Service { r#type: kind.into() })),
    };
    let rpc = |kind: &Rpc| csi::ControllerServiceCapability {
        r#type: Some(controller::Type::Rpc(controller::Rpc { r#type: (*kind).into() })),
    };
    let services = [Service::ControllerService, Service::VolumeAccessibilityConstraints];
    let plugin = csi::GetPluginCapabilitiesResponse { capabilities: services.map(service).into() };
    let controller =
        csi::ControllerGetCapabilitiesResponse { capabilities: rpcs.iter().map(rpc).collect() };
    [
        ("GetPluginCapabilities", plugin.encode_to_vec()),
        ("ControllerGetCapabilities", controller.encode_to_vec()),
    ]
}
