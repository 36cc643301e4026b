//! Probes a driver on a connection of its own: a driver whose handlers all hang may read nothing
//! more on the others. It uses `transport` and `questions`.

use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::link::Connect;

use super::questions::probe;
use super::transport::{DriverTransport, NotUsable};

/// The connection for Probe.
#[derive(Default)]
pub(super) struct Prober {
    /// The first outcome was noted.
    pub(super) is_noted: bool,
    transport: Option<DriverTransport>,
}

impl Prober {
    /// Asks whether the driver is ready.
    ///
    /// # Errors
    /// It does not answer in time, or with an error.
    pub(super) async fn probe(
        &mut self,
        connect: &Connect,
        socket: &str,
        tasks: &Tasks,
    ) -> Result<bool, String> {
        let is_good = |one: &DriverTransport| one.is_usable() && !one.was_told_to_leave();
        let transport = match &self.transport {
            Some(transport) if is_good(transport) => transport,
            Some(_) | None => {
                let dialed = DriverTransport::dial(connect, socket, tasks).await;
                let failed =
                    |NotUsable { source, .. }| format!("Probe failed: {}", chain(source.as_ref()));
                self.transport.insert(dialed.map_err(failed)?)
            }
        };
        probe(transport.upstream()).await
    }
}
