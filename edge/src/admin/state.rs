//! The parts of csi-edge that admin commands read.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use edge_calls::drivers::Drivers;
use edge_calls::executor::Executor;
use edge_calls::metadata::Metadata;
use edge_direct::runtimes::Roots;
use proto::admin::command::Program;
use proto::config::places::{Places, SocketPlace};
use proto::control::hello::Run;
use proto::control::not_taken::NotTaken;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::discovery::table::Registrations;
use crate::identity::source::IdentitySource;
use crate::link::dial::Linked;
use crate::state::first_link::FirstLink;

/// What the admin commands show.
pub struct AdminState {
    /// The drivers of this node.
    pub drivers: Arc<Drivers>,
    /// Their calls.
    pub executor: Arc<Executor>,
    /// The drivers that have announced themselves.
    pub registrations: Arc<Registrations>,
    /// The link in use.
    pub linked: watch::Receiver<Option<Linked>>,
    /// Whether there has been a link.
    pub first_link: Arc<FirstLink>,
    /// Where this node's certificate comes from; `None` in tests.
    pub identity: Option<Arc<IdentitySource>>,
    /// The directory of what outlives a restart.
    pub state: Option<PathBuf>,
    /// Where runtimes look for direct volumes.
    pub roots: Roots,
    /// The directories of the node's kubelets.
    pub kubelets: Vec<PathBuf>,
    /// The pods of this node, as csi-cloud sent them.
    pub metadata: Arc<Metadata>,
    /// The direct volumes that no runtime took; none until they were looked at.
    pub not_taken: watch::Receiver<Option<NotTaken>>,
    /// This run of csi-edge.
    pub run: Run,
    /// When csi-edge began.
    pub began: Instant,
    /// The stop signal came.
    pub stopping: AtomicBool,
}

impl Program for AdminState {
    const NAME: &'static str = "csi-edge";

    fn socket(admin: Option<PathBuf>, config: Option<PathBuf>) -> (PathBuf, Vec<PathBuf>) {
        let SocketPlace { path, tried } = Places::edge().socket(admin, config);
        (path, tried)
    }
}

impl AdminState {
    /// The stop signal came.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Why it is not ready, if it is not. Without a link it serves the node by what it has kept.
    pub(super) fn not_ready(&self) -> Option<String> {
        if self.stopping.load(Ordering::Relaxed) {
            return Some("csi-edge is stopping".into());
        }
        if self.linked.borrow().is_some() {
            return None;
        }
        let why = self.identity.as_ref().map(|identity| identity.waits_for()).unwrap_or_default();
        let is_named = self.identity.as_ref().is_none_or(|identity| !identity.is_name_uncertain());
        let lacks = match (&self.state, self.first_link.was_made()) {
            (Some(_), true) if is_named => return None,
            (Some(_), true) => "NodeGetInfo is not answered, since no certificate names the node",
            (None, _) => "there is no link to csi-cloud, and no state is kept",
            (Some(_), false) => {
                "this version of csi-edge, with these endpoints, has had no link to csi-cloud yet \
                 (csi-edge doctor looks why)"
            }
        };
        match why.is_empty() {
            true => Some(lacks.into()),
            false => Some(format!("{lacks}; the identity cannot be used: {why}")),
        }
    }
}
