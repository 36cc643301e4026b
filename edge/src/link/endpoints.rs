//! The ways to the cloud, each with its own backoff, and the race between them.
//!
//! A way is dialed when those that are preferred to it have failed, or have not linked for a while: a network
//! that swallows UDP answers nothing. Hellos are said one at a time, so that the cloud meets one link only.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use proto::host::chain;
use proto::link;
use proto::link::endpoint::Endpoint;
use proto::link::{HANDSHAKE, LinkError};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::warn;

use super::backoff::{Backoff, Cap};
use super::dial::Dial;
use super::hello;
use super::hello::Greeted;

/// How long a way has for itself before the next one is tried beside it.
const STAGGER: Duration = Duration::from_secs(3);

/// What is looked for.
#[derive(Clone, Debug)]
pub(super) enum Aim {
    /// Any link.
    Any,
    /// A way preferred to this one; once, after a time.
    Better { than: usize, after: Duration },
    /// Any link, but this way last.
    Elsewhere { than: usize },
    /// Nothing: the best way is in use.
    Nothing,
}

/// A new link.
pub(super) struct Found {
    pub(super) endpoint: usize,
    pub(super) greeted: Greeted,
}

/// All ways, the preferred first.
pub(super) struct Endpoints {
    all: Vec<Candidate>,
    cap: Cap,
}

struct Candidate {
    place: usize,
    endpoint: Endpoint,
    backoff: Backoff,
}

/// Says when a way may join the race.
struct Gate {
    begun: Instant,
    /// How many ways have failed at least once.
    failed: watch::Sender<usize>,
    /// Held by who says hello.
    hello: Mutex<()>,
}

impl Gate {
    async fn open(&self, place: usize) {
        let mut failed = self.failed.subscribe();
        let turn = self.begun + STAGGER * u32::try_from(place).unwrap_or(u32::MAX);
        tokio::select! {
            biased;
            () = sleep_until(turn) => {}
            _ = failed.wait_for(|failed| *failed >= place) => {}
        }
    }
}

impl Endpoints {
    pub(super) fn new(cloud: &[Endpoint], dice: &mut StdRng) -> Self {
        let candidate = |(place, endpoint): (usize, &Endpoint)| Candidate {
            place,
            endpoint: endpoint.clone(),
            backoff: Backoff::new(StdRng::from_rng(dice)),
        };
        Self { all: cloud.iter().enumerate().map(candidate).collect(), cap: Cap::default() }
    }

    /// Takes the longest delay that the cloud wishes.
    pub(super) fn cap(&mut self, told: Option<Duration>) {
        self.cap.take(told);
    }

    pub(super) fn name(&self, endpoint: usize) -> String {
        self.all.get(endpoint).map(|candidate| candidate.endpoint.to_string()).unwrap_or_default()
    }

    /// Notes that the link by this way is gone; gives how long the way is left alone.
    pub(super) fn ended(&mut self, endpoint: usize, stable: bool) -> Duration {
        let cap = self.cap;
        self.all
            .get_mut(endpoint)
            .map(|candidate| candidate.backoff.ended(stable, cap))
            .unwrap_or_default()
    }

    /// Finds what is aimed at; none if the one attempt at a better way did not link. Dropped, it may be called
    /// again without harm.
    pub(super) async fn find(&mut self, dial: &Dial, aim: &Aim) -> Option<Found> {
        match *aim {
            Aim::Nothing => std::future::pending().await,
            Aim::Any => Some(self.race(dial, Some).await),
            Aim::Elsewhere { than } => {
                // All edges are told at once.
                for candidate in &mut self.all {
                    candidate.backoff.reset();
                }
                let last = |place| Some(if place == than { usize::MAX } else { place });
                Some(self.race(dial, last).await)
            }
            Aim::Better { than, after } => {
                sleep(after).await;
                self.all.iter_mut().take(than).for_each(|candidate| candidate.backoff.forget());
                let better = |place| (place < than).then_some(place);
                timeout(HANDSHAKE, self.race(dial, better)).await.ok()
            }
        }
    }

    /// Dials the ways that have a rank, in its order, until one links.
    async fn race(&mut self, dial: &Dial, rank: impl Fn(usize) -> Option<usize>) -> Found {
        let cap = self.cap;
        let gate =
            Gate { begun: Instant::now(), failed: watch::Sender::new(0), hello: Mutex::default() };
        let ranked =
            self.all.iter_mut().filter_map(|candidate| Some((rank(candidate.place)?, candidate)));
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let racing = ranked.into_iter().enumerate();
        let racing = racing.map(|(turn, (_, candidate))| candidate.persist(dial, turn, &gate, cap));
        let mut racing: FuturesUnordered<_> = racing.collect();
        match racing.next().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }
}

impl Candidate {
    /// Dials until it links, from its turn on.
    async fn persist(&mut self, dial: &Dial, turn: usize, gate: &Gate, cap: Cap) -> Found {
        gate.open(turn).await;
        let mut first = true;
        loop {
            self.backoff.over().await;
            let error = match self.link(dial, gate).await {
                Ok(greeted) => return Found { endpoint: self.place, greeted },
                Err(error) => error,
            };
            let delay = self.backoff.failed(cap);
            warn!(cloud = %self.endpoint, reason = %chain(&error), ?delay, "cannot link; dialing again");
            if std::mem::take(&mut first) {
                gate.failed.send_modify(|failed| *failed += 1);
            }
        }
    }

    async fn link(&self, dial: &Dial, gate: &Gate) -> Result<Greeted, LinkError> {
        let link =
            link::dial(&self.endpoint, &dial.credentials, dial.keep_alive, &dial.connect).await?;
        let _one_at_a_time = gate.hello.lock().await;
        hello::greet(dial, &self.endpoint, link).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_way_waits_for_those_before_it_to_fail_or_for_its_turn() {
        let gate =
            Gate { begun: Instant::now(), failed: watch::Sender::new(0), hello: Mutex::default() };
        gate.open(0).await;
        assert_eq!(gate.begun.elapsed(), Duration::ZERO, "the first waits for nobody");
        gate.open(1).await;
        assert_eq!(gate.begun.elapsed().as_secs(), STAGGER.as_secs(), "the first says nothing");
        gate.failed.send_replace(2);
        gate.open(2).await;
        assert_eq!(gate.begun.elapsed().as_secs(), STAGGER.as_secs(), "both have failed");
    }
}
