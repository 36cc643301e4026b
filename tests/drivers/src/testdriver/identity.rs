//! The Identity service: the plugin's name and its capabilities.

use crate::grpc::identity_server::Identity;
use proto::csi::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response};

use super::core::{Answer, Core, Optional};
use super::lock::lock;

#[tonic::async_trait]
impl Identity for Core {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Answer<GetPluginInfoResponse> {
        let name = lock(&self.name).clone();
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Answer<GetPluginCapabilitiesResponse> {
        use service::Type as Kind;
        let services = [
            (Some(Optional::Controller), Kind::ControllerService),
            (Some(Optional::GroupController), Kind::GroupControllerService),
            (Some(Optional::SnapshotMetadata), Kind::SnapshotMetadataService),
            (None, Kind::VolumeAccessibilityConstraints),
        ];
        let offered =
            services.into_iter().filter(|(service, _)| service.is_none_or(|s| self.offers(s)));
        let mut types: Vec<_> =
            offered.map(|(_, kind)| Type::Service(Service { r#type: kind.into() })).collect();
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        types.push(Type::VolumeExpansion(online));
        let capabilities =
            types.into_iter().map(|kind| PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Answer<ProbeResponse> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
