//! A front for each node and driver: `FRONTS/NODE/DRIVER.sock`.
//!
//! A sidecar can serve one node through it (external-provisioner's `--node-deployment`). A front
//! appears when its node is known, and goes when an operator removes the node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::host::socket::Socket;
use proto::host::tasks::{TaskKind, Tasks};
use proto::names::{DriverName, NodeName};
use tracing::{info, warn};

use super::front::Front;

/// The interval between checks when no node links: an operator may have removed a node.
const INTERVAL: Duration = Duration::from_secs(5);

/// The fronts of the nodes.
pub(crate) struct NodeFronts {
    directory: PathBuf,
    /// The fronts for all nodes together.
    drivers: BTreeMap<DriverName, Arc<Front>>,
    serving: BTreeMap<(NodeName, DriverName), Tasks>,
}

impl NodeFronts {
    /// The sockets are made below this directory.
    pub(crate) fn new(directory: &Path, drivers: BTreeMap<DriverName, Arc<Front>>) -> Self {
        Self { directory: directory.to_owned(), drivers, serving: BTreeMap::new() }
    }

    /// Keeps a front for each node that has a driver, until told to stop.
    pub(crate) async fn keep(mut self, tasks: Tasks) {
        let Some(mut linked) = self.drivers.values().next().map(|front| front.links().linking())
        else {
            return;
        };
        loop {
            linked.mark_unchanged();
            self.update(&tasks);
            tokio::select! {
                biased;
                () = tasks.stopped() => return,
                _ = linked.changed() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Serves the fronts of new nodes, and stops those of removed ones.
    fn update(&mut self, tasks: &Tasks) {
        let mut wanted = Vec::new();
        for (driver, front) in &self.drivers {
            wanted.extend(front.nodes().into_iter().map(|node| (node, driver.clone())));
        }
        self.serving.retain(|at, serving| {
            let stays = wanted.contains(at);
            if !stays {
                serving.stop();
            }
            stays
        });
        for at in wanted {
            if self.serving.contains_key(&at) {
                continue;
            }
            let group = tasks.child();
            match self.serve(&at, &group) {
                Ok(()) => info!(node = %at.0, driver = %at.1, "serving the node's own front"),
                Err(error) => {
                    let error = format!("{error:#}");
                    warn!(node = %at.0, driver = %at.1, error, "cannot serve the node's own front");
                }
            }
            // Kept after a failure too, so that it is not repeated every few seconds.
            self.serving.insert(at, group);
        }
    }

    fn serve(&self, (node, driver): &(NodeName, DriverName), tasks: &Tasks) -> anyhow::Result<()> {
        let Some(front) = self.drivers.get(driver) else { return Ok(()) };
        let directory = self.directory.join(node.as_str());
        std::fs::create_dir_all(&directory)?;
        let socket = Socket::bind(&directory.join(format!("{driver}.sock")))?;
        tasks.spawn(
            TaskKind::All("node front"),
            Arc::new(front.of_node(node.clone())).serve_socket(socket, tasks.clone()),
        );
        Ok(())
    }
}
