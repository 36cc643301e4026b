//! What starts csi-edges beside those that run, and after those that ended.

use std::sync::Arc;
use std::time::Duration;

use proto::host::tasks::Tasks;
use tokio::time::Instant;

use super::Fleet;

impl Fleet {
    /// Starts a node's edge again if it ends of a panic, as its supervisor does.
    pub(super) fn supervise(self: &Arc<Self>, node: usize, doors: Tasks) {
        let fleet = Arc::downgrade(self);
        self.tasks.spawn_until_stop("supervisor", async move {
            doors.panicked().await;
            if let Some(fleet) = fleet.upgrade() {
                fleet.trace.say(format_args!("the edge of n{} has panicked", node + 1));
                fleet.kill_edge(node);
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(fleet.start_edge(node));
            }
        });
    }

    /// Starts another csi-edge on a node's machine. The one before goes on, and is killed after
    /// this time.
    pub(crate) fn double_edge(self: &Arc<Self>, node: usize, after: Duration) {
        let Some(older) = self.lock().edges.remove(&node) else { return };
        self.trace.say(format_args!("another csi-edge starts on the machine of n{}", node + 1));
        drop(self.start_edge(node));
        let fleet = Arc::downgrade(self);
        self.tasks.spawn_until_stop("older edge", async move {
            tokio::time::sleep(after).await;
            older.doors.give_up();
            older.process.kill();
            if let Some(fleet) = fleet.upgrade() {
                fleet.trace.say(format_args!("the older csi-edge of n{} is killed", node + 1));
                fleet.lock().edge_ends.push((node, Instant::now()));
            }
        });
    }
}
