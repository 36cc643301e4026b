//! The example of a CSI driver: it implements all of CSI 1.13 for one node, with real data.
//!
//! A volume is a directory or a sparse image file below one state directory. Conformance, the demo
//! and the tests of direct volumes use it, since no other driver implements all of CSI.
//!
//! It promises three things:
//!
//! - Every RPC is idempotent, as CSI demands: a repeated call has the same result.
//! - A SIGKILL at any moment leaves an object whole or absent. `store` has how.
//! - A caller that leaves does not leave an operation half done: all work is blocking and runs to
//!   its end on a thread of its own.
//!
//! Two things are simpler than in a product. The capacity of a directory is promised and not
//! enforced, and access modes for several nodes are accepted although there is one node.
//!
//! Read it in this order: `identity`, `controller` and `node` are the services, one line for each
//! RPC; `volumes`, `snapshots`, `group` and `stage` do the work; `check` validates requests;
//! `record` and `store` keep what must survive; `mounts` and `loops` talk to the kernel.

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
        let request = request.into_inner();
        self.blocking(move |core| work(core, request)).await.map(Response::new)
    }
}
