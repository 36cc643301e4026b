//! The endpoints of the cloud, each with its own backoff, and the race between them.
//!
//! An endpoint is dialed when the preferred ones have failed or have not linked for a while: a
//! network that swallows UDP answers nothing. Hellos are sent one at a time, so that the cloud gets
//! one link only.

use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use proto::host::chain;
use proto::link;
use proto::link::endpoint::Endpoint;
use proto::link::{HANDSHAKE, Link, LinkError};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::warn;

use super::backoff::{Backoff, Cap};
use super::dial::Dial;
use super::hello;
use super::hello::Greeted;
use super::renew;
use crate::identity::directory::NodeIdentity;

/// How long an endpoint has for itself before the next one joins.
const STAGGER: Duration = Duration::from_secs(3);

/// What kind of link to find.
#[derive(Clone, Debug)]
pub(super) enum Aim {
    /// Any link.
    Any,
    /// An endpoint preferred to this one; one attempt, after a delay.
    Better { than: usize, after: Duration },
    /// Any link, with this endpoint last.
    Elsewhere { than: usize },
    /// Nothing: the best endpoint is in use.
    Nothing,
}

/// A new link.
pub(super) struct Found {
    pub(super) endpoint: usize,
    pub(super) greeted: Greeted,
}

/// All endpoints, the preferred first.
pub(super) struct Endpoints {
    all: Vec<Candidate>,
    cap: Cap,
}

struct Candidate {
    place: usize,
    endpoint: Endpoint,
    backoff: Backoff,
}

/// Says when an endpoint may join the race.
struct Gate {
    begun: Instant,
    /// How many endpoints have failed at least once.
    failed: watch::Sender<usize>,
    /// Held by the endpoint that sends its hello.
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

    /// Takes the cloud's longest delay.
    pub(super) fn cap(&mut self, told: Option<Duration>) {
        self.cap.take(told);
    }

    pub(super) fn name(&self, endpoint: usize) -> String {
        self.all.get(endpoint).map(|candidate| candidate.endpoint.to_string()).unwrap_or_default()
    }

    /// Notes that the link by this endpoint ended, and returns the delay before it is dialed again.
    pub(super) fn ended(&mut self, endpoint: usize, stable: bool) -> Duration {
        let cap = self.cap;
        self.all
            .get_mut(endpoint)
            .map(|candidate| candidate.backoff.ended(stable, cap))
            .unwrap_or_default()
    }

    /// Finds a link for the aim; none if one attempt at a better endpoint failed. It is safe to
    /// drop and call again.
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

    /// Dials the endpoints that have a rank, in its order, until one links.
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
    /// Dials until it links, once its turn has come.
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
            let cloud = &self.endpoint;
            warn!(%cloud, reason = %chain(&error), ?delay, "cannot link; dialing again");
            if std::mem::take(&mut first) {
                gate.failed.send_modify(|failed| *failed += 1);
            }
        }
    }

    async fn link(&self, dial: &Dial, gate: &Gate) -> Result<Greeted, LinkError> {
        let ended = |identity: &&NodeIdentity| identity.ended(SystemTime::now());
        if let Some(identity) = dial.identity.as_ref().filter(ended) {
            let link = self.dial(dial).await?;
            let _one_at_a_time = gate.hello.lock().await;
            if ended(&identity) {
                renew::ended(identity, link).await?;
            }
        }
        let link = self.dial(dial).await?;
        let _one_at_a_time = gate.hello.lock().await;
        hello::greet(dial, &self.endpoint, link).await
    }

    async fn dial(&self, dial: &Dial) -> Result<Link, LinkError> {
        link::dial(&self.endpoint, &dial.credentials, dial.keep_alive, &dial.connect).await
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
