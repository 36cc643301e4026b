//! The shared context of all operations on direct volumes.

use std::sync::Arc;

use edge_calls::executor::Executor;
use edge_calls::metadata::Metadata;
use proto::control::not_taken::NotTaken;
use proto::host::tasks::Tasks;
use tokio::sync::watch;

use super::locks::VolumeLocks;
use crate::lease::exclusive::Leases;
use crate::runtimes::Runtimes;
use crate::volume::node::Node;

pub(super) struct Service {
    pub(super) executor: Arc<Executor>,
    pub(super) node: Arc<Node>,
    pub(super) leases: Leases,
    pub(super) metadata: Arc<Metadata>,
    pub(super) runtimes: Runtimes,
    pub(super) locks: VolumeLocks,
    /// The volumes that no runtime took; none until they were looked at.
    pub(super) not_taken: watch::Sender<Option<NotTaken>>,
    /// Operations that were begun run here to their end.
    pub(super) tasks: Tasks,
}
