//! The one lasting HTTP/2 connection to a socket of a driver. It is made again when the driver
//! restarts, and the driver's health is watched on it.
//!
//! A driver must report the configured name: calls for one driver must never reach another's
//! storage. It may use `error`, `health` and `validity`.

mod questions;

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use parking_lot::{Mutex, MutexGuard};
use proto::control::health::Health;
use proto::control::hello::Protobuf;
use proto::csi::frame;
use proto::csi::method::Service;
use proto::csi::{Capabilities, Local, Method};
use proto::host::backoff::Backoff;
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::http2::body::Received;
use proto::http2::forward;
use proto::http2::forward::Upstream;
use proto::http2::forward::{Answer, Call};
use proto::link::Connect;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Code;
use tracing::{info, warn};

use crate::error::{DriverSocket, Error};
use crate::health::{HealthTracker, is_failure};
use crate::validity::Validity;
pub(crate) use questions::{BoxError, ask, check_name, headers, probe};
use questions::{LOCALHOST, answers_with};

/// The delays between attempts to connect.
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(2);
/// The time limit for a driver's introduction.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// The time for which a call waits for a driver that is just coming back.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time for which a node's call about a volume waits for a driver that was never reached: the
/// node has just started. A kubelet waits longer after each refusal.
const LATE: Duration = Duration::from_secs(30);
/// The interval of Probe calls to a driver.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// A driver's answers, by RPC.
pub(crate) type Answers = BTreeMap<String, Protobuf>;

/// The services that a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// All of them.
    All,
    /// Identity and Node.
    Node,
    /// Identity, Controller, GroupController and SnapshotMetadata.
    Controller,
}

impl Serves {
    /// True if its answer counts for the driver.
    fn answers(self, local: Local) -> bool {
        let of_node = match local {
            Local::Info => return true,
            Local::Probe => return false,
            Local::NodeInfo | Local::Capabilities(Capabilities::Node) => true,
            Local::Capabilities(
                Capabilities::Plugin | Capabilities::Controller | Capabilities::Group,
            ) => false,
        };
        match self {
            Self::All => true,
            Self::Node => of_node,
            Self::Controller => !of_node,
        }
    }
}

/// A connection to one socket of a driver.
pub(crate) struct Connection {
    at: Mutex<Arc<DriverSocket>>,
    serves: Serves,
    state: watch::Sender<State>,
    health: Mutex<HealthTracker>,
    /// Asks for an attempt to connect now.
    retry_now: Notify,
    /// Incremented when a driver connects, moves to another socket, or changes health.
    changes: watch::Sender<u64>,
    connect: Connect,
}

#[derive(Clone)]
enum State {
    /// Cannot be reached, and why.
    Away(Arc<BoxError>),
    Here(Upstream, Arc<Answers>),
}

impl State {
    fn is_open(&self) -> bool {
        matches!(self, Self::Here(sender, _) if !sender.is_closed())
    }
}

/// The reason why there is no connection.
struct NotUsable {
    /// Somebody serves the socket.
    is_served: bool,
    source: BoxError,
}

impl NotUsable {
    fn unfit(source: impl Into<BoxError>) -> Self {
        Self { is_served: true, source: source.into() }
    }
}

impl Connection {
    /// No connection yet; [`Connection::keep`] connects.
    pub(crate) fn new(
        at: DriverSocket,
        serves: Serves,
        changes: watch::Sender<u64>,
        connect: Connect,
    ) -> Self {
        Self {
            at: Mutex::new(Arc::new(at)),
            serves,
            state: watch::Sender::new(State::Away(Arc::new("not connected yet".into()))),
            health: Mutex::new(HealthTracker::new(Instant::now())),
            retry_now: Notify::new(),
            changes,
            connect,
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

    /// Keeps the connection until told to stop.
    pub(crate) async fn keep(self: Arc<Self>, tasks: Tasks) {
        let mut delays = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            match self.connect(&tasks).await {
                Ok((sender, closed)) => {
                    delays.reset();
                    self.watch(&sender, closed).await;
                    let DriverSocket { driver, socket, .. } = &*self.at();
                    info!(%driver, socket, "the driver closed its connection");
                    let why = "it closed the connection";
                    self.state.send_replace(State::Away(Arc::new(why.into())));
                    self.note(|health, now| health.failed(now, why));
                }
                Err(NotUsable { is_served, source }) => {
                    self.set_away(source, is_served);
                    let delay = delays.delay();
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(delay) => {}
                        () = self.retry_now.notified() => {}
                    }
                }
            }
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
            warn!(%driver, socket, error = error_chain, "cannot use the driver; trying again");
        }
        self.state.send_replace(State::Away(Arc::new(error)));
        self.note(|health, now| match is_served {
            true => health.failed(now, &error_chain),
            false => health.unreachable(now, &error_chain),
        });
    }

    /// Connects, and asks the driver for its introduction. The receiver ends with the connection.
    async fn connect(&self, tasks: &Tasks) -> Result<(Upstream, oneshot::Receiver<()>), NotUsable> {
        let at = self.at();
        let stream = (self.connect)(at.socket.clone()).await;
        let away = |error| NotUsable { is_served: false, source: why_away(&at.socket, error) };
        let stream = stream.map_err(away)?;
        let (sender, connection) = forward::connect(stream).await.map_err(NotUsable::unfit)?;
        let (ended, closed) = oneshot::channel();
        tasks.spawn_until_stop("driver connection", async move {
            let _ = connection.await;
            drop(ended);
        });
        let late = |_| format!("it does not say within {INTRODUCTION:?} who it is");
        let answered = timeout(INTRODUCTION, self.introduce(&sender)).await;
        let answers = answered.map_err(late).map_err(NotUsable::unfit)?;
        let answers = answers.map_err(NotUsable::unfit)?;
        let here = State::Here(sender.clone(), Arc::new(answers));
        // Calls need not wait for the answer to Probe.
        if !self.set_here(&at, here) {
            return Err(NotUsable::unfit("it was announced at another socket meanwhile"));
        }
        info!(driver = %at.driver, socket = at.socket, "driver connected");
        let probed = probe(&sender).await;
        self.note(|health, now| {
            health.connected(now, *probed.as_ref().unwrap_or(&true));
            if let Err(why) = &probed {
                health.failed(now, why);
            }
        });
        self.changes.send_modify(|changes| *changes += 1);
        Ok((sender, closed))
    }

    /// Publishes the connection to waiting calls, unless the driver moved to another socket.
    /// Returns whether it published it.
    fn set_here(&self, at: &Arc<DriverSocket>, here: State) -> bool {
        let current = self.lock_at();
        let is_current = Arc::ptr_eq(&current, at);
        if is_current {
            self.state.send_replace(here);
        }
        is_current
    }

    /// Watches the driver's health until the connection ends.
    async fn watch(&self, sender: &Upstream, mut closed: oneshot::Receiver<()>) {
        let mut probe_at = Instant::now() + PROBE_EVERY;
        loop {
            let due = self.health().due();
            let wake = due.map_or(probe_at, |due| due.min(probe_at));
            tokio::select! {
                biased;
                _ = &mut closed => return,
                () = sleep_until(wake) => self.note(HealthTracker::look),
            }
            if Instant::now() < probe_at {
                continue;
            }
            tokio::select! {
                biased;
                _ = &mut closed => return,
                probed = probe(sender) => self.note(|health, now| match &probed {
                    Ok(is_ready) => health.probed(now, *is_ready),
                    Err(why) => health.failed(now, why),
                }),
            }
            probe_at = Instant::now() + PROBE_EVERY;
        }
    }

    /// Collects the driver's answers to the RPCs with a value in column `local`, except Probe, for
    /// this socket's services.
    async fn introduce(&self, sender: &Upstream) -> Result<Answers, BoxError> {
        let mut answers = Answers::new();
        for method in Method::ALL.iter().copied() {
            let Some(local) = method.local().filter(|local| self.serves.answers(*local)) else {
                continue;
            };
            let answer = ask(sender, method).await?;
            let body = match (answer.ok(), answer.failure()) {
                (Some(body), _) => body,
                (None, Some(status)) if status.code() != Code::Unimplemented => {
                    // The driver may be just starting. The cloud keeps answers for good, so an
                    // error is not taken for one.
                    let said = answers_with(method, &status);
                    return Err(format!("{said}, so what it can do is not known").into());
                }
                // It does not have the method.
                (None, _) => continue,
            };
            let message = frame::message(body)?;
            if local == Local::Info {
                check_name(&message, &self.at().driver)?;
            }
            answers.insert(method.name().into(), Protobuf(message));
        }
        if answers.contains_key(Method::answering(Local::Info).name()) {
            Ok(answers)
        } else {
            Err("it does not say its name".into())
        }
    }

    /// Sends a call to the driver.
    ///
    /// # Errors
    /// [`Error::DriverAway`], or that of its validity, if it was not sent;
    /// [`Error::DriverBroke`] if it may have been.
    pub(crate) async fn send(
        &self,
        call: &Call,
        validity: &Validity,
    ) -> Result<Response<Received>, Error> {
        let sender = self.sender(call, validity.deadline()).await?;
        // The call may have waited for a driver that was coming back.
        validity.check()?;
        let sent = forward::forward(&sender, call, &LOCALHOST, None).await;
        sent.map_err(|source| self.broke(source))
    }

    /// Sends a call and receives its answer to the end.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub(crate) async fn exchange(&self, call: &Call, validity: &Validity) -> Result<Answer, Error> {
        let response = self.send(call, validity).await?;
        let mut answer = Answer::collect(response).await.map_err(|source| self.broke(source))?;
        // A driver does not speak for the edge.
        answer.take_not_dispatched();
        self.note_answer(call, &answer);
        Ok(answer)
    }

    /// The error of a call that the driver broke off.
    pub(crate) fn broke(&self, source: BoxError) -> Error {
        let why = format!("it broke a call off: {}", chain(source.as_ref()));
        self.note(|health, now| health.failed(now, &why));
        Error::DriverBroke { at: self.at(), source }
    }

    fn note_answer(&self, call: &Call, answer: &Answer) {
        if answer.ok().is_none()
            && let Some(status) = answer.failure().filter(|status| is_failure(status.code()))
        {
            let method = call.path.path();
            let code = status.code();
            let why = format!("it answers {method} with {code:?}: {}", status.message());
            return self.note(|health, now| health.failed(now, &why));
        }
        let is_calm = self.health().is_calm();
        if !is_calm {
            self.note(HealthTracker::answered);
        }
    }

    async fn sender(&self, call: &Call, deadline: Option<Instant>) -> Result<Upstream, Error> {
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
            State::Here(sender, _) => Ok(sender),
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

    /// The driver's introduction at this socket; none while it is away.
    pub(crate) fn answers(&self) -> Option<Arc<Answers>> {
        match &*self.state.borrow() {
            State::Here(_, answers) => Some(answers.clone()),
            State::Away(_) => None,
        }
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
            true => warn!(%driver, socket, ?state, why, "the driver is down"),
            false => info!(%driver, socket, ?state, why, "the driver's health has changed"),
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

/// Explains to people why there is no connection.
pub(crate) fn why_away(socket: &str, error: std::io::Error) -> BoxError {
    match std::fs::metadata(socket) {
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => {
            "there is nothing at its socket's path; is the driver running?".into()
        }
        Ok(meta) if !meta.file_type().is_socket() => {
            "what is at its socket's path is no socket".into()
        }
        _ if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            "nobody serves its socket; is the driver running?".into()
        }
        _ => error.into(),
    }
}
