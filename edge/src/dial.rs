//! Keeps a link to the cloud, by the best way there is.
//!
//! Of several ways the first that links is used; while it is not the preferred one, that is tried again, and a
//! cloud that is going away is left for another. A new link is up before the older one is let go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proto::error::chain;
use proto::host::tasks::Tasks;
use proto::link::endpoint::Endpoint;
use proto::link::tls::Credentials;
use proto::link::{Connect, KeepAlive, LinkError};
use proto::names::NodeName;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{info, warn};

use self::backoff::STABLE;
use self::link::Heard;
use self::ways::{Aim, Found, Ways};
use crate::calls::{Calls, Replaced};
use crate::drivers::Drivers;

pub mod backoff;
mod link;
mod ways;

/// The time between two attempts at a preferred way doubles up to this many times the first.
const RETURN_GROWTH: u32 = 10;

/// All that dialing needs.
pub struct Dial {
    /// Where the cloud is, the preferred way to it first.
    pub cloud: Vec<Endpoint>,
    /// How soon a way that is preferred to the one in use is tried again; later less often.
    pub return_after: Duration,
    /// Who we are, and whom we trust.
    pub credentials: Credentials,
    /// This node, as its certificate says.
    pub node: NodeName,
    /// What we tell of.
    pub drivers: Arc<Drivers>,
    /// What carries the calls out.
    pub calls: Arc<Calls>,
    /// How liveness is watched.
    pub keep_alive: KeepAlive,
    /// How the network is reached.
    pub connect: Connect,
}

/// The link in use.
struct Current {
    way: usize,
    since: Instant,
    heard: mpsc::Receiver<Heard>,
    /// Told to stop, it says goodbye, finishes its calls and ends.
    tasks: Tasks,
    /// Set when a newer link is used instead: what arrives here from now on was sent before that.
    replaced: Replaced,
    /// The cloud said that it goes away.
    told: bool,
    return_after: Duration,
}

impl Dial {
    /// Keeps a link until told to stop. The link is then let go in a task of `tasks`, its calls finished. Delays are
    /// drawn with `dice`, no two edges' alike.
    pub async fn keep(self, mut dice: StdRng, tasks: Tasks) {
        let dial = Arc::new(self);
        let mut ways = Ways::new(&dial.cloud, &mut dice);
        let mut current: Option<Current> = None;
        loop {
            let aim = current.as_ref().map_or(Aim::Any, |current| current.aim(&mut dice));
            tokio::select! {
                biased;
                () = tasks.stopped() => return,
                heard = heard(&mut current) => match heard {
                    Heard::Leave => current.iter_mut().for_each(|current| current.told = true),
                    Heard::BackoffCap(cap) => ways.cap(cap),
                    Heard::Ended(reason) => dial.ended(current.take(), &reason, &mut ways),
                },
                found = ways.find(&dial, &aim) => match found {
                    Some(found) => {
                        let newer = dial.begin(found, &mut ways, &tasks);
                        if let Some(older) = current.replace(newer) {
                            older.let_go();
                        }
                    }
                    None => current.iter_mut().for_each(|current| current.wait_longer(dial.return_after)),
                },
            }
        }
    }

    fn begin(self: &Arc<Self>, found: Found, ways: &mut Ways, tasks: &Tasks) -> Current {
        let Found { way, greeted } = found;
        ways.cap(greeted.backoff_cap);
        let endpoint = ways.endpoint(way);
        info!(cloud = %endpoint, node = %self.node, "linked");
        println!("linked {endpoint} as {}", self.node);
        let (tell, heard) = mpsc::channel(8);
        let (own, replaced) = (tasks.child(), Replaced::default());
        let link = link::Use { tell, tasks: own.clone(), replaced: replaced.clone() };
        tasks.spawn("link", link::run(self.clone(), greeted, link));
        Current {
            way,
            since: Instant::now(),
            heard,
            tasks: own,
            replaced,
            told: false,
            return_after: self.return_after,
        }
    }

    fn ended(&self, current: Option<Current>, reason: &LinkError, ways: &mut Ways) {
        let Some(ended) = current else { return };
        // Who left because it was told to has not failed.
        let stable = ended.told || ended.since.elapsed() >= STABLE;
        let delay = ways.ended(ended.way, stable);
        let cloud = ways.endpoint(ended.way);
        warn!(%cloud, reason = %chain(reason), ?delay, "no link; dialing again");
    }
}

/// What the link in use tells; nothing, without end, if there is none.
async fn heard(current: &mut Option<Current>) -> Heard {
    match current {
        Some(current) => current.heard.recv().await.unwrap_or_else(|| {
            // Its task tells how it ended before it goes, so this is for a task that crashed.
            Heard::Ended(LinkError::Closed("its task is gone".into()))
        }),
        None => std::future::pending().await,
    }
}

impl Current {
    fn aim(&self, dice: &mut StdRng) -> Aim {
        match self.way {
            way if self.told => Aim::Elsewhere { than: way },
            0 => Aim::Nothing,
            way => Aim::Better { than: way, after: self.return_after.mul_f64(dice.random_range(0.5..1.5)) },
        }
    }

    fn wait_longer(&mut self, first: Duration) {
        self.return_after = (self.return_after * 2).min(first * RETURN_GROWTH);
    }

    /// Lets a link go that a newer one replaces. A cloud that goes away closes it itself, after the calls that
    /// are still to come; any other is told, so that it sends no more.
    fn let_go(self) {
        if !self.told {
            self.replaced.store(true, Ordering::Relaxed);
            self.tasks.stop();
        }
    }
}
