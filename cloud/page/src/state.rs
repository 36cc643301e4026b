//! All that requests share: the fleet, the guard, the files of TLS, and the bounds.
//! It is made once at the start, and reads its files again when they change.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use proto::host::tasks::{TaskKind, Tasks};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::access::guard::{Guard, Pass, Peer, TooMany};
use crate::arguments::Arguments;
use crate::hub::FleetHub;
use crate::tls::Tls;

/// Pages that watch.
const WATCHERS: usize = 200;
/// Pages that are made at a time; those of claims ask Kubernetes.
const MAKING: usize = 16;
/// The pause between two looks at the files.
const FILES_INTERVAL: Duration = Duration::from_secs(10);

/// All that requests share.
pub(crate) struct PageState {
    pub(crate) hub: FleetHub,
    pub(crate) guard: Guard,
    pub(crate) tls: Option<Tls>,
    pub(crate) watchers: Arc<Semaphore>,
    pub(crate) making: Semaphore,
    pub(crate) tasks: Tasks,
}

impl PageState {
    /// Reads the files of the arguments. Nothing is asked of csi-cloud yet.
    ///
    /// # Errors
    /// A file cannot be used; the text says which.
    pub(crate) fn open(arguments: &Arguments, tasks: Tasks) -> anyhow::Result<Self> {
        let guard = Guard::open(arguments.tokens.clone())?;
        Ok(Self::new(FleetHub::new(&arguments.view), guard, Tls::open(arguments)?, tasks))
    }

    /// The page of the fleet that `hub` keeps.
    pub(crate) fn new(hub: FleetHub, guard: Guard, tls: Option<Tls>, tasks: Tasks) -> Self {
        let watchers = Arc::new(Semaphore::new(WATCHERS));
        Self { hub, guard, tls, watchers, making: Semaphore::new(MAKING), tasks }
    }

    /// Why a request is let in; `None` if it is not.
    ///
    /// # Errors
    /// A token is wrong, and so were too many before.
    pub(crate) fn pass(&self, peer: &Peer, headers: &HeaderMap) -> Result<Option<Pass>, TooMany> {
        // The CA of the nodes lets nobody in, or each node could see the page.
        let is_ca_of_nodes = self.tls.as_ref().is_some_and(|tls| tls.trusts(&self.hub.node_ca()));
        self.guard.pass(peer.address, peer.has_certificate && !is_ca_of_nodes, headers)
    }

    /// Reads the fleet, the tokens and the files of TLS until the tasks are stopped.
    pub(crate) fn keep_current(self: Arc<Self>) {
        let page = self.clone();
        self.tasks
            .spawn_until_stop(TaskKind::All("view"), async move { page.hub.keep_current().await });
        let page = self.clone();
        self.tasks.spawn_until_stop(TaskKind::All("files"), async move { page.keep_files().await });
    }

    /// Reads the files again and again. One that cannot be used changes nothing.
    async fn keep_files(&self) {
        let mut last = String::new();
        loop {
            sleep(FILES_INTERVAL).await;
            let tls = self.tls.as_ref().map_or(Ok(()), Tls::reload);
            let errors = [self.guard.reload(), tls].map(|read| read.err());
            let error = errors.into_iter().flatten().map(|error| format!("{error:#}"));
            let error = error.collect::<Vec<_>>().join("; ");
            if error.is_empty() && !last.is_empty() {
                info!("the files of the page can be used again");
            } else if error != last {
                warn!(error, "files of the page cannot be used; what was read before stays");
            }
            last = error;
        }
    }
}
