//! One of several csi-clouds, its wires to etcd, and who starts it again.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::site::DRIVERS;
use harness::etcd_server::EtcdServer;
use harness::relay::Relay;
use harness::replicas::Replica;
use harness::stand::Stand;
use harness::wait::STOP;

/// How often it is looked whether a csi-cloud has ended.
const LOOK: Duration = Duration::from_millis(50);
/// How long whoever runs it waits before it is started again.
const AGAIN: Duration = Duration::from_millis(500);

/// One of several csi-clouds.
pub struct ReplicaSite {
    stand: Arc<Mutex<Stand>>,
    /// The program.
    pub replica: Replica,
    /// Its wires to the members of etcd.
    wires: Vec<Relay>,
    /// How often it ended by itself.
    pub ends: usize,
}

impl ReplicaSite {
    /// Starts it, with both transports.
    ///
    /// # Errors
    /// It does not get ready.
    pub async fn start(
        stand: Arc<Mutex<Stand>>,
        number: usize,
        etcd: &EtcdServer,
        prefix: &str,
    ) -> anyhow::Result<Self> {
        let mut wires = Vec::new();
        for address in etcd.addresses() {
            wires.push(Relay::to(&format!("tcp://{address}")).await?);
        }
        let hosts: Vec<_> = wires.iter().map(|wire| wire.url().replace("tcp://", "")).collect();
        let store = format!("etcd://{}/{prefix}", hosts.join(","));
        let name = format!("cloud{number}");
        let mut replica = Replica::new(&name, &["wss", "quic"], &store, &DRIVERS)?;
        replica.start(&*stand.lock().await).await?;
        Ok(Self { stand, replica, wires, ends: 0 })
    }

    /// Starts it again whenever it ends by itself, for so long.
    ///
    /// # Errors
    /// It does not get ready.
    pub async fn supervise(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        // A start is not cut off half-way.
        while Instant::now() < end {
            if self.replica.has_ended()? {
                self.ends += 1;
                tokio::time::sleep(AGAIN).await;
                self.run().await?;
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Kills it, and starts it again after `down`.
    ///
    /// # Errors
    /// It does not get ready.
    pub async fn kill(&mut self, down: Duration) -> anyhow::Result<()> {
        self.replica.kill().await?;
        tokio::time::sleep(down).await;
        self.run().await
    }

    /// Stops it as an operator does, and starts it again after `down`.
    ///
    /// # Errors
    /// It does not end well, or does not get ready.
    pub async fn stop(&mut self, down: Duration) -> anyhow::Result<()> {
        // It may have been deposed just now.
        if !self.replica.has_ended()? {
            self.replica.take()?.stop(STOP).await?;
        }
        tokio::time::sleep(down).await;
        self.run().await
    }

    /// Pauses it.
    ///
    /// # Errors
    /// It does not get ready.
    pub async fn pause(&mut self, time: Duration) -> anyhow::Result<()> {
        if self.replica.has_ended()? {
            return Ok(());
        }
        self.replica.signal(Signal::STOP)?;
        tokio::time::sleep(time).await;
        self.replica.signal(Signal::CONT)
    }

    /// Cuts it off from etcd. Connections end, or no byte gets through them.
    ///
    /// # Errors
    /// It does not get ready.
    pub async fn cut_off(&mut self, time: Duration, silently: bool) -> anyhow::Result<()> {
        self.wires.iter().for_each(if silently { Relay::swallow } else { Relay::cut });
        tokio::time::sleep(time).await;
        self.wires.iter().for_each(Relay::mend);
        Ok(())
    }

    async fn run(&mut self) -> anyhow::Result<()> {
        self.replica.start(&*self.stand.lock().await).await
    }
}
