//! The way from the socket to the five services. tonic's own router would bring a web framework along.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{Request, Response};
use proto::csi::controller_server::ControllerServer;
use proto::csi::group_controller_server::GroupControllerServer;
use proto::csi::identity_server::IdentityServer;
use proto::csi::node_server::NodeServer;
use proto::csi::snapshot_metadata_server::SnapshotMetadataServer;
use proto::socket::Socket;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Server;

use super::HostDir;

impl HostDir {
    /// Answers all five services on `socket` until `stop` ends and the calls in progress are answered.
    ///
    /// # Errors
    /// The socket fails.
    pub async fn serve(
        self,
        socket: Socket,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let incoming = stream::unfold(socket, |socket| async move {
            let accepted = socket.listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, socket))
        });
        let routes = Routes {
            identity: IdentityServer::new(self.clone()),
            controller: ControllerServer::new(self.clone()),
            group: GroupControllerServer::new(self.clone()),
            metadata: SnapshotMetadataServer::new(self.clone()),
            node: NodeServer::new(self),
        };
        Server::builder().serve_with_incoming_shutdown(routes, Box::pin(incoming), stop).await
    }
}

/// The generated services.
#[derive(Clone)]
struct Routes {
    identity: IdentityServer<HostDir>,
    controller: ControllerServer<HostDir>,
    group: GroupControllerServer<HostDir>,
    metadata: SnapshotMetadataServer<HostDir>,
    node: NodeServer<HostDir>,
}

impl Service<Request<Body>> for Routes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        match path.strip_prefix("/csi.v1.").and_then(|rest| rest.split_once('/')) {
            Some(("Identity", _)) => self.identity.call(request),
            Some(("Controller", _)) => self.controller.call(request),
            Some(("GroupController", _)) => self.group.call(request),
            Some(("SnapshotMetadata", _)) => self.metadata.call(request),
            Some(("Node", _)) => self.node.call(request),
            _ => {
                let refused = Status::unimplemented(format!("there is no {path}")).into_http();
                Box::pin(async { Ok(refused) })
            }
        }
    }
}
