//! A plugin of the container runtime's Node Resource Interface, for what only the container runtime knows: which
//! handler runs a pod, in which sandbox, with which mounts.
//!
//! It gives volumes of the VFIO and SPDK kinds their typed mount, records the sandbox for runtimes that do not, and stops a
//! container that would get the empty directory of the host instead of its direct volume. It runs as a program of its own
//! (`csi-edge direct nri`), off unless started: whoever may connect to that socket may change any container of the node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backon::BackoffBuilder;
use proto::error::chain;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::Code;
use tracing::{info, warn};

use self::guard::Handlers;
use super::runtime::Runtimes;

pub mod api;
pub mod guard;
pub mod mux;
pub mod session;
pub mod ttrpc;

/// Where container runtimes listen for plugins.
pub const SOCKET: &str = "/var/run/nri/nri.sock";
/// A connection that held so long was a good one: the next attempt is soon.
const STABLE: Duration = Duration::from_secs(10);

/// What the plugin decides by.
#[derive(Clone)]
pub struct Plugin {
    /// The state directory of csi-edge, which has the records of what is published.
    pub state: PathBuf,
    /// Two digits: when, among other plugins, it is asked.
    pub index: String,
    /// Which handlers run VMs.
    pub handlers: Handlers,
    /// Where the entries are.
    pub runtimes: Arc<Runtimes>,
}

/// Why something is not done, with the gRPC code that says so.
#[derive(Debug)]
pub struct Refusal(Code, String);

impl Plugin {
    /// Keeps a connection to the socket, for ever: the container runtime may not be there yet, and is started again.
    pub async fn keep(&self, socket: PathBuf) {
        let mut delays = delays();
        loop {
            let begun = Instant::now();
            let Err(error) = match UnixStream::connect(&socket).await {
                Ok(stream) => {
                    info!(socket = %socket.display(), "connected to the container runtime");
                    session::serve(stream, self).await.map_err(|ended| chain(&ended))
                }
                Err(error) => Err(format!("cannot connect: {error}; is NRI enabled there?")),
            };
            if begun.elapsed() >= STABLE {
                delays = self::delays();
            }
            let delay = delays.next().unwrap_or(Duration::from_secs(10));
            warn!(socket = %socket.display(), error, ?delay, "containers are made unasked; trying again");
            tokio::time::sleep(delay).await;
        }
    }
}

fn delays() -> backon::ExponentialBackoff {
    let (first, last) = (Duration::from_millis(100), Duration::from_secs(10));
    backon::ExponentialBuilder::new().with_min_delay(first).with_max_delay(last).without_max_times().build()
}
