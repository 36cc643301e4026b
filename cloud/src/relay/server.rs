//! The connection to the csi-cloud that serves, whichever that is now: made again as soon as it is lost, or as that
//! csi-cloud says that it takes no more calls.

use std::sync::Arc;
use std::time::Duration;

use backon::BackoffBuilder;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, header};
use proto::csi::Method;
use proto::csi::frame;
use proto::holder;
use proto::holder::{AGAIN, Place};
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::http2::forward;
use proto::http2::forward::{Answer, Call};
use proto::http2::upstream;
use proto::http2::upstream::Upstream;
use proto::link::LinkError;
use proto::link::tls::Credentials;
use proto::names::DriverName;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use crate::relay::known;
use crate::relay::known::Known;

/// The first and the longest time between two attempts to reach csi-cloud.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// How long csi-cloud may be away before the log says so as of something that is not right.
const NORMAL: Duration = Duration::from_secs(5);
/// How long csi-cloud may take to say what a driver can do.
const ASK: Duration = Duration::from_secs(5);
/// How long a connection whose first call failed may take to say why.
const CLOSING: Duration = Duration::from_millis(100);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Where calls are carried out.
pub(super) struct Server {
    places: Vec<Place>,
    credentials: Option<Credentials>,
    now: watch::Sender<Option<Arc<Connected>>>,
}

/// A connection to a csi-cloud.
pub(super) struct Connected {
    upstream: Upstream,
    place: String,
    /// Stopped when no more calls can be begun on it; those in flight may go on.
    over: Tasks,
}

impl Server {
    /// One that is at the first of these places at which it is found.
    pub(super) fn new(places: Vec<Place>, credentials: Option<Credentials>) -> Self {
        Self { places, credentials, now: watch::Sender::new(None) }
    }

    /// Keeps a connection until dropped, and learns what csi-cloud says of the drivers whenever there is a new one.
    pub(super) async fn keep(self: Arc<Self>, known: Arc<Known>, drivers: Vec<DriverName>, tasks: Tasks) {
        let mut waited = Instant::now();
        let mut delays = backoff();
        loop {
            let connected = Arc::new(self.connect(&drivers, &tasks).await);
            let begun = Instant::now();
            info!(server = connected.place, away = ?waited.elapsed(), "csi-cloud carries the calls out");
            self.now.send_replace(Some(connected.clone()));
            let (asked, known, drivers) = (connected.clone(), known.clone(), drivers.clone());
            let asking = async move { asked.ask(&known, &drivers).await };
            connected.over.spawn_until_stop("questions", asking);
            connected.over.stopped().await;
            waited = Instant::now();
            self.now.send_if_modified(|now| now.take().is_some());
            info!(server = connected.place, "csi-cloud takes no more calls; they are held until it is back");
            if begun.elapsed() > NORMAL {
                delays = backoff();
            }
            // So that one that ends each connection soon is not asked without a pause.
            tokio::time::sleep(delays.next().unwrap_or(BACKOFF.1)).await;
        }
    }

    /// The connection, if there is one.
    pub(super) fn now(&self) -> Option<Arc<Connected>> {
        self.now.borrow().clone().filter(|connected| !connected.over.is_stopped())
    }

    /// Waits for a connection.
    pub(super) async fn next(&self) -> Arc<Connected> {
        let mut now = self.now.subscribe();
        loop {
            if let Some(connected) = self.now() {
                return connected;
            }
            if now.changed().await.is_err() {
                // The sender is ours, so this cannot be.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Tries all places in turn until one answers.
    async fn connect(&self, drivers: &[DriverName], tasks: &Tasks) -> Connected {
        let (begun, mut told) = (Instant::now(), false);
        let mut delays = backoff();
        loop {
            // A csi-cloud that is started again is not there for a while, as it should be.
            let tell = !told && begun.elapsed() > NORMAL;
            for place in &self.places {
                match self.dial(place, drivers, tasks).await {
                    Ok(connected) => return connected,
                    Err(error) if tell => {
                        warn!(%place, reason = %chain(&error), "cannot reach csi-cloud; calls are held")
                    }
                    Err(error) => debug!(%place, reason = %chain(&error), "csi-cloud is not there yet"),
                }
            }
            told |= tell;
            tokio::time::sleep(delays.next().unwrap_or(BACKOFF.1)).await;
        }
    }

    /// Connects, and has a first answer: by TLS 1.3 a client is done before its certificate was looked at, so one that
    /// is refused learns it only then.
    async fn dial(
        &self,
        place: &Place,
        drivers: &[DriverName],
        tasks: &Tasks,
    ) -> Result<Connected, LinkError> {
        let io = holder::dial(place, self.credentials.as_ref()).await?;
        let connecting = timeout(ASK, upstream::connect(io)).await.map_err(|_| LinkError::TimedOut)?;
        let closed = |error: h2::Error| LinkError::Closed(chain(&error));
        let (upstream, connection) = connecting.map_err(closed)?;
        // Not told to stop by the others' end: calls in flight go on when no new ones are begun.
        let over = tasks.child();
        let ended = over.clone();
        let (tell, told) = oneshot::channel();
        tasks.spawn_until_stop("connection", async move {
            let reason = connection.await.err().map(|error| chain(&error));
            // Who asked may know enough already.
            let _ = tell.send(reason.unwrap_or_else(|| "it closed the connection".into()));
            ended.stop();
        });
        let connected = Connected { upstream, place: place.to_string(), over };
        let answered = timeout(ASK, connected.answers(drivers)).await.map_err(|_| LinkError::TimedOut);
        match answered.and_then(|answered| answered.map_err(|error| LinkError::Closed(error.to_string()))) {
            Ok(()) => Ok(connected),
            Err(error) => {
                // What the connection ended with says more than what became of a call on it.
                let closed = timeout(CLOSING, told).await;
                connected.over.stop();
                Err(closed.ok().and_then(Result::ok).map_or(error, LinkError::Closed))
            }
        }
    }
}

/// Why a call that was sent has no answer.
pub(super) enum Failed {
    /// This csi-cloud went or goes away; the next one is to get the call.
    Away(BoxError),
    /// It broke off this call alone.
    Broke(BoxError),
}

impl Connected {
    /// Sends a call that has one answer.
    pub(super) async fn send(
        &self,
        call: Call,
        driver: &Authority,
        deadline: Option<Instant>,
    ) -> Result<Answer, Failed> {
        let answered = async {
            let response = self.begin(call, driver, deadline).await?;
            let again = self.is_again(&response);
            Ok((Answer::collect(response).await?, again))
        };
        match answered.await {
            Ok((answer, false)) => Ok(answer),
            Ok((_, true)) => Err(Failed::Away("it is stopping".into())),
            Err(error) if self.is_lost(&error) => Err(Failed::Away(error)),
            Err(error) => Err(Failed::Broke(error)),
        }
    }

    /// Sends a call and gives back the head of its answer.
    pub(super) async fn begin(
        &self,
        call: Call,
        driver: &Authority,
        deadline: Option<Instant>,
    ) -> Result<http::Response<upstream::Received>, BoxError> {
        forward::forward(&self.upstream, &call, driver, deadline).await
    }

    /// Whether csi-cloud says with this answer that it is stopping, and that the next one is to get the call.
    pub(super) fn is_again<B>(&self, response: &http::Response<B>) -> bool {
        let again = response.headers().contains_key(AGAIN);
        if again {
            self.over.stop();
        }
        again
    }

    /// Whether the error is the connection's and not that of one call; then no more calls are begun on it.
    pub(super) fn is_lost(&self, error: &BoxError) -> bool {
        // A call that HTTP/2 itself cannot take is at fault alone, and would be so at the next csi-cloud.
        let ended = |h2: &h2::Error| h2.is_io() || h2.is_go_away() || self.upstream.is_closed();
        let lost = error.downcast_ref::<h2::Error>().is_some_and(|h2| !h2.is_reset() && ended(h2));
        if lost {
            self.over.stop();
        }
        lost
    }

    /// Has an answer, whatever it is, that only a csi-cloud which takes our calls gives.
    async fn answers(&self, drivers: &[DriverName]) -> Result<(), BoxError> {
        let (Some(driver), Some(method)) = (drivers.first(), known::methods().next()) else { return Ok(()) };
        match self.send(question(method), &Authority::try_from(driver.as_str())?, None).await {
            Ok(_) => Ok(()),
            Err(Failed::Away(error) | Failed::Broke(error)) => Err(error),
        }
    }

    /// Learns what csi-cloud says of the drivers.
    async fn ask(&self, known: &Known, drivers: &[DriverName]) {
        for driver in drivers {
            let Ok(authority) = Authority::try_from(driver.as_str()) else { continue };
            for method in known::methods() {
                let deadline = Instant::now() + ASK;
                let asking = self.send(question(method), &authority, Some(deadline));
                match tokio::time::timeout_at(deadline, asking).await {
                    Ok(Ok(answer)) => known.keep(driver, method, &answer),
                    Ok(Err(Failed::Broke(_))) | Err(_) => {}
                    Ok(Err(Failed::Away(_))) => return,
                }
            }
        }
    }
}

fn question(method: Method) -> Call {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    Call { headers, path: PathAndQuery::from_static(method.path()), body: frame::frame(&[]) }
}

fn backoff() -> backon::ExponentialBackoff {
    let (first, last) = BACKOFF;
    backon::ExponentialBuilder::new().with_min_delay(first).with_max_delay(last).without_max_times().build()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::error::Error;
    use proto::host::socket::Socket;
    use proto::http2::serve;
    use tokio::net::UnixListener;

    use proto::http2::forward::failure;

    use super::*;

    /// Takes each connection and drops it, as one does that refuses the certificate after the client's handshake.
    fn refuse(path: &Path, tasks: &Tasks) -> Arc<AtomicUsize> {
        let (listener, times) = (UnixListener::bind(path).unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = times.clone();
        tasks.spawn_until_stop("refusing", async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                // What was sent is read first: the client saw no failure.
                let _ = stream.readable().await;
            }
        });
        times
    }

    #[tokio::test]
    async fn who_refuses_us_is_passed_over_and_not_asked_without_a_pause() {
        let (dir, tasks) = (tempfile::tempdir().unwrap(), Tasks::default());
        let [bad, good] = ["bad", "good"].map(|name| dir.path().join(name));
        let times = refuse(&bad, &tasks);
        let places = [bad, good.clone()].map(Place::Unix).to_vec();
        let server = Arc::new(Server::new(places, None));
        let drivers = vec!["d.example".parse().unwrap()];
        tasks.spawn_until_stop("server", server.clone().keep(Arc::default(), drivers, tasks.clone()));
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
        assert!(connected.place.ends_with("good"), "{}", connected.place);
        // Five at once would have been at 10 ms each; by the time of a second there are a handful.
        assert!(times.load(Ordering::Relaxed) < 50, "{times:?}");
        tasks.finish(Duration::from_secs(5)).await;
    }
}
