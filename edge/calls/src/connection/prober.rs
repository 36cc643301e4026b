//! Probes a driver on a connection of its own: a driver whose handlers all hang may read nothing
//! more on the others. It uses `transport` and `questions`.

use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::link::Connect;

use super::questions::probe;
use super::transport::DriverTransport;

/// The connection for Probe.
#[derive(Default)]
pub(super) struct Prober {
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
        if !self.transport.as_ref().is_some_and(is_good) {
            let dialed = DriverTransport::dial(connect, socket, tasks).await;
            let unusable = dialed.map_err(|unusable| chain(unusable.source.as_ref()));
            self.transport = Some(unusable.map_err(|why| format!("Probe failed: {why}"))?);
        }
        match &self.transport {
            Some(transport) => probe(transport.upstream()).await,
            None => Ok(true),
        }
    }
}
