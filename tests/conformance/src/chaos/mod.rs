//! Real programs under load while they are killed, stopped and cut off at random, and what must
//! hold afterwards.
//!
//! Two drivers run at two nodes each. One node links over WebSocket and one over QUIC, each through
//! a relay that is cut. One driver is a [`TestDriver`](drivers::testdriver), which notices calls
//! that overlap. The other is `hostdir`, whose state must survive its own SIGKILL. csi-cloud keeps
//! its store in a file, and is killed too: homes and intents survive nowhere else. Or there are
//! several csi-clouds, with an etcd of three members.

pub mod cloud_fault;
pub mod clouds;
pub mod command;
pub mod fault;
pub mod life;
pub mod replica_site;
pub mod site;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use self::clouds::Clouds;
use self::fault::Faults;
use self::life::Seen;
use self::site::Site;
use harness::stand::{Stand, channel};

/// Callers for each driver.
const CALLERS: usize = 16;
/// How long the last calls may take when nothing breaks any more.
const SETTLE: Duration = Duration::from_secs(120);

/// The result of a run.
pub struct Found {
    /// The results of the callers.
    pub seen: Seen,
    /// Faults, by kind.
    pub faults: std::collections::BTreeMap<&'static str, usize>,
    /// The violations.
    pub wrong: Vec<String>,
}

impl Found {
    /// A run shows something only if volumes lived while things broke.
    ///
    /// # Errors
    /// No life was led to its end, or nothing was broken.
    pub fn has_tried(&self) -> anyhow::Result<()> {
        ensure!(self.seen.lives > 0, "no life was led to its end");
        ensure!(self.faults.values().sum::<usize>() > 0, "nothing was broken");
        Ok(())
    }
}

/// Breaks things for `time`, then checks.
///
/// # Errors
/// A program cannot be started, or the last calls do not end.
pub async fn run(
    time: Duration,
    (seed, replicas): (u64, usize),
    say: &dyn Fn(&str),
) -> anyhow::Result<Found> {
    let stand = Arc::new(Mutex::new(Stand::new().await?));
    let mut clouds = Clouds::start(stand.clone(), replicas).await?;
    let mut sites = Vec::new();
    for plan in site::SITES {
        sites.push(Site::start(stand.clone(), plan, &clouds.urls(plan.quic)).await?);
    }
    let fronts = clouds.fronts().await;
    let ended = watch::Sender::new(false);
    let mut callers = JoinSet::new();
    for (at, (driver, front)) in fronts.iter().enumerate() {
        for caller in 0..CALLERS {
            let seed = seed.wrapping_mul(1000).wrapping_add((at * CALLERS + caller) as u64);
            let of = (seed, replicas == 0);
            callers.spawn(life::lead(front.clone(), driver, of, ended.subscribe()));
        }
    }
    let mut faults = Faults::new(seed, time);
    let breaking = faults.breaking(&mut clouds, &mut sites, say);
    let broken = breaking.await;
    ended.send_replace(true);
    broken?;
    say("everything is whole again; the last calls are ending");
    let (mut seen, settled) = settle(callers, &mut clouds).await?;
    let mut wrong = std::mem::take(&mut seen.wrong);
    if !settled {
        wrong.push(format!("callers were still trying {SETTLE:?} after the last fault"));
    }
    wrong.extend(left(&sites, &fronts, &seen.kept).await?);
    for site in sites {
        site.stop().await?;
    }
    wrong.extend(clouds.stop().await?);
    Ok(Found { seen, faults: faults.done(), wrong })
}

/// What the callers saw, and whether all came to their end in time.
async fn settle(mut callers: JoinSet<Seen>, clouds: &mut Clouds) -> anyhow::Result<(Seen, bool)> {
    let mut seen = Seen::default();
    let over = watch::Sender::new(false);
    let ending = async {
        while let Some(caller) = callers.join_next().await {
            seen.add(caller.context("a caller crashed")?);
        }
        anyhow::Ok(())
    };
    let bounded = async {
        let ended = tokio::time::timeout(SETTLE, ending).await;
        over.send_replace(true);
        ended
    };
    let (ended, supervised) = tokio::join!(bounded, clouds.supervise(over.subscribe()));
    supervised?;
    let settled = ended.map(|ended| ended.map(|()| true)).unwrap_or(Ok(false))?;
    Ok((seen, settled))
}

/// The differences of the drivers' volumes and csi-cloud's lists from `kept`, which is right.
async fn left(
    sites: &[Site],
    fronts: &[(&'static str, String)],
    kept: &BTreeSet<(String, String)>,
) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let mut there = BTreeSet::new();
    for site in sites {
        let (volumes, more) = site.holds().await?;
        wrong.extend(more);
        for id in volumes {
            let volume = (site.plan.driver.to_owned(), id);
            if !there.insert(volume.clone()) {
                wrong.push(format!("{}: volume {} is at two nodes", volume.0, volume.1));
            }
        }
    }
    let mut shown = BTreeSet::new();
    for (driver, front) in fronts {
        let mut client = ControllerClient::new(channel(front).await?);
        let volumes = site::volumes(&mut client).await.context("csi-cloud does not list")?;
        shown.extend(volumes.into_iter().map(|id| ((*driver).to_owned(), id)));
    }
    let mut lines = |set: BTreeSet<&(String, String)>, what: &str| {
        wrong.extend(set.into_iter().map(|(driver, id)| format!("{driver}: volume {id} {what}")));
    };
    lines(there.difference(kept).collect(), "was leaked");
    lines(kept.difference(&there).collect(), "is lost");
    lines(shown.difference(kept).collect(), "is listed and should not be there");
    lines(kept.difference(&shown).collect(), "is not listed");
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_lives_or_faults_shows_nothing() {
        let found = |lives, faults: &[(&'static str, usize)]| Found {
            seen: Seen { lives, ..Seen::default() },
            faults: faults.iter().copied().collect(),
            wrong: Vec::new(),
        };
        found(1, &[("link cut", 1)]).has_tried().unwrap();
        for (found, why) in
            [(found(0, &[("link cut", 1)]), "no life"), (found(1, &[]), "nothing was broken")]
        {
            let error = found.has_tried().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
