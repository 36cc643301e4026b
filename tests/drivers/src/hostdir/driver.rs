//! The driver as callers have it: shared state, and calls that run as blocking work.

use std::path::Path;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::core::{Core, Settings};

/// The driver; clones share their state.
#[derive(Clone)]
pub struct HostDir(pub(super) Arc<Core>);

impl HostDir {
    /// Opens the state directory, and removes what a killed process left half-made in it.
    ///
    /// # Errors
    /// The state cannot be made or read.
    pub fn open(state: &Path, settings: Settings) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Core::open(state, settings)?)))
    }

    /// Runs blocking work to its end, even if the caller does not wait for it.
    pub(super) async fn blocking<A: Send + 'static>(
        &self,
        work: impl FnOnce(&Core) -> Result<A, Status> + Send + 'static,
    ) -> Result<A, Status> {
        let core = Arc::clone(&self.0);
        blocking(move || {
            let _turn = core.turn()?;
            work(&core)
        })
        .await
    }

    /// Answers one unary call by a blocking function.
    pub(super) async fn run<Q: Send + 'static, A: Send + 'static>(
        &self,
        request: Request<Q>,
        work: fn(&Core, Q) -> Result<A, Status>,
    ) -> Result<Response<A>, Status> {
        let request = request.into_inner();
        self.blocking(move |core| work(core, request)).await.map(Response::new)
    }
}

/// Runs blocking work to its end, even if the caller does not wait for it.
pub(super) async fn blocking<A: Send + 'static>(
    work: impl FnOnce() -> Result<A, Status> + Send + 'static,
) -> Result<A, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Status::internal(format!("the operation broke off: {error}")))?
}
