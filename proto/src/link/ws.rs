//! Links over WebSocket: TLS over TCP, then `GET /link`.
//!
//! Binary messages are the calls stream, text messages are control messages. An empty binary
//! message ends the calls stream, and another one can follow on the same socket. The bulk stream is
//! a second connection, which the edge dials when the cloud asks for it. An edge that joins is told
//! apart by its ALPN.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, TlsStream};
use tokio_tungstenite::accept_hdr_async_with_config;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use uuid::Uuid;

use self::calls_stream::Lending;
use self::dialer::BULK_PATH;
pub use self::dialer::Dialer;
use self::join::Asker;
use self::metered::Metered;
use self::socket::{Control, Outgoing, Socket};
use self::stream::{Ws, config, failed, tls_failed};
use self::stream_end::StreamEnd;
use self::unfragmented::Unfragmented;
use crate::control::hello::Message;
use crate::host::chain::chain;
use crate::host::peer_log::{LogPeer, peer_warn};
use crate::link::addresses::Addresses;
use crate::link::end::{End, Event, Io, Opening, StreamKind};
use crate::link::endpoint::Transport;
use crate::link::error::{ASKING, GREETING, LinkError, within_handshake};
use crate::link::keep_alive::KeepAlive;
use crate::link::network::NodeNetwork;
use crate::names::NodeName;
use crate::names::certificate::{Identity, Validity};

mod calls_stream;
mod check;
mod dialer;
pub mod join;
mod metered;
mod socket;
mod stream;
mod stream_end;
pub mod unfragmented;

/// The application protocol in the TLS handshake.
pub const ALPN: &[u8] = b"http/1.1";
/// The time in which the peer may still send after it is told the end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The time for the other side to take the end of the link.
const GOODBYE: Duration = Duration::from_secs(3);
const LINK_PATH: &str = "/link";

/// One end of a link over WebSocket.
pub struct WsLink {
    /// The socket while no calls stream is open.
    calls: Lending,
    control: Control,
    keep_alive: KeepAlive,
    side: Side,
    /// The time at which the other side's certificate ends.
    expires: Option<SystemTime>,
}

enum Side {
    Cloud { waiting: Waiting, node: NodeName },
    Edge { dialer: Arc<Dialer>, bulk: Option<Opening> },
}

type Waiting = Arc<Mutex<HashMap<Uuid, (NodeName, oneshot::Sender<Io>)>>>;

/// Reaches the cloud directly, by names as the system resolves them.
pub fn tcp() -> NodeNetwork {
    NodeNetwork::direct(Addresses::system())
}

/// A connection whose TLS ClientHello has been read.
pub struct Greeted(StartHandshake<Metered>);

/// The purpose of an authenticated connection.
pub enum Accepted {
    /// A link, and its node's identity. A node whose certificate has ended may only renew it.
    Link(Identity<NodeName>, Box<WsLink>),
    /// A bulk stream, which its link has now.
    Bulk,
    /// An edge that asks to join. Nothing of it is authenticated.
    Asker(Box<Asker>),
}

impl Accepted {
    /// The link, and its node's identity; none for any other connection.
    pub fn link(self) -> Option<(Identity<NodeName>, WsLink)> {
        match self {
            Self::Link(peer, link) => Some((peer, *link)),
            Self::Bulk | Self::Asker(_) => None,
        }
    }
}

/// Accepts connections at the cloud and makes links of them.
#[derive(Clone)]
pub struct Acceptor {
    tls: Arc<rustls::ServerConfig>,
    join: Option<Arc<rustls::ServerConfig>>,
    keep_alive: KeepAlive,
    waiting: Waiting,
}

impl Acceptor {
    /// An acceptor with this TLS configuration (ALPN `http/1.1`).
    pub fn new(tls: Arc<rustls::ServerConfig>, keep_alive: KeepAlive) -> Self {
        Self { tls, join: None, keep_alive, waiting: Waiting::default() }
    }

    /// The same acceptor, which also takes edges that join, by this TLS configuration (ALPN
    /// [`join::ALPN`]).
    #[must_use]
    pub fn with_join(self, tls: Arc<rustls::ServerConfig>) -> Self {
        Self { join: Some(tls), ..self }
    }

    /// The same acceptor, for a link with these signs of life.
    #[must_use]
    pub fn with_keep_alive(self, keep_alive: KeepAlive) -> Self {
        Self { keep_alive, ..self }
    }

    /// Reads the ClientHello of a connection. It takes little memory and no cryptography, so it
    /// needs no place among the handshakes.
    ///
    /// # Errors
    /// It is not there within [`GREETING`], or is none.
    pub async fn greet(&self, io: Io) -> Result<Greeted, LinkError> {
        let hello = rustls::server::Acceptor::default();
        let greeting = LazyConfigAcceptor::new(hello, Metered::new(io));
        let greeted = timeout(GREETING, greeting).await.map_err(|_| LinkError::Silent)?;
        greeted.map(Greeted).map_err(|error| tls_failed(&error))
    }

    /// Authenticates a connection.
    ///
    /// # Errors
    /// The peer has no certificate of a node, is too slow, or does not speak our transport.
    pub async fn accept(&self, greeted: Greeted) -> Result<Accepted, LinkError> {
        within_handshake(self.authenticate(greeted)).await
    }

    async fn authenticate(&self, Greeted(start): Greeted) -> Result<Accepted, LinkError> {
        let joins = start.client_hello().alpn().is_some_and(|mut all| all.any(|p| p == join::ALPN));
        match self.join.clone().filter(|_| joins) {
            Some(tls) => {
                let stream = encrypted(start, tls).await?;
                let known = |asked: &str| asked == join::PATH;
                let (ws, _) = upgrade(stream, join::limits(), known, None).await?;
                Ok(Accepted::Asker(Box::new(Asker::read(ws).await?)))
            }
            None => self.linked(encrypted(start, self.tls.clone()).await?).await,
        }
    }

    async fn linked(&self, stream: Box<TlsStream<Metered>>) -> Result<Accepted, LinkError> {
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let identity = Identity::of_node(certificates.first().ok_or(LinkError::TimedOut)?)?;
        let known = |asked: &str| asked == LINK_PATH || asked.starts_with(BULK_PATH);
        let node = &identity.name;
        let (ws, path) = upgrade(stream, config(), known, Some(node)).await?;
        if path == LINK_PATH {
            let side = Side::Cloud { waiting: self.waiting.clone(), node: node.clone() };
            let link = WsLink::new(ws, self.keep_alive, side);
            return Ok(Accepted::Link(identity, Box::new(link)));
        }
        self.hand_over(&path, node, ws)?;
        Ok(Accepted::Bulk)
    }

    /// Passes a bulk connection to the link that asked for it.
    fn hand_over(&self, path: &str, node: &NodeName, ws: Ws) -> Result<(), LinkError> {
        let nobody = || LinkError::Transport(format!("nobody asked for {path}"));
        let ticket = path.strip_prefix(BULK_PATH).and_then(|ticket| ticket.parse::<Uuid>().ok());
        let mut waiting = self.waiting.lock();
        let (owner, sender) =
            ticket.and_then(|ticket| waiting.remove(&ticket)).ok_or_else(nobody)?;
        if owner != *node {
            return Err(nobody());
        }
        let (socket, _) = Socket::new(ws, self.keep_alive);
        sender.send(Box::new(socket)).map_err(|_| nobody())
    }
}

/// The other side's certificate.
fn certificate(ws: &Ws) -> Option<&CertificateDer<'static>> {
    ws.get_ref().tls().get_ref().1.peer_certificates()?.first()
}

async fn encrypted(
    start: StartHandshake<Metered>,
    tls: Arc<rustls::ServerConfig>,
) -> Result<Box<TlsStream<Metered>>, LinkError> {
    let stream = start.into_stream(tls).await.map_err(|error| tls_failed(&error))?;
    Ok(Box::new(TlsStream::from(stream)))
}

/// Answers the upgrade of a path that is known, and returns the path. The peer is this node, unless
/// it joins.
async fn upgrade(
    stream: Box<TlsStream<Metered>>,
    limits: WebSocketConfig,
    known: impl Fn(&str) -> bool + Unpin,
    node: Option<&NodeName>,
) -> Result<(Ws, String), LinkError> {
    let mut path = String::new();
    #[expect(clippy::result_large_err, reason = "the library's signature")]
    let answer = |request: &Request, response: Response| {
        request.uri().path().clone_into(&mut path);
        if known(&path) { Ok(response) } else { Err(no_path(&path, request.headers())) }
    };
    let accepting = accept_hdr_async_with_config(Unfragmented::new(stream), answer, Some(limits));
    let accepted = timeout(ASKING, accepting).await.map_err(|_| LinkError::NotAsked)?;
    let ws = accepted.map_err(|e| match node.filter(|_| path == check::PATH) {
        Some(node) => LinkError::Checked(node.clone()),
        None => failed(&e),
    })?;
    Ok((ws, path))
}

fn no_path(asked: &str, question: &http::HeaderMap) -> ErrorResponse {
    let text = format!("no link at {asked}; csi-edge asks for {LINK_PATH}\n");
    let mut refusal = ErrorResponse::new(Some(text));
    *refusal.status_mut() = http::StatusCode::NOT_FOUND;
    check::date(&mut refusal);
    check::pad(question, &mut refusal);
    refusal
}

/// Makes a link to the cloud.
///
/// # Errors
/// It cannot be reached, has a wrong certificate, or refuses ours.
pub async fn dial(dialer: Arc<Dialer>) -> Result<WsLink, LinkError> {
    let dialed = within_handshake(dialer.connect(LINK_PATH)).await;
    if let Err(LinkError::TimedOut) = dialed {
        // Connecting has a shorter limit: the silence came after it.
        dialer.network.addresses.suspect(Transport::Ws, &dialer.endpoint.address());
        dialer.network.addresses.narrow(&dialer.endpoint.address());
    }
    let ws = dialed?;
    let keep_alive = dialer.keep_alive;
    Ok(WsLink::new(ws, keep_alive, Side::Edge { dialer, bulk: None }))
}

impl WsLink {
    fn new(ws: Ws, keep_alive: KeepAlive, side: Side) -> Self {
        let expires = certificate(&ws).and_then(|peer| Validity::of(peer).ok());
        let expires = expires.map(|validity| validity.not_after);
        let (socket, control) = Socket::new(ws, keep_alive);
        let mut calls = Lending::new(socket);
        if matches!(side, Side::Edge { .. }) {
            // Only a cloud that knows of it does it.
            calls.set_end(StreamEnd::Theirs);
        }
        Self { calls, control, keep_alive, side, expires }
    }

    async fn next_event(&mut self) -> Event {
        loop {
            let text = match self.step().await {
                Step::Text(text) => text,
                Step::Readable => return self.readable(),
                Step::Bulk(Ok(io)) => return Event::Opened(StreamKind::Bulk, io),
                Step::Bulk(Err(error)) => {
                    let error = chain(&error);
                    peer_warn!(
                        LogPeer::Cloud, %error,
                        "cannot open the bulk stream that the cloud asked for"
                    );
                    continue;
                }
                Step::Closed => return self.closed(),
            };
            match (Message::decode(text.as_bytes()), &mut self.side) {
                (Ok(Message::Bulk(ticket)), Side::Edge { dialer, bulk }) => {
                    *bulk = Some(Box::pin(dialer.clone().bulk(ticket)));
                }
                (Ok(Message::Hello(hello)), Side::Cloud { .. }) => {
                    if hello.reopens_calls {
                        self.calls.set_end(StreamEnd::Ours);
                    }
                    return Event::Message(Message::Hello(hello));
                }
                (Ok(message), _) => return Event::Message(message),
                (Err(error), _) => return Event::Closed(error.into()),
            }
        }
    }

    /// Waits for one step, and drives the socket while it is idle.
    async fn step(&mut self) -> Step {
        let Self { calls, control, side, .. } = self;
        let readable = std::future::poll_fn(|cx| calls.poll(cx));
        let bulk = async {
            match side {
                Side::Edge { bulk: Some(dialing), .. } => dialing.await,
                _ => std::future::pending().await,
            }
        };
        let step = tokio::select! {
            biased;
            text = control.received.next() => text.map_or(Step::Closed, Step::Text),
            opened = bulk => Step::Bulk(opened),
            // Messages before the end come first.
            result = readable => match (result, control.received.try_recv()) {
                (_, Ok(text)) => Step::Text(text),
                (Ok(()), _) => Step::Readable,
                (Err(_), _) => Step::Closed,
            },
        };
        if let (Step::Bulk(_), Side::Edge { bulk, .. }) = (&step, side) {
            *bulk = None;
        }
        step
    }

    /// The idle socket has bytes of the calls stream, or is closed.
    fn readable(&mut self) -> Event {
        let has_bytes = self.calls.socket().is_some_and(|socket| socket.has_bytes());
        match (self.calls.idle_stream().filter(|_| has_bytes), &self.side) {
            (Some(io), Side::Edge { .. }) => Event::Opened(StreamKind::Calls, io),
            (Some(_), Side::Cloud { .. }) => {
                Event::Closed(LinkError::Transport("it sent bytes before any call".into()))
            }
            (None, _) => self.closed(),
        }
    }

    /// The end of the link.
    fn closed(&self) -> Event {
        if let Side::Edge { dialer, .. } = &self.side
            && self.control.reason.is_silence()
        {
            dialer.network.addresses.narrow(&dialer.endpoint.address());
        }
        Event::Closed(self.control.reason.error())
    }

    fn open_bulk(&mut self, waiting: Waiting, node: NodeName) -> Opening {
        let ticket = Uuid::new_v4();
        let (sender, receiver) = oneshot::channel();
        waiting.lock().insert(ticket, (node, sender));
        let asked = Message::Bulk(ticket).encode().map_err(LinkError::from);
        let asked = asked.and_then(|text| self.send_outgoing(text));
        Box::pin(async move {
            let arrived = async { receiver.await.map_err(|_| LinkError::TimedOut) };
            let io = match asked {
                Ok(()) => within_handshake(arrived).await,
                Err(error) => Err(error),
            };
            waiting.lock().remove(&ticket);
            io
        })
    }

    /// Queues a control message as soon as there is room, and sends earlier ones meanwhile.
    async fn send_text(&mut self, text: String) -> Result<(), LinkError> {
        let Self { calls, control, .. } = self;
        let room = std::future::poll_fn(|cx| match calls.drain(cx) {
            Err(_) => Poll::Ready(false),
            Ok(()) => control.send.poll_ready(cx).map(|ready| ready.is_ok()),
        });
        let sent = room.await && control.send.start_send(Outgoing::Text(text)).is_ok();
        if sent { Ok(()) } else { Err(control.reason.error()) }
    }

    fn send_outgoing(&mut self, text: String) -> Result<(), LinkError> {
        let sent = self.control.send.try_send(Outgoing::Text(text));
        sent.map_err(|_| self.control.reason.error())
    }

    async fn close_gracefully(mut self: Box<Self>, reason: &str) {
        let _ = self.control.send.try_send(Outgoing::Close(reason.to_owned()));
        // An idle socket is driven here until it has closed; HTTP/2 drives a socket with calls.
        let closed = async { while let Step::Text(_) | Step::Bulk(_) = self.step().await {} };
        let _ = timeout(GOODBYE, closed).await;
        // What the other side has sent meanwhile is read. Otherwise the system resets the
        // connection, and the reason is lost.
        if let Some(socket) = self.calls.socket() {
            let _ = timeout(LAST_WORDS, socket.drained()).await;
        }
    }
}

impl End for WsLink {
    fn transport(&self) -> Transport {
        Transport::Ws
    }

    fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    fn reopens_calls(&self) -> bool {
        self.calls.reopens()
    }

    fn keep_alive(&self) -> KeepAlive {
        self.keep_alive
    }

    fn set_keep_alive(&mut self, keep_alive: KeepAlive) {
        self.keep_alive = keep_alive;
        // It is here until the first call, and the cloud says its interval before that.
        if let Some(socket) = self.calls.socket() {
            socket.set_keep_alive(keep_alive);
        }
    }

    fn is_silent(&mut self) -> bool {
        false
    }

    fn next(&mut self) -> BoxFuture<'_, Event> {
        Box::pin(self.next_event())
    }

    fn send(&mut self, text: String) -> BoxFuture<'_, Result<(), LinkError>> {
        Box::pin(self.send_text(text))
    }

    fn open(&mut self, kind: StreamKind) -> Opening {
        let Side::Cloud { waiting, node } = &self.side else {
            let refused = LinkError::Transport("only the cloud opens streams".into());
            return Box::pin(std::future::ready(Err(refused)));
        };
        match kind {
            StreamKind::Calls => self.calls.lend(),
            StreamKind::Bulk => {
                let waiting = waiting.clone();
                let node = node.clone();
                self.open_bulk(waiting, node)
            }
        }
    }

    fn close<'a>(self: Box<Self>, reason: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(self.close_gracefully(reason))
    }
}

/// The outcome of one [`WsLink::step`].
enum Step {
    Text(String),
    Readable,
    Bulk(Result<Io, LinkError>),
    Closed,
}
