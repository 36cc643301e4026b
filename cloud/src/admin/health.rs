//! `/livez`, `/readyz` and `/metrics`, and HTTP/1 as the admin socket has it.
//!
//! Nothing here waits for an edge or for the disk, so that who watches csi-cloud learns in time how it is.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::host::chain;
use proto::host::tasks::Tasks;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use crate::admin::Insight;

/// Connections at a time; more wait in the listener's queue.
const CONNECTIONS: usize = 64;
/// How long a request's headers may take.
const HEADERS: Duration = Duration::from_secs(10);
/// OpenMetrics, as Prometheus asks for it.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How csi-cloud is.
#[derive(Default)]
pub struct Health {
    begun: OnceLock<Arc<Insight>>,
    stopping: AtomicBool,
}

impl Health {
    /// The store is open and the fronts listen.
    pub fn ready(&self, insight: Arc<Insight>) {
        // It becomes ready once.
        let _ = self.begun.set(insight);
    }

    /// It was told to stop.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Why it is not ready, if it is not.
    fn not_ready(&self) -> Option<&'static str> {
        match self.begun.get() {
            _ if self.stopping.load(Ordering::Relaxed) => Some("csi-cloud is stopping"),
            None => Some("the store is being opened"),
            Some(insight) if !insight.store.is_open() => Some("the store takes no more changes"),
            Some(_) => None,
        }
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if method != Method::GET && method != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        }
        match (path, self.not_ready(), self.begun.get()) {
            ("/livez", ..) => text(StatusCode::OK, "ok"),
            ("/readyz", None, _) => text(StatusCode::OK, "ready"),
            ("/readyz", Some(why), _) => text(StatusCode::SERVICE_UNAVAILABLE, why),
            ("/metrics", _, Some(insight)) => {
                let mut response = Response::new(Full::from(insight.metrics()));
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(METRICS));
                response
            }
            ("/metrics", ..) => text(StatusCode::SERVICE_UNAVAILABLE, "the store is being opened"),
            _ => text(StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics"),
        }
    }
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{text}\n")));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Serves how csi-cloud is, until told to stop.
pub async fn serve(listener: TcpListener, health: Arc<Health>, tasks: Tasks) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let place = tokio::select! {
            biased;
            () = tasks.stopped() => return,
            place = room.clone().acquire_owned() => place.ok(),
        };
        let accepted = tokio::select! {
            biased;
            () = tasks.stopped() => return,
            accepted = listener.accept() => accepted,
        };
        let Some(stream) = taken(accepted.map(|(stream, _)| stream)).await else { continue };
        let health = health.clone();
        let service = move |request: Request<Incoming>| {
            let response = health.answer(request.method(), request.uri().path());
            async move { response }
        };
        let ended = tasks.clone();
        tasks.spawn("http connection", async move {
            connection(stream, service, ended.stopped()).await;
            drop(place);
        });
    }
}

/// What was accepted; waits a little if nothing could be.
pub(crate) async fn taken<S>(accepted: std::io::Result<S>) -> Option<S> {
    match accepted {
        Ok(stream) => Some(stream),
        Err(error) => {
            // Out of file descriptors, say: what is connected goes on.
            warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

/// Answers requests that come in over `io` until it closes, or, told to stop, until the one in hand is answered.
pub(crate) async fn connection<I, F, R>(io: I, service: F, stop: impl Future<Output = ()>)
where
    I: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> R,
    R: Future<Output = Response<Full<Bytes>>>,
{
    let service = hyper::service::service_fn(move |request| {
        let response = service(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stop => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(error = %chain(&error), "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::{insight, insight_into};
    use crate::state::record::{Change, Node};
    use crate::state::store::backend::{Backend, StoreError};

    /// A disk that is full.
    struct Full;

    impl Backend for Full {
        fn load(&mut self, _: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
            Ok(())
        }

        fn commit(&mut self, _: &[Change]) -> Result<(), StoreError> {
            Err(StoreError::Commit(Arc::new(std::io::Error::other("full"))))
        }
    }

    fn status(health: &Health, path: &str) -> StatusCode {
        health.answer(&Method::GET, path).status()
    }

    #[tokio::test]
    async fn it_is_ready_when_the_store_is_open_and_until_it_stops() {
        let health = Health::default();
        assert_eq!(status(&health, "/livez"), StatusCode::OK);
        assert_eq!(status(&health, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(&health, "/metrics"), StatusCode::SERVICE_UNAVAILABLE);
        let tasks = Tasks::default();
        health.ready(Arc::new(insight(&tasks)));
        assert_eq!(status(&health, "/readyz"), StatusCode::OK);
        assert_eq!(status(&health, "/metrics"), StatusCode::OK);
        health.stopping();
        assert_eq!(status(&health, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(&health, "/livez"), StatusCode::OK, "it still answers");
    }

    #[tokio::test]
    async fn it_is_not_ready_once_nothing_can_be_made_durable() {
        let (health, tasks) = (Health::default(), Tasks::default());
        let insight = Arc::new(insight_into(Box::new(Full), &tasks));
        health.ready(insight.clone());
        assert_eq!(status(&health, "/readyz"), StatusCode::OK);
        let node = "n1".parse().unwrap();
        let written = insight.store.write(move |txn| txn.set_node(&node, Some(Node::default())));
        assert!(written.await.is_err());
        // The store says so before its task has ended.
        tasks.ended().await;
        assert_eq!(status(&health, "/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(&health, "/livez"), StatusCode::OK, "starting it again does not help a full disk");
    }

    #[tokio::test]
    async fn only_what_is_there_is_answered() {
        let health = Health::default();
        assert_eq!(status(&health, "/"), StatusCode::NOT_FOUND);
        assert_eq!(health.answer(&Method::POST, "/livez").status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
