//! The CSI socket of one driver at this node, for the kubelet and whoever else is on the node: all of the
//! driver's services, each call run as a call from the cloud is. They see our topology where a driver has none.

use std::sync::Arc;

use proto::http2;
use proto::identity::{DriverName, NodeName};
use proto::socket::Socket;
use proto::stop::Tasks;

use crate::calls::{Calls, Came};

/// Serves the socket until told to stop; calls in flight are answered first.
pub async fn serve(driver: DriverName, node: NodeName, calls: Arc<Calls>, socket: Socket, tasks: Tasks) {
    let service = move |request| {
        let (driver, calls) = (driver.clone(), calls.clone());
        let came = Came { front_of: Some(node.clone()), ..Came::default() };
        async move { calls.answer(driver.as_str(), came, request).await }
    };
    http2::serve_socket(socket, service, tasks).await;
}
