//! A driver like csi-driver-nfs: it mounts the share that the volume's attributes name, without
//! staging. Shares are directories below one that this driver has: a local one, or one of a file
//! server ([`super::remote`]). With a file server it has a controller, which makes shares.
//!
//! At its node it keeps no records, because the mounts are its whole state there.

use std::path::{Component, Path, PathBuf};

use crate::grpc::identity_server::{Identity, IdentityServer};
use crate::grpc::node_server::{Node, NodeServer};
use proto::csi::plugin_capability::service::Type as ServiceType;
use proto::csi::plugin_capability::volume_expansion::Type as ExpansionType;
use proto::csi::plugin_capability::{Service, Type, VolumeExpansion};
use proto::csi::*;
use proto::host::socket::Socket;
use tonic::{Request, Response, Status, async_trait};

use super::core::Settings;
use super::driver::{HostDir, blocking};
use super::{check, data, mounts, serve};

/// See the module; clones are the same driver.
#[derive(Clone)]
pub struct Shares {
    settings: Settings,
    exports: PathBuf,
    controller: Option<HostDir>,
}

impl Shares {
    /// A driver that mounts directories below `exports`, as if each were a share of its server.
    pub fn of(exports: &Path, settings: Settings) -> Self {
        Self { settings, exports: exports.to_owned(), controller: None }
    }

    /// The same with a controller, for `exports` of the file server that the settings name.
    ///
    /// # Errors
    /// The server does not answer, or what it has cannot be read.
    pub fn made_on_demand(exports: &Path, settings: Settings) -> anyhow::Result<Self> {
        let controller = Some(HostDir::open(exports, settings.clone())?);
        Ok(Self { settings, exports: exports.to_owned(), controller })
    }

    /// Answers the services Identity and Node on `socket` until `stop` ends and the calls in
    /// progress are answered.
    ///
    /// # Errors
    /// The socket fails.
    pub async fn serve(
        self,
        socket: Socket,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let routes = serve::Routes {
            identity: IdentityServer::new(self.clone()),
            controller: self.controller.as_ref().map(serve::Controllers::of),
            node: NodeServer::new(self),
        };
        serve::until(routes, socket, stop).await
    }

    /// The directory that stands for a share.
    fn export(
        &self,
        context: &std::collections::HashMap<String, String>,
    ) -> Result<PathBuf, Status> {
        let of = |key: &str| context.get(key).map(String::as_str).unwrap_or_default();
        check::present("volume_context.server", of("server"))?;
        check::path("volume_context.share", of("share"))?;
        let plain =
            |part: &Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        let share = Path::new(of("share"));
        if !share.components().all(|part| plain(&part)) {
            return Err(Status::invalid_argument("volume_context.share has a `..` in it"));
        }
        let export = self.exports.join(share.strip_prefix("/").unwrap_or(share));
        if export.is_dir() {
            return Ok(export);
        }
        Err(Status::not_found(format!(
            "the server {} has no share {}",
            of("server"),
            share.display()
        )))
    }

    fn mount(
        &self,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        check::present("volume_id", &request.volume_id)?;
        check::path("target_path", &request.target_path)?;
        let export = self.export(&request.volume_context)?;
        if mounts::is_mount(&request.target_path) {
            return Ok(NodePublishVolumeResponse {});
        }
        mounts::prepare(&request.target_path, false)?;
        // Mount options are for a server; the connection to it is there already.
        mounts::bind(&export, &request.target_path, &[], request.readonly)?;
        Ok(NodePublishVolumeResponse {})
    }
}

fn unmount(request: &NodeUnpublishVolumeRequest) -> Result<NodeUnpublishVolumeResponse, Status> {
    check::path("target_path", &request.target_path)?;
    mounts::release(&request.target_path)?;
    mounts::clear(&request.target_path)?;
    Ok(NodeUnpublishVolumeResponse {})
}

#[async_trait]
impl Identity for Shares {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        let name = self.settings.name.clone();
        Ok(Response::new(GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let online = VolumeExpansion { r#type: ExpansionType::Online as i32 };
        let controller = Service { r#type: ServiceType::ControllerService as i32 };
        let all = [Type::Service(controller), Type::VolumeExpansion(online)];
        let offered = all.into_iter().filter(|_| self.controller.is_some());
        let one = |kind| PluginCapability { r#type: Some(kind) };
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: offered.map(one).collect(),
        }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let exports = self.exports.clone();
        let room = blocking(move || data::room(&exports)).await;
        room.map_err(|status| Status::failed_precondition(status.message()))?;
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

/// Implements the service: what is given, and UNIMPLEMENTED for the rest.
macro_rules! node {
    ($($rpc:ident: $request:ident => $response:ident;)*) => {
        #[async_trait]
        impl Node for Shares {
            async fn node_publish_volume(
                &self,
                request: Request<NodePublishVolumeRequest>,
            ) -> Result<Response<NodePublishVolumeResponse>, Status> {
                let shares = self.clone();
                blocking(move || shares.mount(request.into_inner())).await.map(Response::new)
            }

            async fn node_unpublish_volume(
                &self,
                request: Request<NodeUnpublishVolumeRequest>,
            ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
                blocking(move || unmount(request.get_ref())).await.map(Response::new)
            }

            async fn node_get_info(
                &self,
                _: Request<NodeGetInfoRequest>,
            ) -> Result<Response<NodeGetInfoResponse>, Status> {
                Ok(Response::new(NodeGetInfoResponse {
                    node_id: self.settings.node_id.clone(),
                    max_volumes_per_node: self.settings.attach_limit.into(),
                    accessible_topology: None,
                }))
            }

            async fn node_get_capabilities(
                &self,
                _: Request<NodeGetCapabilitiesRequest>,
            ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
                Ok(Response::new(NodeGetCapabilitiesResponse::default()))
            }

            $(async fn $rpc(&self, _: Request<$request>) -> Result<Response<$response>, Status> {
                Err(Status::unimplemented("this driver only mounts"))
            })*
        }
    };
}

node! {
    node_stage_volume: NodeStageVolumeRequest => NodeStageVolumeResponse;
    node_unstage_volume: NodeUnstageVolumeRequest => NodeUnstageVolumeResponse;
    node_get_volume_stats: NodeGetVolumeStatsRequest => NodeGetVolumeStatsResponse;
    node_get_volume_health: NodeGetVolumeHealthRequest => NodeGetVolumeHealthResponse;
    node_get_storage_health: NodeGetStorageHealthRequest => NodeGetStorageHealthResponse;
    node_expand_volume: NodeExpandVolumeRequest => NodeExpandVolumeResponse;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_directory_below_the_exports_and_nothing_else() {
        let exports = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(exports.path().join("srv/archive")).unwrap();
        let settings = Settings {
            name: "shares".into(),
            node_id: "n".into(),
            attach_limit: 0,
            echo_preferred: false,
            capacity: 0,
            server: None,
        };
        let shares = Shares::of(exports.path(), settings);
        let export = |share: &str| {
            let context = [("server", "s"), ("share", share)];
            shares.export(&context.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
        };
        assert_eq!(export("/srv/archive").unwrap(), exports.path().join("srv/archive"));
        assert_eq!(export("/srv/other").unwrap_err().code(), tonic::Code::NotFound);
        for bad in ["", "srv/archive", "/srv/../..", "/.."] {
            assert_eq!(export(bad).unwrap_err().code(), tonic::Code::InvalidArgument, "{bad}");
        }
    }
}
