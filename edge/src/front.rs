//! The CSI socket of each driver at this node, for the kubelet and others on the node.
//!
//! It serves all of the driver's services. Its callers see our topology if the driver has none, and
//! [`Direct`] carries out what they do with direct volumes. It may use `edge-calls`
//! and `edge-direct`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use edge_calls::drivers::Drivers;
use edge_calls::executor::Origin;
use edge_direct::Direct;
use proto::host::socket::Socket;
use proto::host::tasks::{TaskKind, Tasks};
use proto::http2::serve;
use proto::names::{DriverName, NodeName};
use tracing::{info, warn};

/// The fronts of this node, one `NAME.sock` for each driver in a directory.
pub struct Fronts {
    directory: PathBuf,
    drivers: Arc<Drivers>,
    direct: Arc<Direct>,
    tasks: Tasks,
    served: BTreeSet<DriverName>,
}

impl Fronts {
    /// Serves the drivers that are known now. The fronts end with `tasks`.
    ///
    /// # Errors
    /// The directory or a socket cannot be made.
    pub fn open(
        directory: PathBuf,
        drivers: Arc<Drivers>,
        direct: Arc<Direct>,
        tasks: Tasks,
    ) -> anyhow::Result<Self> {
        let making =
            || format!("the directory of the fronts, {}, cannot be made", directory.display());
        std::fs::create_dir_all(&directory).with_context(making)?;
        let mut fronts = Self { directory, drivers, direct, tasks, served: BTreeSet::new() };
        for driver in fronts.drivers.all() {
            fronts.serve(&driver.name)?;
        }
        Ok(fronts)
    }

    /// Serves the drivers that are found later too.
    pub async fn keep(mut self) {
        let mut changes = self.drivers.changes();
        loop {
            for driver in self.drivers.all() {
                if self.served.contains(&driver.name) {
                    continue;
                }
                match self.serve(&driver.name) {
                    Ok(()) => {
                        info!(driver = %driver.name, "a driver was found; its front is served")
                    }
                    Err(error) => {
                        // Tried once: what is in the way is an operator's.
                        self.served.insert(driver.name.clone());
                        let error = format!("{error:#}");
                        warn!(driver = %driver.name, error, "a driver was found and has no front");
                    }
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn serve(&mut self, driver: &DriverName) -> anyhow::Result<()> {
        let socket = Socket::bind(&self.directory.join(format!("{driver}.sock")))?;
        let node = self.drivers.node().clone();
        let front = serve(driver.clone(), node, self.direct.clone(), socket, self.tasks.clone());
        self.tasks.spawn(TaskKind::All("front"), front);
        self.served.insert(driver.clone());
        Ok(())
    }
}

/// Serves the socket until told to stop; calls in flight are answered first.
async fn serve(
    driver: DriverName,
    node: NodeName,
    direct: Arc<Direct>,
    socket: Socket,
    tasks: Tasks,
) {
    let service = move |request| {
        let origin = Origin { front_of: Some(node.clone()), ..Origin::default() };
        direct.clone().answer(driver.clone(), origin, request)
    };
    serve::serve_socket(socket, service, tasks).await;
}
