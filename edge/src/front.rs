//! The CSI socket of one driver at this node, for the kubelet and others on the node.
//!
//! It serves all of the driver's services. Its callers see our topology if the driver has none, and
//! [`Direct`] carries out what they do with direct volumes. It may use `edge-calls`
//! and `edge-direct`.

use std::sync::Arc;

use edge_calls::executor::Origin;
use edge_direct::Direct;
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::http2::serve;
use proto::names::{DriverName, NodeName};

/// Serves the socket until told to stop; calls in flight are answered first.
pub async fn serve(
    driver: DriverName,
    node: NodeName,
    direct: Arc<Direct>,
    socket: Socket,
    tasks: Tasks,
) {
    let service = move |request| {
        let origin = Origin { front_of: Some(node.clone()), ..Origin::default() };
        direct.clone().answer(driver.clone(), origin, request)
    };
    serve::serve_socket(socket, service, tasks).await;
}
