//! Serves the socket `view`: HTTP/1 with JSON, for csi-page.
//!
//! A request is a POST of its parameters to its path. The list of paths is closed: `answer` has
//! read commands only, and none of their answers has a token, a key or the secret of a class.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming};
use proto::admin::client::ErrorBody;
use proto::admin::http1::Listener;
use proto::admin::view;
use proto::admin::view::{GroupsOf, NodeOf, TextOf, VolumeOf};
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::find::find;
use super::groups::groups;
use super::hub::Hub;
use super::{answers, hub};
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
    hub: Arc<Hub>,
    streams: Arc<Semaphore>,
    tasks: Tasks,
}

/// The reason for no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The path is not in the list, or the thing is not known.
    Unknown(String),
    /// The parameters cannot be read.
    Bad(String),
}

/// The body of an answer.
pub(super) enum ViewBody {
    /// All of it at once.
    Whole(Option<Bytes>),
    /// Lines as they come.
    Lines(mpsc::Receiver<Bytes>),
}

impl Body for ViewBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.get_mut() {
            Self::Whole(whole) => Poll::Ready(whole.take()),
            Self::Lines(lines) => lines.poll_recv(context),
        };
        data.map(|data| data.map(|data| Ok(Frame::data(data))))
    }
}

/// Serves the socket until the tasks are stopped.
pub async fn serve(state: Arc<AdminState>, socket: Socket, tasks: Tasks) {
    let server = Arc::new(ViewServer::new(state, tasks.clone()));
    tasks.spawn("view", server.hub.clone().keep_looking(tasks.clone()));
    let service = move |request| handle(server.clone(), request);
    Listener::Unix(socket).serve(CONNECTIONS, service, tasks).await;
}

async fn handle(server: Arc<ViewServer>, request: Request<Incoming>) -> Response<ViewBody> {
    if request.method() != Method::POST {
        return refusal(&NoAnswer::Bad("a request is a POST of its parameters, as JSON".into()));
    }
    let path = request.uri().path().to_owned();
    let arriving = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
    let Ok(Ok(body)) = timeout(ARRIVAL, arriving).await else {
        return refusal(&NoAnswer::Bad("the request broke off or is too large".into()));
    };
    if path == view::WATCH {
        return server.watch();
    }
    match server.answer(&path, &body.to_bytes()).await {
        Ok(json) => Response::new(ViewBody::Whole(Some(json))),
        Err(refused) => refusal(&refused),
    }
}

impl ViewServer {
    pub(super) fn new(state: Arc<AdminState>, tasks: Tasks) -> Self {
        let hub = Arc::new(Hub::new(state));
        Self { hub, streams: Arc::new(Semaphore::new(STREAMS)), tasks }
    }

    /// The commands by path. The list is closed: each of them only reads.
    ///
    /// # Errors
    /// The path is not in the list, the thing is not known, or the parameters cannot be read.
    pub(super) async fn answer(&self, path: &str, body: &[u8]) -> Result<Bytes, NoAnswer> {
        let state = self.hub.state();
        match path {
            view::EXPLAIN => json(known(answers::explain(state, read(body)?).await)?),
            view::NODE => {
                let asked: NodeOf = read(body)?;
                json(known(answers::node(state, &asked.node).await)?)
            }
            view::VOLUME => {
                let asked: VolumeOf = read(body)?;
                json(answers::volume(state, &asked).await)
            }
            view::CLAIM => {
                let asked: TextOf = read(body)?;
                let claim = known(asked.text.parse().ok())?;
                json(answers::claim(state, claim).await)
            }
            view::CALLS => json(answers::calls(state)),
            view::FIND => {
                let asked: TextOf = read(body)?;
                let fleet = self.hub.current().await;
                json(find(state, &fleet, &asked.text).await)
            }
            view::GROUPS => {
                let asked: GroupsOf = read(body)?;
                json(groups(state, asked.key.as_deref()))
            }
            _ => Err(NoAnswer::Unknown(format!(
                "{path} is not served at the socket view; are csi-cloud and csi-page of one \
                 version?"
            ))),
        }
    }

    /// Begins a stream.
    fn watch(&self) -> Response<ViewBody> {
        let Ok(place) = self.streams.clone().try_acquire_owned() else {
            let mut refused = refusal(&NoAnswer::Bad("too many watch".into()));
            *refused.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return refused;
        };
        let (send, receive) = mpsc::channel(QUEUE);
        let watching = self.hub.watch();
        self.tasks.spawn_until_stop("view stream", send_lines(watching, send, place));
        Response::new(ViewBody::Lines(receive))
    }
}

async fn send_lines(
    mut watching: hub::Watching,
    send: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
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

fn known<T>(found: Option<T>) -> Result<T, NoAnswer> {
    found.ok_or_else(|| NoAnswer::Unknown("csi-cloud does not know it".into()))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, NoAnswer> {
    serde_json::from_slice(body)
        .map_err(|error| NoAnswer::Bad(format!("the parameters cannot be read: {error}")))
}

fn json(value: impl Serialize) -> Result<Bytes, NoAnswer> {
    let written = serde_json::to_vec(&value);
    written.map(Into::into).map_err(|error| NoAnswer::Bad(error.to_string()))
}

fn refusal(refused: &NoAnswer) -> Response<ViewBody> {
    let (status, text) = match refused {
        NoAnswer::Unknown(text) => (StatusCode::NOT_FOUND, text),
        NoAnswer::Bad(text) => (StatusCode::BAD_REQUEST, text),
    };
    let body = serde_json::to_vec(&ErrorBody { error: text.clone() }).unwrap_or_default();
    let mut response = Response::new(ViewBody::Whole(Some(body.into())));
    *response.status_mut() = status;
    response
}
