//! The csi-clouds of a run: one with a file, or several with an etcd of three members and the
//! socket relay that follows the leader.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use tokio::sync::{Mutex, watch};

use super::replica_site::ReplicaSite;
use super::site::{CloudSite, DRIVERS};
use harness::etcd_server::{EtcdServer, is_installed};
use harness::process::Process;
use harness::replicas;
use harness::stand::Stand;
use harness::wait::STOP;

/// The members of etcd.
pub const MEMBERS: usize = 3;
/// How long csi-clouds are looked after between two looks at the callers.
const LOOK: Duration = Duration::from_millis(500);
/// Below it is the store.
const PREFIX: &str = "edge-csi";

/// What edges link to and callers call.
pub enum Clouds {
    /// One, with a file.
    One(CloudSite),
    /// Several, with etcd.
    Several(Several),
}

/// Several csi-clouds.
pub struct Several {
    stand: Arc<Mutex<Stand>>,
    /// The csi-clouds.
    pub replicas: Vec<ReplicaSite>,
    /// Their store.
    pub etcd: EtcdServer,
    relay: Process,
}

impl Clouds {
    /// Starts this many; none is one with a file.
    ///
    /// # Errors
    /// A program does not start, or etcd is not installed.
    pub async fn start(stand: Arc<Mutex<Stand>>, replicas: usize) -> anyhow::Result<Self> {
        if replicas == 0 {
            return Ok(Self::One(CloudSite::start(stand, &DRIVERS).await?));
        }
        Ok(Self::Several(Several::start(stand, replicas).await?))
    }

    /// Where edges link over one transport, at each csi-cloud.
    pub fn urls(&self, quic: bool) -> Vec<String> {
        let of = |urls: &[String]| urls.get(usize::from(quic)).cloned();
        match self {
            Self::One(cloud) => of(&cloud.urls).into_iter().collect(),
            Self::Several(several) => {
                several.replicas.iter().filter_map(|site| of(site.replica.urls())).collect()
            }
        }
    }

    /// The socket that callers have, for each driver.
    pub async fn fronts(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::One(cloud) => cloud.fronts().await,
            Self::Several(several) => {
                let stand = several.stand.lock().await;
                DRIVERS.map(|driver| (driver, replicas::held(&stand, driver))).into()
            }
        }
    }

    /// Starts csi-clouds again that end by themselves, until this is said.
    ///
    /// # Errors
    /// One cannot be started.
    pub async fn supervise(&mut self, ended: watch::Receiver<bool>) -> anyhow::Result<()> {
        let Self::Several(several) = self else { return Ok(()) };
        while !*ended.borrow() {
            let each = several.replicas.iter_mut().map(|site| site.supervise(LOOK));
            try_join_all(each).await?;
        }
        Ok(())
    }

    /// Stops them as an operator does, and returns what is wrong.
    ///
    /// # Errors
    /// One does not end well.
    pub async fn stop(self) -> anyhow::Result<Vec<String>> {
        match self {
            Self::One(cloud) => Ok(cloud.stop().await?.into_iter().collect()),
            Self::Several(several) => several.stop().await,
        }
    }
}

impl Several {
    async fn start(stand: Arc<Mutex<Stand>>, replicas: usize) -> anyhow::Result<Self> {
        ensure!(is_installed("chaos with replicas")?, "etcd is needed: apt install etcd-server");
        let etcd = EtcdServer::start(stand.lock().await.dir(), MEMBERS).await?;
        let mut sites = Vec::new();
        for number in 0..replicas {
            sites.push(ReplicaSite::start(stand.clone(), number, &etcd, PREFIX).await?);
        }
        let relay = {
            let stand = stand.lock().await;
            replicas::relay(&stand, sites.iter().map(|site| &site.replica), &DRIVERS).await?
        };
        Ok(Self { stand, replicas: sites, etcd, relay })
    }

    async fn stop(self) -> anyhow::Result<Vec<String>> {
        let Self { stand, replicas, mut etcd, relay } = self;
        relay.stop(STOP).await?;
        for mut site in replicas {
            // It may have been deposed since the last look.
            if !site.replica.has_ended()? {
                site.replica.take()?.stop(STOP).await?;
            }
        }
        let stand = stand.lock().await;
        let store = etcd.url(PREFIX);
        let checked = stand.run("csi-cloud", &["store", "check", "--store", &store]).await;
        let mut wrong: Vec<_> =
            checked.err().map(|error| format!("the store: {error:#}")).into_iter().collect();
        wrong.extend(panics(&stand)?);
        for place in 0..etcd.members() {
            etcd.kill(place).await?;
        }
        Ok(wrong)
    }
}

/// The panics in the programs' logs.
fn panics(stand: &Stand) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(stand.dir()).context("the stand is gone")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let log = std::fs::read(&path)?;
        let log = String::from_utf8_lossy(&log);
        let of = |line: &str| format!("{}: {line}", path.display());
        found.extend(log.lines().filter(|line| line.contains("panicked at")).map(of));
    }
    Ok(found)
}
