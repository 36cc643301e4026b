//! The endpoints of the cloud, each with its own backoff, and the race between them.
//!
//! An endpoint is dialed when the preferred ones have failed or have not linked for a while: a
//! network that swallows UDP answers nothing. Hellos are sent one at a time, so that the cloud gets
//! one link only. A cloud that follows another one says where that is; such endpoints are next.

use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::link;
use proto::link::endpoint::Endpoint;
use proto::link::{HANDSHAKE, Link, LinkError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::error;

use super::backoff::{Backoff, Cap};
use super::dial::Dial;
use super::hello;
use super::hello::{Greeted, NotGreeted};
use super::outage::{FailureLog, Outage};
use super::renew;
use crate::identity::directory::NodeIdentity;

/// The head start of an endpoint before the next one joins the race.
const STAGGER: Duration = Duration::from_secs(3);
/// The longest wait before the leader is dialed, of which many edges hear at once.
const SPREAD: Duration = Duration::from_millis(500);

/// The kind of link to find.
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
    dice: StdRng,
    outage: Outage,
    log: FailureLog,
}

/// The result of a race.
enum Raced {
    /// An endpoint has linked.
    Found(Found),
    /// A cloud follows the one at these endpoints, which may be others than ours.
    Leader(Vec<String>),
    /// Each has failed as often as it may.
    Failed,
}

/// The rules by which a race dials endpoints.
#[derive(Clone, Copy)]
struct Rules<'a> {
    cap: Cap,
    /// How often each is dialed.
    until: Until,
    log: &'a FailureLog,
    /// A leader that cannot be used: its followers may wait for another one.
    useless: Option<&'a [String]>,
}

/// When a race ends without a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Each endpoint has failed once.
    Once,
    /// It is this time, and each endpoint has ended its dial.
    At(Instant),
    /// Never.
    Stopped,
}

impl Until {
    async fn reached(self) {
        match self {
            Self::At(end) => sleep_until(end).await,
            Self::Once | Self::Stopped => std::future::pending().await,
        }
    }
}

struct Candidate {
    place: usize,
    endpoint: Endpoint,
    backoff: Backoff,
}

/// Says when an endpoint may join the race.
struct Gate {
    begun: Instant,
    /// The number of endpoints that have failed at least once.
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
        let all = cloud.iter().enumerate().map(candidate).collect();
        Self {
            all,
            cap: Cap::default(),
            dice: StdRng::from_rng(dice),
            outage: Outage::default(),
            log: FailureLog::default(),
        }
    }

    /// Takes the cloud's longest delay.
    pub(super) fn cap(&mut self, cap: Option<Duration>) {
        self.cap.take(cap);
    }

    pub(super) fn name(&self, endpoint: usize) -> String {
        self.all.get(endpoint).map(|candidate| candidate.endpoint.to_string()).unwrap_or_default()
    }

    /// Notes that the link by this endpoint ended, and returns the delay before it is dialed again.
    pub(super) fn ended(&mut self, endpoint: usize, stable: bool) -> Duration {
        self.outage.ended();
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
            Aim::Any => Some(self.link(dial, Some).await),
            Aim::Elsewhere { than } => {
                // All edges are told at once.
                for candidate in &mut self.all {
                    candidate.backoff.reset();
                }
                let last = |place| Some(if place == than { usize::MAX } else { place });
                Some(self.link(dial, last).await)
            }
            Aim::Better { than, after } => {
                sleep(after).await;
                self.all.iter_mut().take(than).for_each(|candidate| candidate.backoff.forget());
                timeout(HANDSHAKE, self.better(dial, than)).await.ok().flatten()
            }
        }
    }

    /// Dials the endpoints that have a rank, in its order, until one links.
    async fn link(&mut self, dial: &Dial, rank: impl Fn(usize) -> Option<usize>) -> Found {
        let mut useless: Option<Vec<String>> = None;
        self.outage.begin();
        loop {
            let mut raced = if self.outage.is_long() {
                self.round(dial, &rank, useless.as_deref()).await
            } else {
                let until = Until::At(self.outage.long_at());
                self.race(dial, &rank, (until, useless.as_deref())).await
            };
            // Each may send us to the next one while leaders change.
            for _ in 0..self.all.len() {
                let Raced::Leader(leader) = raced else { break };
                self.outage.named(&leader);
                raced = self.dial_leader(dial, &leader, usize::MAX).await;
                useless = Some(leader);
            }
            if let Raced::Found(found) = raced {
                self.outage.ended();
                self.log.linked();
                return found;
            }
        }
    }

    /// Waits, and then dials once what has a rank: all endpoints over TCP, and of the others one
    /// in turn, whose handshake may cost ten times as much when it is swallowed.
    async fn round(
        &mut self,
        dial: &Dial,
        rank: impl Fn(usize) -> Option<usize>,
        useless: Option<&[String]>,
    ) -> Raced {
        let number = self.outage.round(&dial.network, &mut self.dice).await;
        self.all.iter_mut().for_each(|candidate| candidate.backoff.forget());
        let Some(number) = number else { return Raced::Failed };
        let (mut places, mut others) = (Vec::new(), Vec::new());
        for candidate in &self.all {
            let is_tcp = candidate.endpoint.transport.is_tcp();
            if is_tcp { &mut places } else { &mut others }.push(candidate.place);
        }
        if !others.is_empty() {
            places.extend(others.get(number % others.len()));
        }
        let how = (Until::Once, useless);
        self.race(dial, |place| rank(place).filter(|_| places.contains(&place)), how).await
    }

    /// Makes one attempt at endpoints preferred to this one.
    async fn better(&mut self, dial: &Dial, than: usize) -> Option<Found> {
        let rank = |place| (place < than).then_some(place);
        let mut raced = self.race(dial, rank, (Until::Stopped, None)).await;
        if let Raced::Leader(leader) = raced {
            raced = self.dial_leader(dial, &leader, than).await;
        }
        match raced {
            Raced::Found(found) => Some(found),
            Raced::Leader(_) | Raced::Failed => None,
        }
    }

    /// Dials the configured endpoints of the leader before this one, once each, regardless of
    /// earlier failures.
    async fn dial_leader(&mut self, dial: &Dial, leader: &[String], before: usize) -> Raced {
        let is_named = |all: &Candidate| leader.contains(&all.endpoint.to_string());
        let named: Vec<_> = self.all.iter().map(is_named).collect();
        let is_next =
            |place: usize| place < before && named.get(place).copied().unwrap_or_default();
        if !(0..self.all.len()).any(is_next) {
            return Raced::Failed;
        }
        sleep(SPREAD.mul_f64(self.dice.random_range(0.0..1.0))).await;
        let next = self.all.iter_mut().filter(|candidate| is_next(candidate.place));
        next.for_each(|candidate| candidate.backoff.forget());
        self.race(dial, |place| is_next(place).then_some(place), (Until::Once, None)).await
    }

    /// Dials the endpoints that have a rank, in its order, by these rules.
    async fn race(
        &mut self,
        dial: &Dial,
        rank: impl Fn(usize) -> Option<usize>,
        (until, useless): (Until, Option<&[String]>),
    ) -> Raced {
        let rules = Rules { cap: self.cap, until, log: &self.log, useless };
        let gate =
            Gate { begun: Instant::now(), failed: watch::Sender::new(0), hello: Mutex::default() };
        let ranked =
            self.all.iter_mut().filter_map(|candidate| Some((rank(candidate.place)?, candidate)));
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let racing = ranked.into_iter().enumerate();
        let racing =
            racing.map(|(turn, (_, candidate))| candidate.persist(dial, turn, &gate, rules));
        let mut racing: FuturesUnordered<_> = racing.collect();
        while let Some(raced) = racing.next().await {
            if !matches!(raced, Raced::Failed) {
                return raced;
            }
        }
        if until == Until::Stopped { std::future::pending().await } else { Raced::Failed }
    }
}

impl Candidate {
    /// Waits for its turn, then dials until the endpoint links or names the leader.
    async fn persist(&mut self, dial: &Dial, turn: usize, gate: &Gate, rules: Rules<'_>) -> Raced {
        let mut first = true;
        loop {
            let next = async {
                gate.open(turn).await;
                self.backoff.over().await;
            };
            tokio::select! {
                biased;
                () = rules.until.reached() => return Raced::Failed,
                () = next => {}
            }
            match self.link(dial, gate, rules.useless.is_some()).await {
                Ok(greeted) => return Raced::Found(Found { endpoint: self.place, greeted }),
                Err(NotGreeted::Follows { reason, leader }) => {
                    self.log_following(rules.log, &reason, &leader);
                    self.backoff.turned_away();
                    if !leader.is_empty() && rules.useless != Some(leader.as_slice()) {
                        return Raced::Leader(leader);
                    }
                }
                Err(failed) => {
                    self.backoff.failed(rules.cap);
                    self.log_failed(rules.log, &failed);
                }
            }
            if std::mem::take(&mut first) {
                gate.failed.send_modify(|failed| *failed += 1);
            }
            if rules.until == Until::Once {
                return Raced::Failed;
            }
        }
    }

    fn log_following(&self, log: &FailureLog, reason: &str, leader: &[String]) {
        let Some(unlogged) = log.failed(self.place) else { return };
        peer_info!(
            LogPeer::Cloud, cloud = %self.endpoint, reason, leader = leader.join(" "), unlogged,
            "the cloud does not lead"
        );
    }

    fn log_failed(&self, log: &FailureLog, failed: &NotGreeted) {
        let Some(unlogged) = log.failed(self.place) else { return };
        let cloud = &self.endpoint;
        match failed {
            NotGreeted::Refused(reason) | NotGreeted::Follows { reason, .. } => {
                error!(%cloud, reason, unlogged, "the cloud refused this edge");
            }
            NotGreeted::Lost(error) => peer_warn!(
                LogPeer::Cloud, %cloud, reason = %chain(error), unlogged,
                "cannot link; dialing again"
            ),
        }
    }

    async fn link(
        &self,
        dial: &Dial,
        gate: &Gate,
        awaits_leader: bool,
    ) -> Result<Greeted, NotGreeted> {
        let ended = |identity: &&NodeIdentity| identity.ended(SystemTime::now());
        if let Some(identity) = dial.identity.as_ref().filter(ended) {
            let link = self.dial(dial).await?;
            let _one_at_a_time = gate.hello.lock().await;
            if ended(&identity) {
                renew::ended(identity, dial.machine, link).await?;
            }
        }
        let link = self.dial(dial).await?;
        let _one_at_a_time = gate.hello.lock().await;
        hello::greet(dial, link, awaits_leader).await
    }

    async fn dial(&self, dial: &Dial) -> Result<Link, LinkError> {
        link::dial(&self.endpoint, &dial.credentials, dial.keep_alive, &dial.network).await
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
