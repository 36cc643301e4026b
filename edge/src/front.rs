//! The CSI socket of one driver at this node, for the kubelet and whoever else is on the node: all of the
//! driver's services, each call run as a call from the cloud is. They see our topology where a driver has none, and
//! what they do with direct volumes is ours to do.

use std::sync::Arc;

use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::http2::serve;
use proto::names::{DriverName, NodeName};

use crate::calls::Came;
use crate::direct::Direct;

/// Serves the socket until told to stop; calls in flight are answered first.
pub async fn serve(driver: DriverName, node: NodeName, direct: Arc<Direct>, socket: Socket, tasks: Tasks) {
    let service = move |request| {
        let (driver, direct) = (driver.clone(), direct.clone());
        let came = Came { front_of: Some(node.clone()), ..Came::default() };
        direct.answer(driver, came, request)
    };
    serve::serve_socket(socket, service, tasks).await;
}
