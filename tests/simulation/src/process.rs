//! A simulated process: what it does, and its end.

use proto::host::tasks::Tasks;
use tokio_util::sync::CancellationToken;

/// A process: its end, and its tasks.
#[derive(Clone, Default)]
pub struct Process {
    /// Cancelled when it is killed.
    pub end: CancellationToken,
    /// All that it does.
    pub tasks: Tasks,
}

impl Process {
    /// Ends it at once.
    pub fn kill(&self) {
        self.end.cancel();
        self.tasks.give_up();
    }
}
