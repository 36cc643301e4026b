//! The connection to the csi-cloud that serves, whichever that is now.
//!
//! A new one is made as soon as it is lost, or as csi-cloud says that it takes no more calls. Of
//! several csi-clouds those that follow say so to each call, until the leader is found.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Response, header};
use proto::csi::Method;
use proto::csi::frame;
use proto::host::backoff::Backoff;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::host::tasks::Tasks;
use proto::http2::body::Received;
use proto::http2::forward;
use proto::http2::forward::Upstream;
use proto::http2::forward::{Answer, Call};
use proto::link::LinkError;
use proto::link::tls::Credentials;
use proto::names::DriverName;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::debug;

use crate::relay::address::Address;
use crate::relay::connection;
use crate::relay::connection::AGAIN;
use crate::relay::last_answers::{LastAnswers, local_methods};

/// The first wait between two attempts to reach csi-cloud.
const SHORTEST: Duration = Duration::from_millis(10);
/// The longest wait between two attempts.
const LONGEST: Duration = Duration::from_millis(500);
/// The time without csi-cloud after which the log warns; a restart takes less.
const NORMAL: Duration = Duration::from_secs(5);
/// The time limit of a local call.
const ASK: Duration = Duration::from_secs(5);
/// The pause between two questions on a connection in use. A program that is paused keeps its
/// connections, and nothing else tells.
const LISTEN: Duration = Duration::from_secs(2);
/// The time in which a connection may report why its first call failed.
const CLOSING: Duration = Duration::from_millis(100);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The csi-cloud that serves.
pub(super) struct Server {
    addresses: Vec<Address>,
    credentials: Option<Credentials>,
    now: watch::Sender<Option<Arc<Connection>>>,
}

/// A connection to a csi-cloud.
pub(super) struct Connection {
    upstream: Upstream,
    address: String,
    /// The place of its address.
    place: usize,
    /// Stopped when no more calls can begin on the connection; those in flight may go on.
    over: Tasks,
    /// csi-cloud said that the next one is to get a call.
    said_again: AtomicBool,
}

impl Server {
    /// The csi-cloud at the first of these addresses that answers.
    pub(super) fn new(addresses: Vec<Address>, credentials: Option<Credentials>) -> Self {
        Self { addresses, credentials, now: watch::Sender::new(None) }
    }

    /// Keeps a connection until dropped. Each new one fetches the answers to local calls.
    pub(super) async fn keep(
        self: Arc<Self>,
        last_answers: Arc<LastAnswers>,
        drivers: Vec<DriverName>,
        tasks: Tasks,
    ) {
        let mut lost = Instant::now();
        let mut delays = Backoff::new(SHORTEST, LONGEST);
        // The place that is tried first, and how many in a row have sent calls to the next one.
        let mut first = 0;
        let mut sent_on = 0;
        loop {
            let connection = Arc::new(self.connect(first, &drivers, &tasks).await);
            let begun = Instant::now();
            let server = &connection.address;
            peer_info!(
                LogPeer::Cloud, server, away = ?lost.elapsed(), "csi-cloud carries the calls out"
            );
            self.now.send_replace(Some(connection.clone()));
            let fetching = fetch(connection.clone(), last_answers.clone(), drivers.clone());
            connection.over.spawn_until_stop("questions", fetching);
            let is_silent = tokio::select! {
                biased;
                () = connection.over.stopped() => false,
                () = connection.silence(&drivers) => true,
            };
            if is_silent {
                peer_warn!(
                    LogPeer::Cloud,
                    server,
                    "csi-cloud says nothing; its calls are sent to the next one"
                );
                connection.over.give_up();
            }
            lost = Instant::now();
            self.now.send_if_modified(|now| now.take().is_some());
            peer_info!(
                LogPeer::Cloud,
                server,
                "csi-cloud takes no more calls; they are held until it is back"
            );
            if begun.elapsed() > NORMAL {
                delays.reset();
                sent_on = 0;
            }
            if is_silent || connection.said_again.load(Ordering::Relaxed) {
                first = connection.place + 1;
                sent_on += 1;
                if sent_on < self.addresses.len() {
                    continue;
                }
                sent_on = 0;
            }
            // A csi-cloud that ends each connection soon is not asked without a pause.
            sleep(delays.delay()).await;
        }
    }

    /// The connection, if there is one.
    pub(super) fn now(&self) -> Option<Arc<Connection>> {
        self.now.borrow().clone().filter(|connection| !connection.over.is_stopped())
    }

    /// Waits for a connection.
    pub(super) async fn next(&self) -> Arc<Connection> {
        let mut now = self.now.subscribe();
        loop {
            if let Some(connection) = self.now() {
                return connection;
            }
            if now.changed().await.is_err() {
                // `self` has the sender, so this cannot be.
                pending::<()>().await;
            }
        }
    }

    /// Tries all addresses in turn, beginning with this place, until one answers.
    async fn connect(&self, first: usize, drivers: &[DriverName], tasks: &Tasks) -> Connection {
        let begun = Instant::now();
        let mut warned = false;
        let mut delays = Backoff::new(SHORTEST, LONGEST);
        loop {
            let warn_now = !warned && begun.elapsed() > NORMAL;
            let places = self.addresses.iter().enumerate().cycle();
            for (place, address) in places.skip(first).take(self.addresses.len()) {
                match self.dial(place, address, drivers, tasks).await {
                    Ok(connection) => return connection,
                    Err(error) if warn_now => {
                        let reason = chain(&error);
                        peer_warn!(
                            LogPeer::Cloud, %address, reason,
                            "cannot reach csi-cloud; calls are held"
                        );
                    }
                    Err(error) => {
                        debug!(%address, reason = chain(&error), "csi-cloud is not there yet");
                    }
                }
            }
            warned |= warn_now;
            sleep(delays.delay()).await;
        }
    }

    /// Connects, and waits for a first answer.
    ///
    /// With TLS 1.3 a client is done before the server has checked its certificate: a relay that is
    /// refused learns it only then.
    async fn dial(
        &self,
        place: usize,
        address: &Address,
        drivers: &[DriverName],
        tasks: &Tasks,
    ) -> Result<Connection, LinkError> {
        let io = connection::dial(address, self.credentials.as_ref()).await?;
        let connecting = timeout(ASK, forward::connect(io)).await;
        let connecting = connecting.map_err(|_| LinkError::TimedOut)?;
        let (upstream, driving) = connecting.map_err(|error| LinkError::Closed(chain(&error)))?;
        // Stopped by nothing but the peer: calls in flight go on when no new ones begin.
        let over = tasks.child();
        let ended = over.clone();
        let (report, reported) = oneshot::channel();
        tasks.spawn_until_stop("connection", async move {
            let reason = tokio::select! {
                biased;
                ended = driving => ended.err().map(|error| chain(&error)),
                () = ended.given_up() => Some("it says nothing".into()),
            };
            // Nobody receives it after the first answer.
            let _ = report.send(reason.unwrap_or_else(|| "it closed the connection".into()));
            ended.stop();
        });
        let said_again = AtomicBool::default();
        let address = address.to_string();
        let connection = Connection { upstream, address, place, over, said_again };
        let failed = match timeout(ASK, connection.check(drivers)).await {
            Ok(Ok(())) => return Ok(connection),
            Ok(Err(error)) => LinkError::Closed(error.to_string()),
            Err(_) => LinkError::TimedOut,
        };
        // The connection's end says more than the failure of a call on it.
        let reason = timeout(CLOSING, reported).await;
        connection.over.stop();
        Err(reason.ok().and_then(Result::ok).map_or(failed, LinkError::Closed))
    }
}

/// The reason why a call that was sent has no answer.
pub(super) enum SendError {
    /// This csi-cloud is gone; the next one is to get the call.
    Gone(BoxError),
    /// It stops or does not lead, for this reason, and says that the next one is to get the call.
    Again(BoxError),
    /// This call alone failed.
    Broken(BoxError),
}

impl Connection {
    /// Sends a unary call.
    ///
    /// # Errors
    /// See [`SendError`].
    pub(super) async fn send(
        &self,
        call: Call,
        driver: &Authority,
        deadline: Option<Instant>,
    ) -> Result<Answer, SendError> {
        let answered = async {
            let response = self.begin(call, driver, deadline).await?;
            let again = self.is_again(&response);
            Ok((Answer::collect(response).await?, again))
        };
        match answered.await {
            Ok((answer, false)) => Ok(answer),
            Ok((answer, true)) => Err(SendError::Again(reason(&answer))),
            Err(error) if self.is_lost(&error) => Err(SendError::Gone(error)),
            Err(error) => Err(SendError::Broken(error)),
        }
    }

    /// Sends a call and returns the head of its answer.
    ///
    /// # Errors
    /// As for [`forward::forward`].
    pub(super) async fn begin(
        &self,
        call: Call,
        driver: &Authority,
        deadline: Option<Instant>,
    ) -> Result<Response<Received>, BoxError> {
        forward::forward(&self.upstream, &call, driver, deadline).await
    }

    /// True if csi-cloud answers that it is stopping or does not lead, and that the next one is to
    /// get the call.
    pub(super) fn is_again<B>(&self, response: &Response<B>) -> bool {
        let again = response.headers().contains_key(AGAIN);
        if again {
            self.said_again.store(true, Ordering::Relaxed);
            self.over.stop();
        }
        again
    }

    /// True if the error is the connection's, not one call's; then no more calls begin on it.
    pub(super) fn is_lost(&self, error: &BoxError) -> bool {
        // A call that HTTP/2 itself refuses would be refused by the next csi-cloud too.
        let ended = |h2: &h2::Error| h2.is_io() || h2.is_go_away() || self.upstream.is_closed();
        let lost = error.downcast_ref::<h2::Error>().is_some_and(|h2| !h2.is_reset() && ended(h2));
        if lost {
            self.over.stop();
        }
        lost
    }

    /// Ends when a question has no answer for a while.
    async fn silence(&self, drivers: &[DriverName]) {
        loop {
            sleep(LISTEN).await;
            if timeout(ASK, self.check(drivers)).await.is_err() {
                return;
            }
        }
    }

    /// Asks one question. Any answer shows that csi-cloud takes our calls.
    async fn check(&self, drivers: &[DriverName]) -> Result<(), BoxError> {
        let Some(driver) = drivers.first() else { return Ok(()) };
        let Some(method) = local_methods().next() else { return Ok(()) };
        match self.send(question(method), &Authority::try_from(driver.as_str())?, None).await {
            Ok(_) => Ok(()),
            Err(SendError::Gone(error) | SendError::Broken(error)) => Err(error),
            Err(SendError::Again(_)) => Err("it gave the question back".into()),
        }
    }
}

/// Fetches csi-cloud's answers to the local calls of all drivers.
async fn fetch(
    connection: Arc<Connection>,
    last_answers: Arc<LastAnswers>,
    drivers: Vec<DriverName>,
) {
    for driver in &drivers {
        let Ok(authority) = Authority::try_from(driver.as_str()) else { continue };
        for method in local_methods() {
            let deadline = Instant::now() + ASK;
            let asking = connection.send(question(method), &authority, Some(deadline));
            match timeout_at(deadline, asking).await {
                Ok(Ok(answer)) => last_answers.keep(driver, method, &answer),
                Ok(Err(SendError::Broken(_))) | Err(_) => {}
                Ok(Err(SendError::Gone(_) | SendError::Again(_))) => return,
            }
        }
    }
}

/// What csi-cloud says as it gives a call back.
fn reason(answer: &Answer) -> BoxError {
    match answer.failure() {
        Some(status) => status.message().into(),
        None => "it is stopping".into(),
    }
}

fn question(method: Method) -> Call {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    Call { headers, path: PathAndQuery::from_static(method.path()), body: frame::frame(&[]) }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;

    use proto::host::socket::Socket;
    use proto::http2::forward::failure;
    use proto::http2::serve;
    use tokio::net::UnixListener;

    use super::*;
    use crate::error::Error;

    /// Accepts and drops each connection, like a server that refuses the client's certificate.
    fn refuse(path: &Path, tasks: &Tasks) -> Arc<AtomicUsize> {
        let listener = UnixListener::bind(path).unwrap();
        let times = Arc::new(AtomicUsize::new(0));
        let counted = times.clone();
        tasks.spawn_until_stop("refusing", async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                // The client's bytes are read first, so its handshake succeeds.
                let _ = stream.readable().await;
            }
        });
        times
    }

    #[tokio::test]
    async fn who_refuses_us_is_passed_over_and_not_asked_without_a_pause() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::default();
        let [bad, good] = ["bad", "good"].map(|name| dir.path().join(name));
        let times = refuse(&bad, &tasks);
        let addresses = [bad, good.clone()].map(Address::Unix).to_vec();
        let server = Arc::new(Server::new(addresses, None));
        let drivers = vec!["d.example".parse().unwrap()];
        let keeping = server.clone().keep(Arc::default(), drivers, tasks.clone());
        tasks.spawn_until_stop("server", keeping);
        let refused = async {
            while times.load(Ordering::Relaxed) < 5 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), refused).await.unwrap();
        assert!(server.now().is_none(), "who refuses us counts as csi-cloud");
        let socket = Socket::bind(&good).unwrap();
        let answer = |_: http::Request<hyper::body::Incoming>| async {
            Ok::<_, Infallible>(failure(&Error::NoFront("d.example".into())))
        };
        tasks.spawn("serving", serve::serve_socket(socket, answer, tasks.clone()));
        let connected = timeout(Duration::from_secs(20), server.next()).await.unwrap();
        assert!(connected.address.ends_with("good"), "{}", connected.address);
        // The waits grow from 10 ms to 500 ms, so a second has a handful of attempts.
        assert!(times.load(Ordering::Relaxed) < 50, "{times:?}");
        tasks.finish(Duration::from_secs(5)).await;
    }

    /// A csi-cloud that answers local calls, and counts and gives back all others if it follows.
    fn serve_at(path: &Path, leads: bool, tasks: &Tasks) -> Arc<AtomicUsize> {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let answer = move |request: http::Request<hyper::body::Incoming>| {
            let is_local = local_methods().any(|method| method.path() == request.uri().path());
            counted.fetch_add(usize::from(!is_local), Ordering::Relaxed);
            let mut response = failure(&Error::NoFront("d.example".into()));
            if !leads && !is_local {
                response.headers_mut().insert(AGAIN, HeaderValue::from_static("1"));
            }
            async { Ok::<_, Infallible>(response) }
        };
        let socket = Socket::bind(path).unwrap();
        tasks.spawn("serving", serve::serve_socket(socket, answer, tasks.clone()));
        calls
    }

    /// The answer of the first csi-cloud that does not give the call back.
    async fn answered(server: &Server, call: &Call, driver: &Authority) -> Answer {
        loop {
            match server.next().await.send(call.clone(), driver, None).await {
                Err(SendError::Again(_)) => {}
                Ok(answer) => return answer,
                Err(SendError::Gone(error) | SendError::Broken(error)) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn a_call_that_is_given_back_goes_to_the_next_place_and_not_to_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::default();
        let places = ["a", "b", "c"].map(|name| dir.path().join(name));
        let [a, b, c] = &places;
        let followers = [serve_at(a, false, &tasks), serve_at(b, false, &tasks)];
        let leader = serve_at(c, true, &tasks);
        let server = Arc::new(Server::new(places.clone().map(Address::Unix).to_vec(), None));
        let keeping = server.clone().keep(Arc::default(), vec![], tasks.clone());
        tasks.spawn_until_stop("server", keeping);
        let call = question(Method::CreateVolume);
        let authority = Authority::from_static("d.example");
        for _ in 0..3 {
            let answered = answered(&server, &call, &authority);
            let answer = timeout(Duration::from_secs(20), answered).await.unwrap();
            assert!(answer.failure().is_some());
        }
        assert_eq!(followers.map(|calls| calls.load(Ordering::Relaxed)), [1, 1]);
        assert_eq!(leader.load(Ordering::Relaxed), 3, "it stays with the leader");
        tasks.finish(Duration::from_secs(5)).await;
    }
}
