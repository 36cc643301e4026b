//! The faults of several csi-clouds and of their etcd. Each csi-cloud breaks by itself, more often
//! when it leads; of etcd one thing breaks at a time.

use std::time::Duration;

use futures_util::future::try_join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

use super::clouds::{MEMBERS, Several};
use super::fault::{Faults, millis};
use super::replica_site::ReplicaSite;
use harness::etcd_server::EtcdServer;

/// The longest pause of a csi-cloud, in ms: longer than its lease.
const LONG: u64 = 15_000;
/// The longest fault of etcd, in ms: shorter than a start may take.
const OF_ETCD: u64 = 8_000;
/// All members of etcd.
const ALL: [usize; MEMBERS] = [0, 1, 2];

impl Faults {
    /// Breaks each csi-cloud and etcd, until the time is over; all is whole again at the end.
    pub(super) async fn several(
        &self,
        several: &mut Several,
        say: &dyn Fn(&str),
    ) -> anyhow::Result<()> {
        let Several { replicas, etcd, .. } = several;
        let sites = replicas.iter_mut().enumerate();
        let each = try_join_all(sites.map(|(number, site)| self.replica(number, site, say)));
        let (replicas, etcd) = tokio::join!(each, self.etcd(etcd, say));
        replicas?;
        etcd
    }

    async fn replica(
        &self,
        number: usize,
        site: &mut ReplicaSite,
        say: &dyn Fn(&str),
    ) -> anyhow::Result<()> {
        let mut random = StdRng::seed_from_u64(self.seed + 100 + number as u64);
        loop {
            site.supervise(millis(&mut random, 12_000)).await?;
            let kind = random.random_range(0..5);
            let short = millis(&mut random, 2_000);
            let long = millis(&mut random, LONG);
            let silently = random.random_ratio(1, 2);
            let spared = random.random_ratio(2, 3);
            if !self.goes_on() {
                return Ok(());
            }
            let leads = site.replica.leads();
            if spared && !leads {
                continue;
            }
            let [killed, paused, cut, stopped] = if leads {
                ["leader killed", "leader paused", "leader without etcd", "leader told to stop"]
            } else {
                ["follower killed", "follower paused", "follower without etcd", "follower stopped"]
            };
            let name = site.replica.name().to_owned();
            match kind {
                0 | 1 => {
                    self.note(killed, &name, say);
                    site.kill(short).await?;
                }
                2 => {
                    self.note(paused, &name, say);
                    site.pause(long).await?;
                }
                3 => {
                    self.note(cut, &name, say);
                    site.cut_off(long, silently).await?;
                }
                _ => {
                    self.note(stopped, &name, say);
                    site.stop(short).await?;
                }
            }
        }
    }

    async fn etcd(&self, etcd: &mut EtcdServer, say: &dyn Fn(&str)) -> anyhow::Result<()> {
        let mut random = StdRng::seed_from_u64(self.seed + 200);
        while self.quiet(&mut random, 10_000).await {
            let kind = random.random_range(0..8);
            let down = millis(&mut random, OF_ETCD);
            let any = random.random_range(0..etcd.members());
            let leader = etcd.leader().await.unwrap_or(any);
            match kind {
                0 => self.kill(etcd, ("etcd's leader killed", &[leader]), down, say).await?,
                1 => self.kill(etcd, ("member of etcd killed", &[any]), down, say).await?,
                2 => self.kill(etcd, ("all of etcd killed", &ALL), down / 2, say).await?,
                3 => self.pause(etcd, ("etcd's leader paused", &[leader]), down, say).await?,
                4 => self.pause(etcd, ("member of etcd paused", &[any]), down, say).await?,
                5 => self.pause(etcd, ("all of etcd paused", &ALL), down, say).await?,
                6 => {
                    let both = [leader, (leader + 1) % etcd.members()];
                    self.cut(etcd, ("wire of etcd's leader cut", &both), down, say).await;
                }
                _ => self.cut(etcd, ("all wires of etcd cut", &ALL), down, say).await,
            }
            for place in 0..etcd.members() {
                etcd.ready(place).await?;
            }
        }
        Ok(())
    }

    async fn kill(
        &self,
        etcd: &mut EtcdServer,
        (what, places): (&'static str, &[usize]),
        down: Duration,
        say: &dyn Fn(&str),
    ) -> anyhow::Result<()> {
        self.note(what, "etcd", say);
        for place in places {
            etcd.kill(*place).await?;
        }
        tokio::time::sleep(down).await;
        places.iter().try_for_each(|place| etcd.run(*place))
    }

    async fn pause(
        &self,
        etcd: &EtcdServer,
        (what, places): (&'static str, &[usize]),
        down: Duration,
        say: &dyn Fn(&str),
    ) -> anyhow::Result<()> {
        self.note(what, "etcd", say);
        places.iter().try_for_each(|place| etcd.process(*place)?.signal(Signal::STOP))?;
        tokio::time::sleep(down).await;
        places.iter().try_for_each(|place| etcd.process(*place)?.signal(Signal::CONT))
    }

    /// Cuts the wires between these members.
    async fn cut(
        &self,
        etcd: &EtcdServer,
        (what, places): (&'static str, &[usize]),
        down: Duration,
        say: &dyn Fn(&str),
    ) {
        self.note(what, "etcd", say);
        places.iter().for_each(|place| etcd.cut(*place));
        tokio::time::sleep(down).await;
        places.iter().for_each(|place| etcd.mend(*place));
    }
}
