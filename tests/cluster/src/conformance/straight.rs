//! The drivers without us: at every node the driver, registered with the kubelet. hostdir has its
//! sidecars beside it, with `--node-deployment`; that of a file server has them once.
//!
//! external-attacher cannot be told which node it is for, so nothing is attached there.
//! external-resizer cannot either: each node's one tries every claim. So the first node has one
//! more hostdir, for which no sidecar needs to know its node.

use std::sync::Arc;

use anyhow::Context;

use crate::stand::node::Driver;
use crate::stand::program::Program;
use crate::stand::{Cluster, STRAIGHT, here};

/// The drivers of all nodes, and their sidecars.
pub(super) struct Straight {
    drivers: Vec<Driver>,
    sidecars: Vec<Program>,
}

impl Straight {
    /// Starts them.
    ///
    /// # Errors
    /// A program cannot be started.
    pub(super) async fn start(cluster: &Arc<Cluster>) -> anyhow::Result<Self> {
        let [spread, shared, one] = STRAIGHT;
        let ground = &cluster.ground;
        let files = cluster.files.as_ref();
        if let Some(files) = files {
            std::fs::create_dir_all(files.dir.join(shared))?;
        }
        let mut drivers = Vec::new();
        let mut launches = Vec::new();
        for node in &cluster.nodes {
            let driver = node.straight(ground, None, spread).await?;
            let beside = cluster.cloud.beside(ground, node.name, spread, &driver.socket()?);
            let named = |(name, launch)| (format!("{}-{name}-{spread}", node.name), launch);
            launches.extend(beside.into_iter().map(named));
            drivers.push(driver);
            for name in here(&[shared]) {
                drivers.push(node.straight(ground, files, name).await?);
            }
        }
        let first = cluster.nodes.first().context("the stand has no node")?;
        drivers.push(first.straight(ground, None, one).await?);
        for name in [shared, one] {
            let Some(driver) = drivers.iter().find(|driver| driver.name == name) else { continue };
            let central = cluster.cloud.central(ground, name, &driver.socket()?);
            let named = |(sidecar, launch)| (format!("{sidecar}-{name}"), launch);
            launches.extend(central.map(named));
        }
        let mut sidecars = Vec::new();
        for (name, launch) in launches {
            sidecars.push(Program::keep(&name, &ground.logs(), launch).await?);
        }
        Ok(Self { drivers, sidecars })
    }

    /// Starts sidecars again that ended by themselves.
    ///
    /// # Errors
    /// One cannot be started.
    pub(super) async fn tend(&self) -> anyhow::Result<()> {
        for sidecar in &self.sidecars {
            sidecar.tend().await?;
        }
        Ok(())
    }

    /// Stops it.
    pub(super) async fn stop(&self) {
        let drivers = self.drivers.iter().flat_map(|driver| [&driver.registrar, &driver.program]);
        for program in self.sidecars.iter().chain(drivers) {
            let _ = program.stop().await;
        }
    }
}
