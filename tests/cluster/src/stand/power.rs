//! A node that is switched off and on: all its processes die at once, and with them its mounts,
//! loop devices and `/run`. Its disk stays: the directories of the kubelet, of containerd, of
//! csi-edge and of the drivers.

use std::time::Duration;

use anyhow::{Context, ensure};
use harness::leftovers;
use proto::host::publish::{Existing, publish};

use super::node::Node;
use super::objects::within;

/// How long the kernel may take to let go of a node's devices.
const STOP: Duration = Duration::from_secs(20);
/// How long a kubelet may take to start.
const START: Duration = Duration::from_secs(60);
/// What it logs then.
const STARTED: &str = "\"Started kubelet\"";
/// What a machine has in `/run`.
const RUN: [&str; 3] = ["containerd/state", "containerd.sock", "containerd.sock.ttrpc"];

impl Node {
    /// Cuts its power.
    ///
    /// # Errors
    /// Something does not end; the node is in no good state then.
    pub async fn cut(&self) -> anyhow::Result<()> {
        self.worker.space.kill()?;
        for program in self.programs() {
            program.lost().await?;
        }
        self.worker.space.end().await?;
        within(&format!("the end of the devices of {}", self.name), STOP, || async {
            leftovers::remove_below(&self.worker.cgroup, &leftovers::devices(&self.worker.dir)?)?;
            let left = leftovers::devices(&self.worker.dir)?;
            ensure!(left.is_empty(), "in use: {left:?}");
            Ok(())
        })
        .await?;
        for gone in RUN {
            let path = self.worker.dir.join(gone);
            let removed = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Switches it on if it is off, without its programs.
    ///
    /// # Errors
    /// The namespaces cannot be made.
    pub async fn boot(&self) -> anyhow::Result<()> {
        let id = self.worker.dir.join("boot");
        let random = std::fs::read("/proc/sys/kernel/random/uuid")?;
        publish(&id, &random, 0o644, Existing::Replace)?;
        self.worker.space.boot(id.to_str().context("a directory's path is no text")?).await
    }

    /// Switches it on, and starts its programs. Its drivers come so much later than the others.
    ///
    /// # Errors
    /// A program cannot be started.
    pub async fn switch_on(&self, late: Duration) -> anyhow::Result<()> {
        self.boot().await?;
        self.worker.containerd.run().await?;
        self.edge.run().await?;
        for driver in &self.drivers {
            driver.registrar.run().await?;
        }
        let drivers = async {
            tokio::time::sleep(late).await;
            for driver in &self.drivers {
                driver.program.run().await?;
            }
            Ok(())
        };
        tokio::try_join!(self.kubelet_starts(), drivers).map(drop)
    }

    /// Starts the kubelet until it stays, as an init system does: it ends if containerd is not
    /// ready yet.
    async fn kubelet_starts(&self) -> anyhow::Result<()> {
        let from = self.worker.kubelet.log().len();
        within(&format!("the kubelet of {}", self.name), START, || async {
            self.worker.kubelet.run().await?;
            let log = self.worker.kubelet.log();
            ensure!(log.get(from..).unwrap_or_default().contains(STARTED), "it does not start");
            Ok(())
        })
        .await
    }

    /// The loop devices of its disk.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn devices(&self) -> anyhow::Result<Vec<String>> {
        leftovers::devices(&self.worker.dir)
    }
}
