//! What all operations on direct volumes share.

use std::sync::Arc;

use edge_calls::executor::Executor;
use proto::host::tasks::Tasks;

use super::locks::VolumeLocks;
use crate::lease::exclusive::Leases;
use crate::runtimes::Runtimes;
use crate::volume::node::Node;

pub(super) struct Service {
    pub(super) executor: Arc<Executor>,
    pub(super) node: Arc<Node>,
    pub(super) leases: Leases,
    pub(super) runtimes: Runtimes,
    pub(super) locks: VolumeLocks,
    /// What was begun runs here to its end.
    pub(super) tasks: Tasks,
}
