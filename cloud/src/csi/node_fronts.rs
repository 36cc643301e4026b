//! A front for each node as well, so that a sidecar can be run for one edge (external-provisioner's
//! `--node-deployment`): `FRONTS/NODE/DRIVER.sock`. They come as nodes are learned and go when one is removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::names::{DriverName, NodeName};
use tracing::{info, warn};

use crate::csi::front::Front;

/// How often it is looked for nodes besides when one links: an operator may have removed one.
const AGAIN: Duration = Duration::from_secs(5);

/// The fronts of the nodes.
pub(crate) struct NodeFronts {
    directory: PathBuf,
    /// The fronts of all nodes, by driver.
    drivers: BTreeMap<DriverName, Arc<Front>>,
    serving: BTreeMap<(NodeName, DriverName), Tasks>,
}

impl NodeFronts {
    /// Fronts beside these, below their directory.
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
            self.follow(&tasks);
            tokio::select! {
                biased;
                () = tasks.stopped() => return,
                _ = linked.changed() => {}
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }

    fn follow(&mut self, tasks: &Tasks) {
        let fronts = self.drivers.iter();
        let wanted: Vec<_> = fronts
            .flat_map(|(driver, front)| {
                front.nodes().into_iter().map(move |node| (node, driver.clone()))
            })
            .collect();
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
            // One that cannot be served is not tried again every few seconds.
            self.serving.insert(at, group);
        }
    }

    fn serve(&self, (node, driver): &(NodeName, DriverName), tasks: &Tasks) -> anyhow::Result<()> {
        let Some(front) = self.drivers.get(driver) else { return Ok(()) };
        let directory = self.directory.join(node.as_str());
        std::fs::create_dir_all(&directory)?;
        let socket = Socket::bind(&directory.join(format!("{driver}.sock")))?;
        tasks.spawn(
            "node front",
            Arc::new(front.of_node(node.clone())).answer_all(socket, tasks.clone()),
        );
        Ok(())
    }
}
