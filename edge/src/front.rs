//! The CSI socket of one driver at this node, for the kubelet and whoever else is on the node: all of the
//! driver's services, each call run as a call from the cloud is.

use std::sync::Arc;
use std::time::Duration;

use proto::error::chain;
use proto::http2;
use proto::identity::DriverName;
use proto::socket::Socket;
use proto::stop::Tasks;
use tracing::{debug, warn};

use crate::calls::Calls;

/// Serves the socket until told to stop; calls in flight are answered first.
pub async fn serve(driver: DriverName, calls: Arc<Calls>, socket: Socket, tasks: Tasks) {
    loop {
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted,
            () = tasks.stopped() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (driver, calls, stop) = (driver.clone(), calls.clone(), tasks.clone());
                tasks.spawn("front connection", async move {
                    let service = move |request| {
                        let (driver, calls) = (driver.clone(), calls.clone());
                        async move { calls.answer(driver.as_str(), request).await }
                    };
                    let stopped = async move { stop.stopped().await };
                    if let Err(error) = http2::serve(stream, service, stopped).await {
                        debug!(error = %chain(&error), "a caller's connection broke");
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, say: what is connected goes on.
                warn!(%driver, %error, "cannot accept a caller");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
