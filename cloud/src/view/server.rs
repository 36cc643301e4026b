//! Serves the socket `view`: HTTP/1 with JSON, for csi-page.
//!
//! A request is a POST of its parameters to its path. The list of paths is closed: `answer` has
//! read commands only, and none of their answers has a token, a key or the secret of a class.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use proto::admin::client::ErrorBody;
use proto::admin::http1::Listener;
use proto::admin::view;
use proto::admin::view::{GroupsOf, NodeOf, TextOf};
use proto::host::socket::Socket;
use proto::host::tasks::{TaskKind, Tasks};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::answers;
use super::find::find;
use super::hub::{FleetWatcher, ViewHub};
use crate::admin::admin_state::AdminState;

/// Connections at a time.
const CONNECTIONS: usize = 64;
/// Streams at a time.
const STREAMS: usize = 8;
/// The largest request, in bytes: an id of 4,096 bytes fits.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// The time limit for a request to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);
/// The time within which a watcher must take a line.
const READING: Duration = Duration::from_secs(30);
/// Lines that wait for a watcher.
const QUEUE: usize = 2;

/// The answers of the socket.
pub(super) struct ViewServer {
    hub: Arc<ViewHub>,
    streams: Arc<Semaphore>,
    tasks: Tasks,
}

/// The reason for no answer: NOT_FOUND if the path is not in the list or the thing is not known,
/// BAD_REQUEST if the parameters cannot be read.
pub(super) type ViewRefusal = (StatusCode, String);

/// The body of an answer: all of it at once, or lines as they come.
type ViewBody = UnsyncBoxBody<Bytes, Infallible>;

/// Serves the socket until the tasks are stopped.
pub async fn serve(state: Arc<AdminState>, socket: Socket, tasks: Tasks) {
    let server = Arc::new(ViewServer::new(state, tasks.clone()));
    tasks.spawn_until_stop(TaskKind::All("view"), server.hub.clone().keep_looking());
    let service = move |request| handle(server.clone(), request);
    Listener::Unix(socket).serve(CONNECTIONS, service, tasks).await;
}

async fn handle(server: Arc<ViewServer>, request: Request<Incoming>) -> Response<ViewBody> {
    if request.method() != Method::POST {
        return refusal(StatusCode::BAD_REQUEST, "a request is a POST of its parameters, as JSON");
    }
    let path = request.uri().path().to_owned();
    let arriving = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
    let Ok(Ok(body)) = timeout(ARRIVAL, arriving).await else {
        return refusal(StatusCode::BAD_REQUEST, "the request broke off or is too large");
    };
    if path == view::WATCH {
        return server.watch();
    }
    match server.answer(&path, &body.to_bytes()).await {
        Ok(json) => Response::new(Full::from(json).boxed_unsync()),
        Err((status, text)) => refusal(status, &text),
    }
}

impl ViewServer {
    pub(super) fn new(state: Arc<AdminState>, tasks: Tasks) -> Self {
        let hub = Arc::new(ViewHub::new(state));
        Self { hub, streams: Arc::new(Semaphore::new(STREAMS)), tasks }
    }

    /// The commands by path. The list is closed: each of them only reads.
    ///
    /// # Errors
    /// The path is not in the list, the thing is not known, or the parameters cannot be read.
    pub(super) async fn answer(&self, path: &str, body: &[u8]) -> Result<Bytes, ViewRefusal> {
        let state = self.hub.state();
        match path {
            view::EXPLAIN => json(known(answers::explain(state, read(body)?).await)?),
            view::NODE => {
                let NodeOf { node } = read(body)?;
                json(known(answers::node(state, &node).await)?)
            }
            view::VOLUME => json(answers::volume(state, &read(body)?).await),
            view::CLAIM => {
                let TextOf { text } = read(body)?;
                json(answers::claim(state, known(text.parse().ok())?).await)
            }
            view::CALLS => json(answers::calls(state)),
            view::FIND => {
                let TextOf { text } = read(body)?;
                let fleet = self.hub.current().await;
                json(find(state, &fleet, &text).await)
            }
            view::GROUPS => {
                let GroupsOf { key } = read(body)?;
                json(answers::groups(state, key.as_deref()))
            }
            _ => {
                let why = "is not served at the socket view; are csi-cloud and csi-page of one \
                           version?";
                Err((StatusCode::NOT_FOUND, format!("{path} {why}")))
            }
        }
    }

    /// Begins a stream.
    fn watch(&self) -> Response<ViewBody> {
        let Ok(place) = self.streams.clone().try_acquire_owned() else {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "too many watch");
        };
        let (send, mut receive) = mpsc::channel(QUEUE);
        let watching = self.hub.watch();
        self.tasks.spawn_until_stop("view stream", async move {
            send_lines(watching, &send).await;
            drop(place);
        });
        let lines = poll_fn(move |context| {
            receive.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }
}

async fn send_lines(mut watching: FleetWatcher, send: &mpsc::Sender<Bytes>) {
    loop {
        let line = tokio::select! {
            biased;
            () = send.closed() => return,
            line = watching.next() => line,
        };
        let Some(line) = line else { return };
        if !matches!(timeout(READING, send.send(line)).await, Ok(Ok(()))) {
            return;
        }
    }
}

fn known<T>(found: Option<T>) -> Result<T, ViewRefusal> {
    found.ok_or_else(|| (StatusCode::NOT_FOUND, "csi-cloud does not know it".into()))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ViewRefusal> {
    serde_json::from_slice(body).map_err(|error| {
        (StatusCode::BAD_REQUEST, format!("the parameters cannot be read: {error}"))
    })
}

fn json(value: impl Serialize) -> Result<Bytes, ViewRefusal> {
    let written = serde_json::to_vec(&value);
    written.map(Into::into).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn refusal(status: StatusCode, text: &str) -> Response<ViewBody> {
    let body = serde_json::to_vec(&ErrorBody { error: text.to_owned() }).unwrap_or_default();
    let mut response = Response::new(Full::from(body).boxed_unsync());
    *response.status_mut() = status;
    response
}
