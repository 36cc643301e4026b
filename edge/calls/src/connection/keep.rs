//! Keeps the connection to a driver's socket: dials it, has the driver say who it is, and watches
//! it until no new call may use it.

use std::sync::Arc;
use std::time::Duration;

use proto::host::backoff::Backoff;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::host::tasks::Tasks;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::introduction::{ANSWER, Introduction};
use super::prober::Prober;
use super::questions::BoxError;
use super::transport::{DriverTransport, LOOK_EVERY, NotUsable};
use super::{Connection, State};
use crate::error::DriverSocket;
use crate::health::HealthTracker;

/// The delays between attempts to connect.
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(2);
/// A driver that introduces itself later than this is called before it has.
const QUICKLY: Duration = Duration::from_millis(500);
/// A driver that says its name later than this counts as away until it does.
const LATE_NAME: Duration = Duration::from_secs(5);
/// A driver that answers Probe later than this may be down.
const LATE_PROBE: Duration = Duration::from_secs(5);
/// It is asked anew after this.
const LONGEST_PROBE: Duration = Duration::from_secs(30);
/// The interval of Probe calls to a driver.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// A connection that calls may use, and what has happened on it.
struct WatchStart {
    transport: Arc<DriverTransport>,
    prober: Prober,
    /// What the driver has said of itself on it.
    said: Introduction,
}

/// How the watch over a connection ended.
enum Watched {
    /// No new call may use it.
    Unusable,
    /// Another process serves the path, on this connection.
    Replaced(Arc<DriverTransport>),
}

impl Connection {
    /// Keeps the connection until told to stop.
    pub(crate) async fn keep(self: Arc<Self>, tasks: Tasks) {
        let _ = self.tasks.set(tasks.clone());
        let mut delays = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            match self.connect(&tasks).await {
                Ok(watch) => {
                    delays.reset();
                    let begun = Instant::now();
                    self.watch_all(watch, &tasks).await;
                    // Who closes each connection at once is not dialed without a pause.
                    if begun.elapsed() < FIRST_DELAY {
                        sleep(FIRST_DELAY).await;
                    }
                }
                Err(NotUsable { is_served, source }) => {
                    self.set_away(source, is_served);
                    let delay = delays.delay();
                    tokio::select! {
                        biased;
                        () = sleep(delay) => {}
                        () = self.retry_now.notified() => {}
                    }
                }
            }
        }
    }

    /// Watches a connection, and those that replace it at its path, until no new call may use the
    /// last of them.
    async fn watch_all(&self, mut watch: WatchStart, tasks: &Tasks) {
        let mut transport = watch.transport.clone();
        while let Watched::Replaced(newer) = self.watch(watch, tasks).await {
            let DriverSocket { driver, socket, .. } = &*self.at();
            peer_info!(
                LogPeer::Driver(driver), %driver, socket,
                "another process serves the socket; new calls go there"
            );
            // It lives for its streams, and nothing that it does counts.
            transport.drain();
            self.drain_further();
            let said = Introduction::begun(self.serves, newer.info());
            watch = WatchStart { transport: newer.clone(), prober: Prober::default(), said };
            transport = newer;
        }
        self.drain_further();
        let DriverSocket { driver, socket, .. } = &*self.at();
        let was_told = transport.was_told_to_leave();
        peer_info!(
            LogPeer::Driver(driver), %driver, socket, was_told,
            "the driver's connection takes no more calls"
        );
        if !was_told {
            let why = "it closed the connection";
            self.state.send_replace(State::Away(Arc::new(why.into())));
            self.note(|health, now| health.failed(now, why));
        }
    }

    /// Notes why the driver cannot be used, and logs each reason once.
    fn set_away(&self, error: BoxError, is_served: bool) {
        let text = error.to_string();
        let known =
            matches!(&*self.state.borrow(), State::Away(known) if known.to_string() == text);
        let error_chain = chain(error.as_ref());
        if !known {
            let DriverSocket { driver, socket, .. } = &*self.at();
            peer_warn!(
                LogPeer::Driver(driver), %driver, socket, error = error_chain,
                "cannot use the driver; trying again"
            );
        }
        self.state.send_replace(State::Away(Arc::new(error)));
        self.note(|health, now| match is_served {
            true => health.failed(now, &error_chain),
            false => health.unreachable(now, &error_chain),
        });
    }

    /// Connects to the driver, which says its name before any call goes to it.
    async fn connect(&self, tasks: &Tasks) -> Result<WatchStart, NotUsable> {
        let at = self.at();
        let transport = DriverTransport::dial(&self.connect, &at.socket, tasks).await?;
        tokio::select! {
            biased;
            checked = self.check_name(&transport, &at) => checked?,
            () = transport.replaced(&at.socket) => {
                return Err(NotUsable::unfit("another process serves its socket by now"));
            }
        }
        let transport = Arc::new(transport);
        let mut prober = Prober::default();
        let mut said = Introduction::begun(self.serves, transport.info());
        let mut probed = None;
        let is_unknown = self.known_of(&transport).is_none();
        if is_unknown {
            // Most drivers introduce themselves and answer Probe at once. Nobody sees them without,
            // so csi-cloud is told all of it together.
            let asking = timeout(QUICKLY, self.complete(&mut said, &transport, |_| {}));
            let probing = timeout(QUICKLY, self.probe(&mut prober, tasks));
            let (_, outcome) = tokio::join!(asking, probing);
            probed = outcome.ok();
        }
        // Calls need not wait for the rest.
        if !self.publish(&at, &transport, &said) {
            return Err(NotUsable::unfit("it was announced at another socket meanwhile"));
        }
        peer_info!(
            LogPeer::Driver(&at.driver), driver = %at.driver, socket = at.socket, "driver connected"
        );
        if is_unknown {
            // It is not up before it has introduced itself, whatever Probe says.
            self.note(|health, now| health.introduced(now, said.why_unknown()));
            self.changes.send_modify(|changes| *changes += 1);
        }
        if let Some(probed) = probed {
            self.note_first(&mut prober, &probed);
        }
        Ok(WatchStart { transport, prober, said })
    }

    /// Has the driver say what is missing of its introduction, and reports after each answer. Where
    /// it cannot say its NodeGetInfo now, what the same driver said at this node before stands for
    /// it: volumes that are here need neither an API server nor whatever else the driver asks.
    async fn complete(
        &self,
        said: &mut Introduction,
        transport: &DriverTransport,
        mut on_answer: impl FnMut(&Introduction),
    ) {
        let DriverSocket { driver, socket, .. } = &*self.at();
        let stand_in = |said: &mut Introduction| {
            if said.stand_in(|| self.introductions.node_info(driver, transport.info()?)) {
                peer_info!(
                    LogPeer::Driver(driver), %driver, socket,
                    "it does not answer NodeGetInfo; its earlier answer stands"
                );
            }
            on_answer(said);
        };
        said.complete(transport.upstream(), stand_in).await;
    }

    /// Waits for the driver's name as long as a kubelet would. It counts as away meanwhile.
    async fn check_name(
        &self,
        transport: &DriverTransport,
        at: &DriverSocket,
    ) -> Result<(), NotUsable> {
        let mut checking = std::pin::pin!(transport.check_name(&at.driver));
        let late = || NotUsable::unfit(format!("it does not say within {LATE_NAME:?} who it is"));
        if let Ok(checked) = timeout(LATE_NAME, checking.as_mut()).await {
            return checked;
        }
        let NotUsable { is_served, source } = late();
        self.set_away(source, is_served);
        timeout(ANSWER, checking).await.unwrap_or_else(|_| Err(late()))
    }

    /// Publishes a connection to waiting calls, with what the driver said of itself, or the whole
    /// introduction of the same process before. Not if the driver moved to another socket; returns
    /// whether it published it.
    fn publish(
        &self,
        at: &Arc<DriverSocket>,
        transport: &Arc<DriverTransport>,
        said: &Introduction,
    ) -> bool {
        let known = if said.is_whole() { None } else { self.known_of(transport) };
        let said = known.unwrap_or_else(|| Arc::new(said.clone()));
        let current = self.lock_at();
        let is_current = Arc::ptr_eq(&current, at);
        if is_current {
            self.state.send_replace(State::Here(transport.clone(), said));
        }
        is_current
    }

    /// Has the driver introduce itself, and watches its health, until no new call may use the
    /// connection or another process serves its path.
    async fn watch(&self, watch: WatchStart, tasks: &Tasks) -> Watched {
        let WatchStart { transport, mut prober, said } = watch;
        let socket = self.at().socket.clone();
        let introducing = self.introduce(&transport, said);
        let probing = self.probe_always(&mut prober, tasks);
        let replaced = self.await_replacement(&transport, &socket, tasks);
        tokio::select! {
            biased;
            () = transport.unusable() => Watched::Unusable,
            newer = replaced => Watched::Replaced(newer),
            () = introducing => Watched::Unusable,
            () = probing => Watched::Unusable,
        }
    }

    /// Waits until another process serves the path, and has said its name.
    async fn await_replacement(
        &self,
        transport: &DriverTransport,
        socket: &str,
        tasks: &Tasks,
    ) -> Arc<DriverTransport> {
        loop {
            transport.replaced(socket).await;
            let at = self.at();
            if let Ok(newer) = self.dial_named(&at, tasks, ANSWER).await
                && self.publish(&at, &newer, &Introduction::begun(self.serves, newer.info()))
            {
                return newer;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Probes the driver until the connection ends: at once, in intervals, and when an answer gives
    /// reason to.
    async fn probe_always(&self, prober: &mut Prober, tasks: &Tasks) {
        if !prober.is_noted {
            let probed = self.probe(prober, tasks).await;
            self.note_first(prober, &probed);
        }
        loop {
            self.await_next_probe().await;
            let probed = self.probe(prober, tasks).await;
            self.note(|health, now| match &probed {
                Ok(is_ready) => health.probed(now, *is_ready),
                Err(why) => health.failed(now, why),
            });
        }
    }

    /// Notes the first outcome of a Probe. It ends no row of failures: a driver that dies of each
    /// call gives it too.
    fn note_first(&self, prober: &mut Prober, probed: &Result<bool, String>) {
        prober.is_noted = true;
        self.note(|health, now| {
            health.connected(now, *probed.as_ref().unwrap_or(&true));
            if let Err(why) = probed {
                health.failed(now, why);
            }
        });
    }

    async fn await_next_probe(&self) {
        let probe_at = Instant::now() + PROBE_EVERY;
        while Instant::now() < probe_at {
            let due = self.health().due();
            let wake = due.map_or(probe_at, |due| due.min(probe_at));
            tokio::select! {
                biased;
                () = self.probe_now.notified() => return,
                () = sleep_until(wake) => self.note(HealthTracker::look),
            }
        }
    }

    /// Asks whether the driver is ready. A late answer counts as a failure, and is waited for all
    /// the same.
    async fn probe(&self, prober: &mut Prober, tasks: &Tasks) -> Result<bool, String> {
        let at = self.at();
        let mut probing = std::pin::pin!(prober.probe(&self.connect, &at.socket, tasks));
        let begun = Instant::now();
        let mut patience = LATE_PROBE;
        while begun.elapsed() + patience <= LONGEST_PROBE {
            if let Ok(probed) = timeout(patience, probing.as_mut()).await {
                return probed;
            }
            let why = format!("it does not answer Probe within {:?}", begun.elapsed());
            self.note(|health, now| health.failed(now, &why));
            patience = LATE_PROBE + PROBE_EVERY;
        }
        let left = LONGEST_PROBE.saturating_sub(begun.elapsed());
        let late = |_| Err(format!("it does not answer Probe within {LONGEST_PROBE:?}"));
        timeout(left, probing).await.unwrap_or_else(late)
    }

    /// Asks the driver until it has introduced itself, and then no more: the answers of one process
    /// do not change. That to NodeGetInfo may, and is asked for on request. It never returns.
    async fn introduce(&self, transport: &Arc<DriverTransport>, mut said: Introduction) {
        let mut delays = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        while !said.is_complete() {
            let mut before = said.answers.clone();
            let report = |said: &Introduction| {
                self.publish(&self.at(), transport, said);
                // What the same process said on the connection before holds until all is said here.
                if !said.is_whole() && self.known_of(transport).is_some() {
                    return;
                }
                self.note(|health, now| health.introduced(now, said.why_unknown()));
                if said.answers != before {
                    before.clone_from(&said.answers);
                    self.changes.send_modify(|changes| *changes += 1);
                }
            };
            self.complete(&mut said, transport, report).await;
            if !said.is_complete() {
                sleep(delays.delay()).await;
            }
        }
        self.publish(&self.at(), transport, &said);
        self.note(|health, now| health.introduced(now, None));
        self.changes.send_modify(|changes| *changes += 1);
        loop {
            self.node_info_due.notified().await;
            if said.renew_node_info(transport.upstream()).await {
                self.publish(&self.at(), transport, &said);
                self.changes.send_modify(|changes| *changes += 1);
            }
        }
    }
}
