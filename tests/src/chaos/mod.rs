//! Real programs under load while they are killed, stopped and cut off at random, and what must hold afterwards.
//!
//! Four nodes, each with a driver name of its own: two reach the cloud over WebSocket and two over QUIC, each
//! through a relay that is cut. Two drivers are [`TestDriver`](crate::testdriver)s, which notice calls that
//! overlap; two are `hostdir` processes, whose state must survive their own SIGKILL.

pub mod fault;
pub mod life;
pub mod site;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{Mutex, watch};

use self::fault::Faults;
use self::life::Seen;
use self::site::{CloudSite, Site};
use crate::stand::Stand;

/// Callers for each driver.
const CALLERS: usize = 8;
/// How long the last calls may take when nothing breaks any more.
const SETTLE: Duration = Duration::from_secs(120);

/// What a run did and found.
pub struct Found {
    /// What the callers saw.
    pub seen: Seen,
    /// Faults, by kind.
    pub faults: std::collections::BTreeMap<&'static str, usize>,
    /// Each thing that must not be.
    pub wrong: Vec<String>,
}

/// Breaks things for `time`, then checks.
///
/// # Errors
/// A program cannot be started, or the last calls do not end.
pub async fn run(time: Duration, seed: u64, say: &dyn Fn(&str)) -> anyhow::Result<Found> {
    let stand = Arc::new(Mutex::new(Stand::new().await?));
    let names: Vec<_> = site::SITES.iter().map(|site| site.driver).collect();
    let mut cloud = CloudSite::start(stand.clone(), &names).await?;
    let mut sites = Vec::new();
    for plan in site::SITES {
        sites.push(Site::start(stand.clone(), plan, &cloud.urls).await?);
    }
    let fronts: Vec<_> = {
        let stand = stand.lock().await;
        names.iter().map(|name| stand.cloud_front(name)).collect()
    };
    let ended = watch::Sender::new(false);
    let mut callers = tokio::task::JoinSet::new();
    for (front, plan) in fronts.iter().zip(site::SITES) {
        for caller in 0..CALLERS {
            let seed = seed.wrapping_mul(1000).wrapping_add((plan.id * CALLERS + caller) as u64);
            callers.spawn(life::lead(front.clone(), plan, seed, ended.subscribe()));
        }
    }
    let mut faults = Faults::new(seed, time);
    let breaking = faults.breaking(&mut cloud, &mut sites, say);
    let broken = breaking.await;
    ended.send_replace(true);
    broken?;
    say("everything is whole again; the last calls are ending");
    let mut seen = Seen::default();
    let ending = async {
        while let Some(caller) = callers.join_next().await {
            seen.add(caller.context("a caller crashed")?);
        }
        anyhow::Ok(())
    };
    let settled = tokio::time::timeout(SETTLE, ending).await;
    let mut wrong = std::mem::take(&mut seen.wrong);
    match settled {
        Ok(ended) => ended?,
        Err(_) => wrong.push(format!("callers were still trying {SETTLE:?} after the last fault")),
    }
    for site in &sites {
        wrong.extend(site.check(&seen.kept).await?);
    }
    for site in sites {
        site.stop().await?;
    }
    cloud.stop().await?;
    Ok(Found { seen, faults: faults.done(), wrong })
}
