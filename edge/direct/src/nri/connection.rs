//! Keeps the plugin connected to the container runtime, which may start later or restart.

use std::path::PathBuf;
use std::time::Duration;

use proto::host::backoff::Backoff;
use proto::host::chain;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tracing::{info, warn};

use super::plugin::Plugin;
use super::session;

/// A connection that lasted so long was stable: the next attempt is soon.
const STABLE: Duration = Duration::from_secs(10);
/// The delays between attempts.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

impl Plugin {
    /// Keeps a connection to the socket for ever.
    pub async fn keep(&self, socket: PathBuf) {
        let mut delays = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
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
                delays.reset();
            }
            let delay = delays.delay();
            let socket = socket.display();
            warn!(%socket, error, ?delay, "containers are made unasked; trying again");
            tokio::time::sleep(delay).await;
        }
    }
}
