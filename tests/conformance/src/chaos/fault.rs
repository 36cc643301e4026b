//! The faults, their times and durations, all from one seed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use tokio::time::Instant;

use super::clouds::Clouds;
use super::site::{CloudSite, Site};
use harness::process::Process;
use harness::relay::Relay;

/// The faults of a run.
pub struct Faults {
    pub(super) seed: u64,
    end: Instant,
    done: RefCell<BTreeMap<&'static str, usize>>,
}

impl Faults {
    /// Faults for so long.
    pub fn new(seed: u64, time: Duration) -> Self {
        Self { seed, end: Instant::now() + time, done: RefCell::default() }
    }

    /// How many of each kind there were.
    pub fn done(self) -> BTreeMap<&'static str, usize> {
        self.done.into_inner()
    }

    /// Breaks the cloud and each node independently, until the time is over; all is whole again at
    /// the end.
    ///
    /// # Errors
    /// A program could not be started again.
    pub async fn breaking(
        &mut self,
        clouds: &mut Clouds,
        sites: &mut [Site],
        say: &dyn Fn(&str),
    ) -> anyhow::Result<()> {
        let faults = &*self;
        let cloud = async {
            match clouds {
                Clouds::One(cloud) => faults.cloud(cloud, say).await,
                Clouds::Several(several) => faults.several(several, say).await,
            }
        };
        let nodes = try_join_all(sites.iter_mut().map(|site| faults.node(site, say)));
        let (cloud, nodes) = tokio::join!(cloud, nodes);
        cloud?;
        nodes?;
        Ok(())
    }

    async fn cloud(&self, cloud: &mut CloudSite, say: &dyn Fn(&str)) -> anyhow::Result<()> {
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut killed = false;
        while self.quiet(&mut random, 8_000).await {
            match random.random_range(0..2) {
                // No run is without it.
                kind if kind == 0 || !killed => {
                    killed = true;
                    self.note("csi-cloud killed", "the cloud", say);
                    cloud.kill(millis(&mut random, 2_000)).await?;
                }
                _ => {
                    self.note("csi-cloud stopped", "the cloud", say);
                    pause(cloud.process.as_ref(), millis(&mut random, 6_000)).await?;
                }
            }
        }
        Ok(())
    }

    async fn node(&self, site: &mut Site, say: &dyn Fn(&str)) -> anyhow::Result<()> {
        let mut random = StdRng::seed_from_u64(self.seed + 1 + site.plan.id as u64);
        while self.quiet(&mut random, 4_000).await {
            let node = site.plan.node;
            let down = millis(&mut random, 2_000);
            match random.random_range(0..8) {
                0 | 1 => {
                    self.note("csi-edge killed", node, say);
                    site.kill_edge(down).await?;
                }
                2 => {
                    self.note("csi-edge stopped", node, say);
                    pause(site.edge.as_ref(), down * 3).await?;
                }
                3 | 4 => {
                    self.note("driver killed", node, say);
                    site.kill_driver(down).await?;
                }
                kind => {
                    self.note("link cut", node, say);
                    let wires = wires(&site.relays, &mut random);
                    wires.iter().for_each(Relay::cut);
                    // Some outages are long enough for both sides to give the link up.
                    tokio::time::sleep(if kind == 7 { down * 10 } else { down }).await;
                    wires.iter().for_each(Relay::mend);
                }
            }
        }
        Ok(())
    }

    /// Whether there is time for another fault.
    pub(super) fn goes_on(&self) -> bool {
        Instant::now() < self.end
    }

    /// Waits a while; false when the time is over.
    pub(super) async fn quiet(&self, random: &mut StdRng, most: u64) -> bool {
        tokio::time::sleep(millis(random, most)).await;
        self.goes_on()
    }

    pub(super) fn note(&self, kind: &'static str, whom: &str, say: &dyn Fn(&str)) {
        *self.done.borrow_mut().entry(kind).or_default() += 1;
        say(&format!("{whom}: {kind}"));
    }
}

/// All wires of a node, or only one of several.
fn wires<'a>(relays: &'a [Relay], random: &mut StdRng) -> &'a [Relay] {
    if relays.len() > 1 && random.random_ratio(1, 2) {
        let one = random.random_range(0..relays.len());
        return relays.get(one..=one).unwrap_or(relays);
    }
    relays
}

async fn pause(process: Option<&Process>, time: Duration) -> anyhow::Result<()> {
    let Some(process) = process else { return Ok(()) };
    process.signal(Signal::STOP)?;
    tokio::time::sleep(time).await;
    process.signal(Signal::CONT)
}

pub(super) fn millis(random: &mut StdRng, most: u64) -> Duration {
    Duration::from_millis(random.random_range(50..most))
}
