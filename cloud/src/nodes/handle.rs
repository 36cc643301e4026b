//! One link as calls see it: its connections, its limits, and the edge at its other end.
//!
//! HTTP/2 on a link starts with its first call, because most edges are idle most of the time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use futures_channel::mpsc;
use h2::{Ping, PingPong};
use proto::control::hello::Run;
use proto::control::machine::MachineId;
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::http2::forward;
use proto::http2::forward::Upstream;
use proto::http2::limits::MAX_PASSING;
use proto::http2::paced::{Budget, Paced};
use proto::link::endpoint::Transport;
use proto::link::{Io, LinkError, StreamKind};
use proto::names::DriverName;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot};
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::nodes::connections::{Connections, IdleEnd, Lane, Lender, LentConnection};
use crate::nodes::driver_health::ReportedHealth;
use crate::pki::issuer::CaTag;
use crate::state::authority::Unserved;

/// The number of calls in flight on one link. More are refused, because each holds its request in
/// memory.
const MAX_LINK_CALLS: usize = 2048;
/// The interval of questions to the other side of a link that has calls.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Asked, and silent for this long, the other side is dead.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// Why the link ends then.
const SILENT: &str = "no sign of life during a call";

/// A request to the link's task for a byte stream.
pub(super) type Want = (StreamKind, oneshot::Sender<Result<Io, LinkError>>);

/// A link that calls can use.
pub struct Handle {
    calls: Arc<Lender>,
    /// Seldom used, so an idle link has none.
    bulk: OnceLock<Arc<Lender>>,
    /// The open connections of all links, which are swept together.
    connections: Arc<Connections>,
    /// What the edge may send on all of its byte streams; an idle link has none.
    budget: OnceLock<Budget>,
    want: mpsc::Sender<Want>,
    room: Semaphore,
    passing: Arc<Semaphore>,
    /// Stopped when the link ends; all tasks of the link are part of it.
    pub(super) tasks: Tasks,
    /// The reason why csi-cloud ends it; the first reason counts.
    why: Arc<OnceLock<&'static str>>,
    /// The time at which the certificate of the edge ends; none if that is not known.
    expires: Option<SystemTime>,
    /// True while it is its node's link: not replaced, and the edge is not leaving.
    in_use: AtomicBool,
    /// True once it is logged that the node holds as many leases as it may.
    full: AtomicBool,
    /// The drivers that the node names and that have no front. Shown, never stored.
    unserved: parking_lot::Mutex<Vec<Unserved>>,
    /// For each driver, the end of the last call that may have changed its volumes or snapshots.
    changed: parking_lot::Mutex<Vec<(DriverName, Instant)>>,
    /// The health of the drivers.
    pub(super) health: ReportedHealth,
    /// Notified when its own edge has to be told something new.
    pub(super) news: Notify,
    /// The time of its welcome.
    pub(crate) begun: Instant,
    /// The edge at its other end.
    pub(crate) peer: Peer,
}

/// The edge at the other end of a link, as shown to operators.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// `wss`, `quic`, or empty for a link without a network.
    pub transport: &'static str,
    /// The address it dialed from, as seen here; none for a link without a network.
    pub address: Option<SocketAddr>,
    /// The version of csi-edge.
    pub version: Box<str>,
    /// True if it expands volumes on its node itself, without the secrets for that.
    pub expands: bool,
    /// True if it refuses to begin a call after the time that it gets with it.
    pub begins_within: bool,
    /// True if it keeps the watermark of a create.
    pub takes_watermark: bool,
    /// The CAs that it trusts, and the one of its certificate; none if it does not say.
    pub ca: Option<CaTag>,
    /// True if it answers a challenge, and has its state directory to itself.
    pub answers_challenge: bool,
    /// The run of csi-edge; `None` in tests only.
    pub run: Option<Run>,
    /// Its machine; `None` if it does not tell.
    pub machine: Option<MachineId>,
}

impl Peer {
    /// True if it tells its machine, and that is another one than this.
    pub(crate) fn is_elsewhere(&self, machine: Option<MachineId>) -> bool {
        self.machine.zip(machine).is_some_and(|(this, other)| this != other)
    }

    /// The run of csi-edge and its address, in words.
    pub(crate) fn of_run(&self) -> String {
        let run = self.run.map_or_else(|| "an unknown run".into(), |run| format!("run {run}"));
        match self.address {
            Some(address) => format!("{run} at {address}"),
            None => run,
        }
    }
}

impl Handle {
    pub(crate) fn new(peer: Peer, want: mpsc::Sender<Want>, tasks: Tasks) -> Self {
        let connections = Arc::<Connections>::default();
        Self {
            calls: Arc::new(Lender::new(IdleEnd::Never, connections.clone())),
            bulk: OnceLock::new(),
            connections,
            budget: OnceLock::new(),
            want,
            room: Semaphore::new(MAX_LINK_CALLS),
            passing: Arc::new(Semaphore::new(MAX_PASSING)),
            tasks,
            why: Arc::default(),
            expires: None,
            in_use: AtomicBool::new(true),
            full: AtomicBool::default(),
            unserved: parking_lot::Mutex::default(),
            changed: parking_lot::Mutex::default(),
            health: ReportedHealth::default(),
            news: Notify::new(),
            begun: Instant::now(),
            peer,
        }
    }

    /// The same link of an edge whose certificate ends then.
    #[must_use]
    pub(super) fn expiring(self, expires: Option<SystemTime>) -> Self {
        Self { expires, ..self }
    }

    /// The same link, whose connections are among these. `reopens` says whether its edge takes
    /// another calls stream when one has ended.
    #[must_use]
    pub(super) fn sharing(self, connections: Arc<Connections>, reopens: bool) -> Self {
        let ending = if reopens { IdleEnd::Idle } else { IdleEnd::Never };
        Self { calls: Arc::new(Lender::new(ending, connections.clone())), connections, ..self }
    }

    /// The same link with the health that its edge reports.
    #[must_use]
    pub(super) fn with_health(self, health: ReportedHealth) -> Self {
        Self { health, ..self }
    }

    /// When the certificate of the edge ends; none if that is not known.
    pub(crate) fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    /// True if the certificate of the edge has ended by then.
    pub(super) fn is_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }

    /// Ends the link, and tells the edge why.
    pub(crate) fn end(&self, why: &'static str) {
        let _ = self.why.set(why);
        self.tasks.stop();
    }

    /// The reason why csi-cloud ends it; none if csi-cloud stops.
    pub(super) fn why(&self) -> Option<&'static str> {
        self.why.get().copied()
    }

    /// True until the link ends.
    pub fn is_up(&self) -> bool {
        !self.tasks.is_stopped()
    }

    /// True while it is its node's link: not replaced, and the edge is not leaving.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::SeqCst)
    }

    /// Ends its time as the node's link.
    pub(super) fn retire(&self) {
        self.in_use.store(false, Ordering::SeqCst);
    }

    /// Notes that the node holds as many leases as it may; true the first time.
    pub(crate) fn note_full(&self) -> bool {
        !self.full.swap(true, Ordering::Relaxed)
    }

    /// The drivers that the node names and that have no front.
    pub(crate) fn unserved(&self) -> Vec<Unserved> {
        self.unserved.lock().clone()
    }

    pub(super) fn set_unserved(&self, drivers: Vec<Unserved>) {
        *self.unserved.lock() = drivers;
    }

    /// The end of the last call that may have changed a driver's volumes or snapshots; `None` if
    /// there was no such call on this link.
    pub(crate) fn changed(&self, driver: &DriverName) -> Option<Instant> {
        let changed = self.changed.lock();
        changed.iter().find_map(|(of, at)| (of == driver).then_some(*at))
    }

    /// Notes that such a call has ended now.
    pub(crate) fn note_changed(&self, driver: &DriverName) {
        let (now, mut changed) = (Instant::now(), self.changed.lock());
        match changed.iter_mut().find(|(of, _)| of == driver) {
            Some((_, at)) => *at = now,
            None => changed.push((driver.clone(), now)),
        }
    }

    /// Reserves room for one more call.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn permit(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.room.try_acquire().map_err(|_| Error::Full(MAX_LINK_CALLS))
    }

    /// Reserves room for one more streamed answer.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn passing(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.passing.clone().try_acquire_owned().map_err(|_| Error::Full(MAX_PASSING))
    }

    /// The HTTP/2 connection for this kind of calls, for one call. The first caller opens it; the
    /// others wait.
    ///
    /// # Errors
    /// The link has ended, or opens no byte stream.
    pub(crate) async fn lend(
        &self,
        kind: StreamKind,
        lane: Lane,
    ) -> Result<LentConnection, LinkError> {
        let lender = match kind {
            StreamKind::Calls => &self.calls,
            StreamKind::Bulk => self.bulk.get_or_init(|| self.bulk_lender()),
        };
        lender.lend(lane, || self.connect(kind)).await
    }

    fn bulk_lender(&self) -> Arc<Lender> {
        let dials = self.peer.transport == Transport::Ws.scheme();
        let ending = if dials { IdleEnd::IdleDialed } else { IdleEnd::Idle };
        Arc::new(Lender::new(ending, self.connections.clone()))
    }

    async fn connect(&self, kind: StreamKind) -> Result<Upstream, LinkError> {
        let budget = self.budget.get_or_init(Budget::default);
        budget.pardoned().await;
        let (answer, opened) = oneshot::channel();
        self.want.clone().try_send((kind, answer)).map_err(|_| gone())?;
        let io = opened.await.map_err(|_| gone())??;
        let begun = forward::connect_asking(Paced::calling(io, budget.clone())).await;
        let (upstream, pings, connection) =
            begun.map_err(|error| LinkError::Closed(chain(&error)))?;
        let (budget, violated) = (budget.clone(), upstream.violated());
        let (tasks, why) = (self.tasks.clone(), self.why.clone());
        self.tasks.spawn_until_stop("link http2", async move {
            let ended = tokio::select! {
                biased;
                ended = connection => ended,
                () = violated => return budget.violated(),
                () = silent(pings, &budget) => {
                    let _ = why.set(SILENT);
                    return tasks.stop();
                }
            };
            if let Err(error) = ended {
                if error.is_library() {
                    budget.violated();
                }
                tracing::debug!(error = %chain(&error), "HTTP/2 on a link ended");
            }
        });
        Ok(upstream)
    }
}

/// Asks the other side for as long as HTTP/2 is open, which is while there are calls. Ends when it
/// says nothing, however seldom the link's own signs of life are.
async fn silent(mut pings: PingPong, budget: &Budget) {
    loop {
        sleep(ASK_EVERY).await;
        let answered = pings.ping(Ping::opaque());
        tokio::pin!(answered);
        loop {
            tokio::select! {
                biased;
                answered = &mut answered => match answered {
                    Ok(_) => break,
                    // The connection has ended, and says why.
                    Err(_) => return std::future::pending().await,
                },
                () = sleep(ASK_EVERY) => {}
            }
            if budget.silence() >= DEAD_AFTER {
                return;
            }
        }
    }
}

fn gone() -> LinkError {
    LinkError::Closed("it ended before the call was sent".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves HTTP/2 for so long, and then reads no more.
    async fn serve(io: tokio::io::DuplexStream, time: Duration) {
        let mut serving = h2::server::handshake(io).await.unwrap();
        let answering = async { while let Some(Ok(_)) = serving.accept().await {} };
        let _ = tokio::time::timeout(time, answering).await;
        std::future::pending::<()>().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_edge_that_falls_silent_is_found_out_while_http2_is_open() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (tasks, budget) = (Tasks::default(), Budget::default());
        let minute = Duration::from_secs(60);
        tasks.spawn("edge", serve(far, minute));
        let begun = Instant::now();
        let calling = forward::connect_asking(Paced::calling(near, budget.clone())).await;
        let (_upstream, pings, connection) = calling.unwrap();
        tasks.spawn("connection", async move { drop(connection.await) });
        silent(pings, &budget).await;
        let found = begun.elapsed().checked_sub(minute).unwrap();
        assert!((10..=20).contains(&found.as_secs()), "{found:?}");
        tasks.give_up();
    }
}
