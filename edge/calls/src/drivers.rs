//! The vendors' drivers at this node: one lasting HTTP/2 connection each, and what each driver says
//! of itself. A connection is made again when its driver restarts.
//!
//! A driver must report the configured name: calls for one driver must never reach another's
//! storage. It may use `error`.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backon::BackoffBuilder;
use http::HeaderMap;
use http::Response;
use http::uri::{Authority, PathAndQuery};
use prost::Message;
use proto::control::hello;
use proto::csi;
use proto::csi::frame;
use proto::csi::node_service_capability;
use proto::csi::topology;
use proto::csi::{Capabilities, Local, Method};
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::http2::body::Received;
use proto::http2::forward;
use proto::http2::forward::Upstream;
use proto::http2::forward::{Answer, Call};
use proto::link::{Connect, Io};
use proto::names::DriverName;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tonic::{Code, Status};
use tracing::{info, warn};

use crate::error::Error;

/// How long a driver may take to introduce itself.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// How long a call waits for a driver that is just coming back.
const PATIENCE: Duration = Duration::from_secs(1);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One driver.
pub struct Driver {
    /// Its CSI name.
    pub name: DriverName,
    socket: PathBuf,
    state: watch::Sender<Connection>,
    /// Asks for an attempt to connect now.
    retry_now: Notify,
    /// Counts the drivers' changes of what they say of themselves.
    changes: watch::Sender<u64>,
    connect: Connect,
}

#[derive(Clone)]
enum Connection {
    /// Cannot be reached, and why.
    Away(Arc<BoxError>),
    Here(Upstream, Arc<hello::Driver>),
}

impl Connection {
    fn is_open(&self) -> bool {
        matches!(self, Self::Here(sender, _) if !sender.is_closed())
    }
}

/// The authority of requests; every driver's gRPC library accepts it.
const LOCALHOST: &str = "localhost";

impl Driver {
    /// A driver without a connection; [`Driver::keep`] connects.
    fn new(
        name: DriverName,
        socket: PathBuf,
        changes: watch::Sender<u64>,
        connect: Connect,
    ) -> Self {
        let state = watch::Sender::new(Connection::Away(Arc::new("not connected yet".into())));
        Self { name, socket, state, retry_now: Notify::new(), changes, connect }
    }

    /// Keeps the connection until told to stop.
    async fn keep(self: Arc<Self>, tasks: Tasks) {
        let mut delays = backoff();
        loop {
            match self.connect(&tasks).await {
                Ok(closed) => {
                    delays = backoff();
                    let _ = closed.await;
                    info!(driver = %self.name, "the driver closed its connection");
                    self.state.send_replace(Connection::Away(Arc::new(
                        "it closed the connection".into(),
                    )));
                }
                Err(error) => {
                    self.set_away(error);
                    let delay = delays.next().unwrap_or(Duration::from_secs(2));
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
    fn set_away(&self, error: BoxError) {
        let text = error.to_string();
        let known =
            matches!(&*self.state.borrow(), Connection::Away(known) if known.to_string() == text);
        if !known {
            let driver = &self.name;
            let socket = self.socket.display();
            let error = chain(error.as_ref());
            warn!(%driver, %socket, error, "cannot use the driver; trying again");
        }
        self.state.send_replace(Connection::Away(Arc::new(error)));
    }

    /// Connects, and asks who is there. The receiver ends with the connection.
    async fn connect(&self, tasks: &Tasks) -> Result<tokio::sync::oneshot::Receiver<()>, BoxError> {
        let socket = self.socket.display().to_string();
        let stream = (self.connect)(socket).await.map_err(|error| self.why_away(error))?;
        let (sender, connection) = forward::connect(stream).await?;
        let (ended, closed) = tokio::sync::oneshot::channel();
        tasks.spawn_until_stop("driver connection", async move {
            let _ = connection.await;
            drop(ended);
        });
        let answered = tokio::time::timeout(INTRODUCTION, self.introduce(&sender)).await;
        let answers = answered
            .map_err(|_| format!("it does not say within {INTRODUCTION:?} who it is"))??;
        info!(driver = %self.name, socket = %self.socket.display(), "driver connected");
        self.state.send_replace(Connection::Here(sender, Arc::new(answers)));
        self.changes.send_modify(|changes| *changes += 1);
        Ok(closed)
    }

    /// Explains to people why there is no connection.
    fn why_away(&self, error: std::io::Error) -> BoxError {
        match std::fs::metadata(&self.socket) {
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

    /// Asks the driver everything that a front of the cloud answers for it.
    async fn introduce(&self, sender: &Upstream) -> Result<hello::Driver, BoxError> {
        let mut driver =
            hello::Driver { name: self.name.clone(), answers: Default::default(), health: None };
        for method in Method::ALL.iter().copied() {
            let Some(local) = method.local().filter(|local| *local != Local::Probe) else {
                continue;
            };
            let path = PathAndQuery::from_static(method.path());
            let call = Call { headers: headers(), path, body: frame::frame(&[]) };
            let answered = forward::forward(sender, &call, &authority(), None).await;
            let response = answered
                .map_err(|error| format!("it does not speak gRPC: {}", chain(error.as_ref())))?;
            let answer = Answer::collect(response).await?;
            let body = match (answer.ok(), answer.failure()) {
                (Some(body), _) => body,
                (None, Some(status)) if status.code() != Code::Unimplemented => {
                    return Err(unanswered(method.name(), &status));
                }
                // It does not have the method.
                (None, _) => continue,
            };
            let message = frame::message(body)?;
            if local == Local::Info {
                let says = csi::GetPluginInfoResponse::decode(message.clone())?.name;
                if says != self.name.as_str() {
                    return Err(format!(
                        "it calls itself {says:?}; correct the name or the socket"
                    )
                    .into());
                }
            }
            driver.answers.insert(method.name().into(), hello::Protobuf(message));
        }
        if driver.answers.contains_key(Method::answering(Local::Info).name()) {
            Ok(driver)
        } else {
            Err("it does not say its name".into())
        }
    }

    /// Sends a call to the driver; `deadline` is how long its caller waits.
    ///
    /// # Errors
    /// [`Error::DriverAway`] or [`Error::TooLate`] if it was not sent;
    /// [`Error::DriverBroke`] if it may have been.
    pub async fn call(
        &self,
        call: &Call,
        deadline: Option<Instant>,
    ) -> Result<Response<Received>, Error> {
        let sender = self.sender().await?;
        // The call may have waited for a driver that was coming back.
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Error::too_late());
        }
        let broke = |source| Error::DriverBroke { driver: self.name.clone(), source };
        forward::forward(&sender, call, &authority(), None).await.map_err(broke)
    }

    /// The same, and receives the whole answer.
    ///
    /// # Errors
    /// As for [`Driver::call`].
    pub async fn exchange(&self, call: &Call, deadline: Option<Instant>) -> Result<Answer, Error> {
        let response = self.call(call, deadline).await?;
        let broke = |source| Error::DriverBroke { driver: self.name.clone(), source };
        let mut answer = Answer::collect(response).await.map_err(broke)?;
        // A driver does not speak for the edge.
        answer.take_not_dispatched();
        Ok(answer)
    }

    async fn sender(&self) -> Result<Upstream, Error> {
        if !self.state.borrow().is_open() {
            self.retry_now.notify_one();
            let mut state = self.state.subscribe();
            // Boxed: otherwise the future of every call would hold it.
            let _ =
                Box::pin(tokio::time::timeout(PATIENCE, state.wait_for(Connection::is_open))).await;
        }
        match &*self.state.borrow() {
            Connection::Here(sender, _) => Ok(sender.clone()),
            Connection::Away(why) => Err(Error::DriverAway {
                driver: self.name.clone(),
                socket: self.socket.display().to_string(),
                source: why.to_string().into(),
            }),
        }
    }

    /// What the driver says of itself; its name alone while it is away.
    pub fn hello(&self) -> hello::Driver {
        match &*self.state.borrow() {
            Connection::Here(_, hello) => hello.as_ref().clone(),
            Connection::Away(_) => {
                hello::Driver { name: self.name.clone(), answers: Default::default(), health: None }
            }
        }
    }
}

impl Driver {
    /// Whether there is a connection to the driver.
    pub(crate) fn is_here(&self) -> bool {
        self.state.borrow().is_open()
    }

    /// Whether the driver has its own topology; none while it is away.
    pub(crate) fn has_own_topology(&self) -> Option<bool> {
        match &*self.state.borrow() {
            Connection::Here(_, hello) => Some(has_own_topology(hello)),
            Connection::Away(_) => None,
        }
    }

    /// Whether the driver expands volumes on a node; none while it is away.
    pub(crate) fn expands_on_node(&self) -> Option<bool> {
        let state = self.state.borrow();
        let Connection::Here(_, hello) = &*state else { return None };
        let method = Method::answering(Local::Capabilities(Capabilities::Node));
        let answer = hello.answers.get(method.name())?.0.clone();
        let answer = csi::NodeGetCapabilitiesResponse::decode(answer).ok()?;
        let kinds = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        let expand = node_service_capability::rpc::Type::ExpandVolume as i32;
        Some(kinds.into_iter().any(
            |kind| matches!(kind, node_service_capability::Type::Rpc(rpc) if rpc.r#type == expand),
        ))
    }
}

/// Whether a driver has its own topology, as it introduced itself.
pub(crate) fn has_own_topology(hello: &hello::Driver) -> bool {
    let answer = |local| {
        let answer = hello.answers.get(Method::answering(local).name());
        answer.map_or(&[][..], |answer| &answer.0)
    };
    let capabilities = answer(Local::Capabilities(Capabilities::Plugin));
    topology::has_own(capabilities, answer(Local::NodeInfo))
}

/// All drivers of this node.
pub struct Drivers {
    all: Vec<Arc<Driver>>,
    /// Counts the changes of what the drivers say of themselves.
    changes: watch::Sender<u64>,
}

impl Drivers {
    /// Drivers by name and socket, reached by `connect`.
    pub fn new(sockets: BTreeMap<DriverName, PathBuf>, connect: Connect) -> Self {
        let changes = watch::Sender::new(0);
        let driver =
            |(name, socket)| Arc::new(Driver::new(name, socket, changes.clone(), connect.clone()));
        Self { all: sockets.into_iter().map(driver).collect(), changes }
    }

    /// Keeps the connections of all drivers, in `tasks`.
    pub fn keep(&self, tasks: &Tasks) {
        for driver in &self.all {
            tasks.spawn_until_stop("driver", driver.clone().keep(tasks.clone()));
        }
    }

    /// Each of them.
    pub fn all(&self) -> &[Arc<Driver>] {
        &self.all
    }

    /// What the drivers say of themselves; a driver that is away has its name alone.
    pub fn hello(&self) -> Vec<hello::Driver> {
        self.all.iter().map(|driver| driver.hello()).collect()
    }

    /// Changes whenever the result of [`Drivers::hello`] does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// Connects to a driver by the path of its unix socket.
pub fn unix() -> Connect {
    Arc::new(|path| Box::pin(async { Ok(Box::new(UnixStream::connect(path).await?) as Io) }))
}

/// The driver may be just starting. The cloud keeps answers for good, so an error is not taken for
/// one.
fn unanswered(method: &str, status: &Status) -> BoxError {
    let code = status.code();
    let message = status.message();
    format!("it answers {method} with {code:?} ({message:?}), so what it can do is not known")
        .into()
}

fn authority() -> Authority {
    Authority::from_static(LOCALHOST)
}

/// The headers of a call that csi-edge makes by itself.
pub(crate) fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
    headers.insert(http::header::TE, http::HeaderValue::from_static("trailers"));
    headers
}

fn backoff() -> backon::ExponentialBackoff {
    let first = Duration::from_millis(50);
    let last = Duration::from_secs(2);
    backon::ExponentialBuilder::new()
        .with_min_delay(first)
        .with_max_delay(last)
        .without_max_times()
        .build()
}
