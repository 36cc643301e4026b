//! The lasting HTTP/2 connection to a socket of a driver, and further ones if the driver takes few
//! streams on one. It is made again when the driver restarts or asks to; the driver's health is
//! watched on a connection of its own.
//!
//! A driver must report the configured name: calls for one driver must never reach another's
//! storage. It may use `error`, `health`, `validity` and `introductions`.

mod introduction;
mod keep;
mod prober;
mod questions;
mod transport;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Response;
use parking_lot::{Mutex, MutexGuard};
use proto::control::health::Health;
use proto::csi::frame::FrameError;
use proto::csi::method::Service;
use proto::csi::{Local, Method};
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::host::tasks::Tasks;
use proto::http2::body::Received;
use proto::http2::forward::{self, Answer, Call, Unanswered};
use proto::link::Connect;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Code;

use crate::error::{DriverSocket, Error};
use crate::health::HealthTracker;
use crate::introductions::Introductions;
use crate::validity::Validity;
pub(crate) use introduction::{Answers, Introduction, Serves};
use questions::LOCALHOST;
pub(crate) use questions::{BoxError, check_name, headers, probe};
use transport::{DriverTransport, NotUsable};
pub(crate) use transport::{OpenStream, dial_unix, why_away};

/// So many times a call that was certainly not processed is sent again.
const RESENDS: usize = 2;
/// The most connections to one socket.
const MOST: usize = 16;
/// The time for which a call waits for a driver that is just coming back.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time for which a node's call about a volume waits for a driver that was never reached: the
/// node has just started. A kubelet waits longer after each refusal.
const LATE: Duration = Duration::from_secs(30);

/// The connections to one socket of a driver.
pub(crate) struct Connection {
    at: Mutex<Arc<DriverSocket>>,
    serves: Serves,
    state: watch::Sender<State>,
    /// Further connections, for a driver that takes few streams on one.
    more: Mutex<Vec<Arc<DriverTransport>>>,
    /// Held by the call that dials a further connection.
    dialing: tokio::sync::Mutex<()>,
    health: Mutex<HealthTracker>,
    /// Asks for an attempt to connect now.
    retry_now: Notify,
    /// Asks for a Probe now.
    probe_now: Notify,
    /// Asks for NodeGetInfo once more.
    node_info_due: Notify,
    /// Incremented when a driver connects, moves to another socket, or changes health.
    changes: watch::Sender<u64>,
    connect: Connect,
    /// What drivers said before.
    introductions: Arc<Introductions>,
    tasks: OnceLock<Tasks>,
}

#[derive(Clone)]
enum State {
    /// Cannot be reached, and why.
    Away(Arc<BoxError>),
    /// It has said its name on this connection; what else it says of itself may come later.
    Here(Arc<DriverTransport>, Arc<Introduction>),
}

impl State {
    fn is_open(&self) -> bool {
        matches!(self, Self::Here(transport, _) if transport.is_usable())
    }

    fn introduction(&self) -> Option<&Arc<Introduction>> {
        match self {
            Self::Here(_, said) => Some(said),
            Self::Away(_) => None,
        }
    }
}

impl Connection {
    /// No connection yet; [`Connection::keep`] connects.
    pub(crate) fn new(
        at: DriverSocket,
        serves: Serves,
        changes: watch::Sender<u64>,
        connect: Connect,
        introductions: Arc<Introductions>,
    ) -> Self {
        Self {
            at: Mutex::new(Arc::new(at)),
            serves,
            state: watch::Sender::new(State::Away(Arc::new("not connected yet".into()))),
            more: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            health: Mutex::new(HealthTracker::new(Instant::now())),
            retry_now: Notify::new(),
            probe_now: Notify::new(),
            node_info_due: Notify::new(),
            changes,
            connect,
            introductions,
            tasks: OnceLock::new(),
        }
    }

    /// Node, driver and socket, as errors name them.
    pub(crate) fn at(&self) -> Arc<DriverSocket> {
        self.lock_at().clone()
    }

    /// Goes on at another socket; returns whether it does. An open connection stays where it is:
    /// calls may be in flight there. Calls that wait for the driver wait for it there.
    pub(crate) fn relocate(&self, socket: String) -> bool {
        let mut at = self.lock_at();
        if self.is_open() {
            return false;
        }
        let DriverSocket { node, driver, .. } = at.as_ref().clone();
        *at = Arc::new(DriverSocket { node, driver, socket });
        drop(at);
        self.retry_now.notify_one();
        self.changes.send_modify(|changes| *changes += 1);
        true
    }

    /// Sends a call to the driver. What it certainly did not process is sent again, twice at most.
    ///
    /// # Errors
    /// [`Error::DriverAway`], or that of its validity, if it was not sent, or never processed;
    /// [`Error::DriverBroke`] if it may have been.
    pub(crate) async fn send(
        &self,
        call: &Call,
        validity: &Validity,
    ) -> Result<(Response<Received>, OpenStream), Error> {
        let mut resends = 0;
        loop {
            let mut stream = self.open_stream(call, validity.deadline()).await?;
            // The call may have waited for a driver that was coming back.
            if let Err(error) = validity.check() {
                stream.over();
                return Err(error);
            }
            let deadline = validity.drivers_deadline();
            let sent = forward::attempt(stream.upstream(), call, &LOCALHOST, deadline).await;
            match sent {
                Ok(response) => return Ok((response, stream)),
                Err(Unanswered::InDoubt(source)) => {
                    return Err(self.in_doubt(stream, source, validity).await);
                }
                Err(Unanswered::Unprocessed(source)) => {
                    stream.over();
                    stream.drain();
                    if resends == RESENDS {
                        return Err(Error::DriverAway { at: self.at(), source: source.into() });
                    }
                    resends += 1;
                }
            }
        }
    }

    /// Sends a call and receives its answer. A call that has a time to end is reset then, which
    /// cancels it at the driver as the end of a client's own patience does.
    ///
    /// # Errors
    /// [`Error::Ended`] at that time; otherwise as for [`Connection::send`].
    pub(crate) async fn exchange(&self, call: &Call, validity: &Validity) -> Result<Answer, Error> {
        let mut exchange = std::pin::pin!(self.exchange_unended(call, validity));
        let Some(ends) = validity.ends() else { return exchange.await };
        let ended = |_| Err(Error::Ended { at: self.at() });
        timeout_at(ends, exchange.as_mut()).await.unwrap_or_else(ended)
    }

    async fn exchange_unended(&self, call: &Call, validity: &Validity) -> Result<Answer, Error> {
        let (response, mut stream) = self.send(call, validity).await?;
        let mut answer = match Answer::collect(response).await {
            Ok(answer) => answer,
            Err(source) => return Err(self.in_doubt(stream, source, validity).await),
        };
        stream.over();
        // A driver does not speak for the edge.
        answer.take_not_dispatched();
        self.note_answer(&answer);
        Ok(answer)
    }

    /// The error of a call that broke on this stream. One of a create comes when the connection has
    /// ended, which takes no new calls until then: the driver may be carrying it out, and would
    /// refuse a second attempt because the first holds the space.
    async fn in_doubt(
        &self,
        mut stream: OpenStream,
        source: BoxError,
        validity: &Validity,
    ) -> Error {
        stream.over();
        let error = self.broke_at(&stream, source);
        if validity.is_create() {
            let ended = stream.retire();
            self.more.lock().retain(|one| one.is_usable());
            // Boxed: otherwise the future of every call would hold it.
            Box::pin(ended).await;
        }
        error
    }

    /// The error of a call that broke on this stream. If its connection takes no new calls, another
    /// process may serve the path by now, so nothing is noted of the driver.
    fn broke_at(&self, stream: &OpenStream, source: BoxError) -> Error {
        if stream.is_draining() {
            return Error::DriverBroke { at: self.at(), source };
        }
        self.broke(source)
    }

    /// The error of a call that the driver broke off.
    pub(crate) fn broke(&self, source: BoxError) -> Error {
        // It has answered, with more than we take.
        if source.downcast_ref::<FrameError>().is_none() {
            let why = format!("it broke a call off: {}", chain(source.as_ref()));
            self.note(|health, now| health.failed(now, &why));
        }
        Error::DriverBroke { at: self.at(), source }
    }

    /// Notes that a shared driver answered UNAVAILABLE about something.
    pub(crate) fn refused(&self, about: &str, why: &str) {
        self.note(|health, now| health.refused(now, about, why));
    }

    /// Has the driver asked for NodeGetInfo once more.
    pub(crate) fn ask_node_info(&self) {
        self.node_info_due.notify_one();
    }

    fn note_answer(&self, answer: &Answer) {
        if answer.failure().is_some_and(|status| status.code() == Code::Unavailable) {
            // CSI gives it no meaning for the driver as a whole, so Probe decides.
            self.probe_now.notify_one();
        } else if !self.health().is_calm() {
            self.note(HealthTracker::answered);
        }
    }

    /// A stream on a connection with room.
    async fn open_stream(
        &self,
        call: &Call,
        deadline: Option<Instant>,
    ) -> Result<OpenStream, Error> {
        let main = self.main_transport(call, deadline).await?;
        if main.has_room() {
            return Ok(main.begin());
        }
        // Boxed: otherwise the future of every call would hold it.
        Ok(Box::pin(self.further_stream(main)).await)
    }

    /// A stream on a further connection with room, which may have to be dialed; without one, on the
    /// least busy. One call dials at a time, and the others wait for it: what they could go on with
    /// may hang.
    async fn further_stream(&self, main: Arc<DriverTransport>) -> OpenStream {
        let turn = timeout(PATIENCE, self.dialing.lock()).await;
        let all = self.usable_ones();
        if let Some(one) = all.iter().chain([&main]).find(|one| one.is_usable() && one.has_room()) {
            return one.begin();
        }
        let least =
            || all.iter().chain([&main]).min_by_key(|one| one.busy()).unwrap_or(&main).begin();
        let may_dial = turn.is_ok() && all.len() + 1 < MOST;
        let Some(tasks) = self.tasks.get().filter(|_| may_dial) else { return least() };
        let at = self.at();
        match self.dial_named(&at, tasks, PATIENCE).await {
            Ok(one) => {
                let stream = one.begin();
                self.more.lock().push(one);
                stream
            }
            Err(error) => {
                let why = chain(error.as_ref());
                peer_warn!(
                    LogPeer::Driver(&at.driver), driver = %at.driver, socket = at.socket, why,
                    "no further connection"
                );
                least()
            }
        }
    }

    /// Dials the socket once more. The driver must say its name there within this time.
    async fn dial_named(
        &self,
        at: &DriverSocket,
        tasks: &Tasks,
        patience: Duration,
    ) -> Result<Arc<DriverTransport>, BoxError> {
        let dialing = async {
            let transport = DriverTransport::dial(&self.connect, &at.socket, tasks).await?;
            transport.check_name(&at.driver).await?;
            Ok(Arc::new(transport))
        };
        let late = |_| format!("it does not say within {patience:?} who it is");
        let dialed: Result<_, NotUsable> = timeout(patience, dialing).await.map_err(late)?;
        dialed.map_err(|unusable| unusable.source)
    }

    /// Lets the further connections live for their streams only: they lead to the same process as
    /// the one that ended or was replaced.
    fn drain_further(&self) {
        for one in self.more.lock().drain(..) {
            one.drain();
        }
    }

    /// The further connections that take calls.
    fn usable_ones(&self) -> Vec<Arc<DriverTransport>> {
        let mut more = self.more.lock();
        more.retain(|one| one.is_usable() && !one.was_told_to_leave());
        more.clone()
    }

    async fn main_transport(
        &self,
        call: &Call,
        deadline: Option<Instant>,
    ) -> Result<Arc<DriverTransport>, Error> {
        if !self.state.borrow().is_open() {
            self.retry_now.notify_one();
            let mut state = self.state.subscribe();
            let patience = self.patience(call, deadline);
            // Boxed: otherwise the future of every call would hold it.
            let _ = Box::pin(timeout(patience, state.wait_for(State::is_open))).await;
        }
        // Not under the borrow: who sets the state holds the lock of the socket.
        let state = self.state.borrow().clone();
        match state {
            State::Here(transport, _) => Ok(transport),
            State::Away(why) => {
                let source = why.to_string().into();
                Err(Error::DriverAway { at: self.at(), source })
            }
        }
    }

    /// The time for which a call waits for the driver. It ends early enough to tell the caller the
    /// reason.
    fn patience(&self, call: &Call, deadline: Option<Instant>) -> Duration {
        let path = call.path.path();
        let is_info = Method::of_path(path).is_some_and(|method| method.local().is_some());
        let is_volumes = Service::of_path(path) == Some(Service::Node) && !is_info;
        if !is_volumes || self.was_reached() {
            return PATIENCE;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()) / 2);
        left.unwrap_or(LATE).clamp(PATIENCE, LATE)
    }

    /// True if there is a connection.
    pub(crate) fn is_open(&self) -> bool {
        self.state.borrow().is_open()
    }

    /// The driver's whole introduction, if who serves this connection says the same name and
    /// version.
    fn known_of(&self, transport: &DriverTransport) -> Option<Arc<Introduction>> {
        let info = Method::answering(Local::Info).name();
        let of = |said: &Arc<Introduction>| {
            said.is_whole() && said.answers.get(info).map(|said| &said.0) == transport.info()
        };
        self.introduction().filter(of)
    }

    /// What the driver has said of itself at this socket; none while it is away.
    pub(crate) fn introduction(&self) -> Option<Arc<Introduction>> {
        self.state.borrow().introduction().cloned()
    }

    /// The health of the driver here; the reason names the socket.
    pub(crate) fn reported_health(&self) -> Health {
        let mut health = self.health().health(Instant::now());
        if !health.why.is_empty() {
            health.why = format!("{}: {}", self.at().socket, health.why);
        }
        health
    }

    /// Notes an event, and announces a change of the drivers if the health has changed.
    fn note(&self, happened: impl FnOnce(&mut HealthTracker, Instant)) {
        let mut health = self.health();
        let before = health.clone();
        happened(&mut health, Instant::now());
        let (was, _) = before.reported();
        let (state, why) = health.reported();
        if before.reported() == health.reported() {
            return;
        }
        let DriverSocket { driver, socket, .. } = &*self.at();
        match state.is_down() {
            _ if was == state => {}
            true => {
                peer_warn!(
                    LogPeer::Driver(driver), %driver, socket, ?state, why, "the driver is down"
                )
            }
            false => {
                peer_info!(
                    LogPeer::Driver(driver), %driver, socket, ?state, why,
                    "the driver's health has changed"
                )
            }
        }
        drop(health);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Whether the driver was reached here at least once.
    pub(crate) fn was_reached(&self) -> bool {
        self.health().was_reached()
    }

    fn lock_at(&self) -> MutexGuard<'_, Arc<DriverSocket>> {
        self.at.lock()
    }

    fn health(&self) -> MutexGuard<'_, HealthTracker> {
        // A panic leaves nothing half done here.
        self.health.lock()
    }
}
