//! A complete node-local CSI driver: volumes are directories and sparse image files of one host
//! directory.
//!
//! It exists because no real driver implements all of CSI 1.13, and Edge CSI has to be shown to
//! carry all of it to a driver whose data, mounts and crashes are real. All work is blocking and
//! runs off the runtime, so that a caller who leaves does not leave a half-done operation behind. A
//! directory's capacity is promised, not enforced; modes for several nodes are taken, as there is
//! one node.

mod check;
mod controller;
mod core;
mod data;
mod extents;
mod fail;
mod group;
mod identity;
mod locks;
mod loops;
mod metadata;
mod mounts;
mod node;
pub mod private;
mod record;
mod room;
mod serve;
mod shares;
mod snapshots;
mod stage;
mod store;
#[cfg(test)]
mod test_core;
#[cfg(test)]
mod test_node;
mod usage;
mod volumes;

use std::path::Path;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use self::core::Core;
pub use self::core::Settings;
pub use self::shares::Shares;

/// The key of the one topology segment; its value is the node id.
pub const TOPOLOGY_KEY: &str = "topology.hostdir.edge-csi.io/node";
/// The one mutable parameter, with any value.
pub const MUTABLE_KEY: &str = "mutableKey";

/// The driver; clones share their state.
#[derive(Clone)]
pub struct HostDir(Arc<Core>);

impl HostDir {
    /// Opens the state directory, and removes what a killed process left half-made in it.
    ///
    /// # Errors
    /// The state cannot be made or read.
    pub fn open(state: &Path, settings: Settings) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Core::open(state, settings)?)))
    }

    /// Runs blocking work to its end, even if the caller does not wait for it.
    async fn blocking<A: Send + 'static>(
        &self,
        work: impl FnOnce(&Core) -> Result<A, Status> + Send + 'static,
    ) -> Result<A, Status> {
        let core = Arc::clone(&self.0);
        serve::blocking(move || work(&core)).await
    }

    /// Answers one unary call by a blocking function.
    async fn run<Q: Send + 'static, A: Send + 'static>(
        &self,
        request: Request<Q>,
        work: fn(&Core, Q) -> Result<A, Status>,
    ) -> Result<Response<A>, Status> {
        let question = request.into_inner();
        self.blocking(move |core| work(core, question)).await.map(Response::new)
    }
}
