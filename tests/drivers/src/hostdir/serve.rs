//! The way from the socket to the services. tonic's own router would bring a web framework along.

use std::convert::Infallible;
use std::task::{Context, Poll};

use crate::grpc::controller_server::ControllerServer;
use crate::grpc::group_controller_server::GroupControllerServer;
use crate::grpc::identity_server::{Identity, IdentityServer};
use crate::grpc::node_server::{Node, NodeServer};
use crate::grpc::snapshot_metadata_server::SnapshotMetadataServer;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream;
use http::{Request, Response};
use proto::host::socket::Socket;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Server;

use super::driver::HostDir;

impl HostDir {
    /// Answers all five services on `socket` until `stop` ends and the calls in progress are
    /// answered.
    ///
    /// # Errors
    /// The socket fails.
    pub async fn serve(
        self,
        socket: Socket,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let routes = Routes {
            identity: IdentityServer::new(self.clone()),
            controller: Some(Controllers::of(&self)),
            node: NodeServer::new(self),
        };
        until(routes, socket, stop).await
    }

    /// Answers Identity and Node on the first socket, and all services on the second one.
    ///
    /// # Errors
    /// A socket fails.
    pub async fn serve_apart(
        self,
        sockets: [Socket; 2],
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let [node, controller] = sockets;
        let stop = stop.shared();
        let routes = Routes {
            identity: IdentityServer::new(self.clone()),
            controller: None,
            node: NodeServer::new(self.clone()),
        };
        tokio::try_join!(until(routes, node, stop.clone()), self.serve(controller, stop)).map(drop)
    }
}

/// Answers what is routed on `socket` until `stop` ends and the calls in progress are answered.
pub(super) async fn until<D: Identity + Node + Clone>(
    routes: Routes<D>,
    socket: Socket,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = stream::unfold(socket, |socket| async move {
        let accepted = socket.listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, socket))
    });
    Server::builder().serve_with_incoming_shutdown(routes, Box::pin(incoming), stop).await
}

/// The generated services: those that every driver has, and those of a driver with a controller.
#[derive(Clone)]
pub(super) struct Routes<D> {
    pub(super) identity: IdentityServer<D>,
    pub(super) node: NodeServer<D>,
    pub(super) controller: Option<Controllers>,
}

/// Services of a controller.
#[derive(Clone)]
pub(super) struct Controllers {
    controller: ControllerServer<HostDir>,
    group: GroupControllerServer<HostDir>,
    metadata: SnapshotMetadataServer<HostDir>,
}

impl Controllers {
    pub(super) fn of(driver: &HostDir) -> Self {
        Self {
            controller: ControllerServer::new(driver.clone()),
            group: GroupControllerServer::new(driver.clone()),
            metadata: SnapshotMetadataServer::new(driver.clone()),
        }
    }
}

impl<D: Identity + Node + Clone> Service<Request<Body>> for Routes<D> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let service = path.strip_prefix("/csi.v1.").and_then(|rest| rest.split_once('/'));
        match (service.map(|(service, _)| service), &mut self.controller) {
            (Some("Identity"), _) => self.identity.call(request),
            (Some("Node"), _) => self.node.call(request),
            (Some("Controller"), Some(all)) => all.controller.call(request),
            (Some("GroupController"), Some(all)) => all.group.call(request),
            (Some("SnapshotMetadata"), Some(all)) => all.metadata.call(request),
            _ => {
                let refused = Status::unimplemented(format!("there is no {path}")).into_http();
                Box::pin(async { Ok(refused) })
            }
        }
    }
}
