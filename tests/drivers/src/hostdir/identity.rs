//! The Identity service: everything that CSI 1.13 has is offered.

use std::path::Path;

use crate::grpc::identity_server::Identity;
use proto::csi::plugin_capability::service::Type as ServiceType;
use proto::csi::plugin_capability::volume_expansion::Type as ExpansionType;
use proto::csi::plugin_capability::{Service, Type, VolumeExpansion};
use proto::csi::*;
use tonic::{Request, Response, Status, async_trait};

use super::core::Core;
use super::data;
use super::driver::HostDir;

impl Core {
    fn info(&self, _: GetPluginInfoRequest) -> Result<GetPluginInfoResponse, Status> {
        Ok(GetPluginInfoResponse {
            name: self.settings.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Default::default()
        })
    }

    fn probe(&self, _: ProbeRequest) -> Result<ProbeResponse, Status> {
        let state: &Path = &self.state;
        data::room(state).map_err(|status| Status::failed_precondition(status.message()))?;
        Ok(ProbeResponse { ready: Some(true) })
    }
}

fn plugin_capabilities(
    _: &Core,
    _: GetPluginCapabilitiesRequest,
) -> Result<GetPluginCapabilitiesResponse, Status> {
    let services = [
        ServiceType::ControllerService,
        ServiceType::VolumeAccessibilityConstraints,
        ServiceType::GroupControllerService,
        ServiceType::SnapshotMetadataService,
        ServiceType::SnapshotAccessibilityConstraints,
    ];
    let online = VolumeExpansion { r#type: ExpansionType::Online as i32 };
    let all = services
        .map(|service| Type::Service(Service { r#type: service as i32 }))
        .into_iter()
        .chain([Type::VolumeExpansion(online)]);
    Ok(GetPluginCapabilitiesResponse {
        capabilities: all.map(|one| PluginCapability { r#type: Some(one) }).collect(),
    })
}

#[async_trait]
impl Identity for HostDir {
    async fn get_plugin_info(
        &self,
        request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        self.run(request, Core::info).await
    }

    async fn get_plugin_capabilities(
        &self,
        request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        self.run(request, plugin_capabilities).await
    }

    async fn probe(
        &self,
        request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        self.run(request, Core::probe).await
    }
}
