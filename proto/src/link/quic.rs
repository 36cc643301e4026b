//! Links over QUIC: one connection, and a stream each for control messages, calls and bulk.
//!
//! The edge opens the first stream, for control messages. The cloud opens the other two when it has
//! a first call for them; their first byte tells which they are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
pub use quinn::Incoming;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    AckFrequencyConfig, Connection, ConnectionError, Endpoint as Quinn, TransportConfig, VarInt,
};
use ring::hkdf;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

use crate::control::hello::{MAX_BYTES, Message, MessageError};
use crate::host::plain;
use crate::link::addresses::NotReached;
use crate::link::end::{End, Event, Io, Opening, StreamKind};
use crate::link::endpoint::{Endpoint, Transport};
use crate::link::error::{ASKING, HANDSHAKE, LinkError, within_handshake};
use crate::link::keep_alive::{KeepAlive, LONGEST};
use crate::link::network::NodeNetwork;
use crate::link::tls;
use crate::names::NodeName;
use crate::names::certificate::{Identity, Validity};

pub(in crate::link) mod check;
mod restart;
mod sweep;

use self::restart::after_restart;
pub use self::sweep::untrusted_looks;
use self::sweep::{SilenceSweep, WatchedLink};

/// The application protocol in the TLS handshake.
pub const ALPN: &[u8] = b"edge-csi";
/// The listener's receive buffer, in bytes. With the kernel's default, a storm of dials loses
/// packets.
pub const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// The most unacknowledged bytes of a link. It is more than those of one stream (1.25 MB), so calls
/// do not wait for bulk.
const SEND_WINDOW: u64 = 4 * 1024 * 1024;
/// The longest delay of a peer's acknowledgement. The default of 25 ms would delay each
/// retransmission by as much.
const ACK_DELAY: Duration = Duration::from_millis(5);
/// A peer acknowledges at once after more packets than this.
const ACK_ABOVE: u32 = 1;
/// Without any packet for this long, quinn itself ends a connection. [`sweep`] and the edge's looks
/// do so sooner.
const CEILING: Duration = Duration::from_secs(180);
/// The time for the last control message to arrive before a link is closed.
const GOODBYE: Duration = Duration::from_secs(1);
const CALLS: u8 = b'C';
const BULK: u8 = b'B';

/// One end of a link over QUIC.
pub struct QuicLink {
    connection: Connection,
    control: Control,
    /// At the edge: the next stream that the cloud opens.
    opened: Option<BoxFuture<'static, Result<(StreamKind, Io), LinkError>>>,
    /// True once a message has come. The cloud's first one comes before any stream that it opens,
    /// also if the network brings them in another order.
    has_heard: bool,
    /// The edge's socket, if the link has its own.
    socket: Option<Quinn>,
    keep_alive: KeepAlive,
    /// At the cloud: what is known of the edge's signs of life.
    watched: Option<Arc<WatchedLink>>,
    /// At the edge: what had come at the last look.
    received: u64,
    /// The time at which the other side's certificate ends.
    expires: Option<SystemTime>,
}

fn transport(keep_alive: KeepAlive, streams_from_peer: u32) -> TransportConfig {
    let mut config = TransportConfig::default();
    // Each stream that the peer may open takes memory at once.
    config
        .max_concurrent_bidi_streams(streams_from_peer.into())
        .max_concurrent_uni_streams(0_u8.into());
    config.datagram_receive_buffer_size(None).send_window(SEND_WINDOW);
    config.keep_alive_interval(Some(keep_alive.every));
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(ACK_ABOVE.into()).max_ack_delay(Some(ACK_DELAY));
    config.ack_frequency_config(Some(acks));
    // The conversion fails only beyond VarInt's range, which our times are far from.
    config.max_idle_timeout(CEILING.max(keep_alive.every * 4).try_into().ok());
    config
}

/// Messages to edges are small, so larger packets gain nothing, and MTU discovery takes 1.2 KiB for
/// each link. Edges, whose answers may be large, do discover it.
fn cloud_transport(keep_alive: KeepAlive) -> TransportConfig {
    let mut transport = transport(keep_alive, 1);
    transport.mtu_discovery_config(None);
    transport
}

/// Accepts links at the cloud.
pub struct Acceptor {
    quinn: Quinn,
    config: Arc<quinn::ServerConfig>,
    keep_alive: KeepAlive,
    /// The configurations of links with other signs of life.
    others: Mutex<Vec<(KeepAlive, Arc<quinn::ServerConfig>)>>,
    sweep: SilenceSweep,
    /// The socket's number.
    inode: Option<u64>,
}

impl Acceptor {
    /// Listens on a UDP address.
    ///
    /// # Errors
    /// The address is taken, or the credentials cannot be used for QUIC.
    pub fn bind(
        addr: SocketAddr,
        credentials: &tls::Credentials,
        keep_alive: KeepAlive,
    ) -> std::io::Result<Self> {
        let tls = tls::server_config(credentials, ALPN).map_err(std::io::Error::other)?;
        let crypto = QuicServerConfig::try_from(tls).map_err(std::io::Error::other)?;
        let tokens = credentials.derived(b"edge-csi quic token");
        let tokens = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, tokens.as_ref());
        let mut config = quinn::ServerConfig::new(Arc::new(crypto), Arc::new(tokens));
        config.transport_config(Arc::new(cloud_transport(keep_alive)));
        let socket = udp(addr)?;
        let inode = sweep::inode(&socket);
        let runtime = Arc::new(quinn::TokioRuntime);
        let quinn = Quinn::new(after_restart(credentials), Some(config.clone()), socket, runtime)?;
        let config = Arc::new(config);
        let (others, sweep) = (Mutex::default(), SilenceSweep::default());
        Ok(Self { quinn, config, keep_alive, others, sweep, inode })
    }

    /// Authenticates an attempt to link, of which the link gets these signs of life.
    ///
    /// # Errors
    /// As for [`authenticate`].
    pub async fn link(
        &self,
        incoming: Incoming,
        keep_alive: KeepAlive,
    ) -> Result<(Identity<NodeName>, QuicLink), LinkError> {
        let accepted = incoming.accept_with(self.config(keep_alive)).map_err(|e| failed(&e))?;
        let (identity, mut link) = within_handshake(linked(accepted, keep_alive)).await?;
        link.watched = Some(self.sweep.watch(&link.connection, keep_alive));
        Ok((identity, link))
    }

    fn config(&self, keep_alive: KeepAlive) -> Arc<quinn::ServerConfig> {
        let mut all = self.others.lock();
        if let Some((_, config)) = all.iter().find(|(known, _)| *known == keep_alive) {
            return config.clone();
        }
        let mut config = quinn::ServerConfig::clone(&self.config);
        config.transport_config(Arc::new(cloud_transport(keep_alive)));
        let config = Arc::new(config);
        all.push((keep_alive, config.clone()));
        config
    }

    /// Ends the links whose edges are dead, until it is dropped.
    pub async fn end_dead(&self) {
        let lost = || self.inode.and_then(sweep::lost_by);
        self.sweep.run(self.keep_alive.every, lost).await;
    }

    /// The address of the listener.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.quinn.local_addr()
    }

    /// The next attempt to link; none when closed. Authenticate it in a task of its own.
    pub async fn accept(&self) -> Option<Incoming> {
        self.quinn.accept().await
    }

    /// Closes all remaining links, and tells their edges.
    pub async fn close(&self) {
        self.quinn.close(VarInt::from_u32(0), b"csi-cloud is stopping");
        self.quinn.wait_idle().await;
    }
}

/// Authenticates an attempt to link. A node whose certificate has ended may only renew it.
///
/// # Errors
/// The peer has no certificate of a node, is too slow, or does not speak our transport.
pub async fn authenticate(incoming: Incoming) -> Result<(Identity<NodeName>, QuicLink), LinkError> {
    within_handshake(linked(incoming, KeepAlive::default())).await
}

async fn linked(
    connecting: impl IntoFuture<Output = Result<Connection, ConnectionError>>,
    keep_alive: KeepAlive,
) -> Result<(Identity<NodeName>, QuicLink), LinkError> {
    let connection = connecting.await.map_err(|e| failed(&e))?;
    let missing = || LinkError::Tls("it showed no certificate".into());
    let identity = Identity::of_node(&certificate(&connection).ok_or_else(missing)?)?;
    // A stream is invisible until its opener writes, so this waits for the hello's first bytes.
    let asked = timeout(ASKING, connection.accept_bi()).await;
    let opened = asked.map_err(|_| LinkError::NotAsked)?;
    let (send, recv) = opened.map_err(|e| match is_check(&e) {
        true => LinkError::Checked(identity.name.clone()),
        false => failed(&e),
    })?;
    Ok((identity, QuicLink::new(connection, send, recv, keep_alive)))
}

/// The code with which `csi-edge doctor` closes a connection that it wanted no link of.
const CHECKED: VarInt = VarInt::from_u32(1);

fn is_check(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::ApplicationClosed(close) if close.error_code == CHECKED)
}

/// The other side's certificate.
fn certificate(connection: &Connection) -> Option<CertificateDer<'static>> {
    let identity = connection.peer_identity()?;
    identity.downcast::<Vec<CertificateDer<'static>>>().ok()?.into_iter().next()
}

/// An edge's UDP socket.
#[derive(Clone)]
pub struct Outgoing(Quinn);

impl Outgoing {
    /// A socket that can reach `to`.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(to: SocketAddr) -> std::io::Result<Self> {
        let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
        Self::bind_at(any)
    }

    /// A socket at this address of the node.
    ///
    /// # Errors
    /// The system's.
    pub fn bind_at(from: SocketAddr) -> std::io::Result<Self> {
        Quinn::client(from).map(Self)
    }
}

/// Dials the cloud from a new socket, so that a new dial can take another path.
///
/// # Errors
/// It cannot be reached, has a wrong certificate, or refuses ours.
pub async fn dial(
    endpoint: &Endpoint,
    tls: Arc<rustls::ClientConfig>,
    keep_alive: KeepAlive,
    network: &NodeNetwork,
) -> Result<QuicLink, LinkError> {
    let raced = race((endpoint, network), tls, keep_alive, HANDSHAKE).await;
    let (outgoing, connection) = raced?.ok_or(LinkError::TimedOut)?;
    let mut link = within_handshake(opened(connection, keep_alive)).await?;
    link.socket = Some(outgoing.0);
    Ok(link)
}

/// Shakes hands with the first address of an endpoint that does, from a new socket for each;
/// `None` if none answers within `limit`.
async fn race(
    (endpoint, network): (&Endpoint, &NodeNetwork),
    tls: Arc<rustls::ClientConfig>,
    keep_alive: KeepAlive,
    limit: Duration,
) -> Result<Option<(Outgoing, Connection)>, LinkError> {
    let at = endpoint.address();
    let unreachable = |error| LinkError::Unreachable(at.clone(), error);
    let key = (Transport::Quic, at.as_str());
    let raced = network.addresses.race(key, limit, async |addr| {
        let outgoing = Outgoing::bind(addr).map_err(unreachable)?;
        let connection = handshake(&outgoing, endpoint, addr, tls.clone(), keep_alive).await?;
        Ok((outgoing, connection))
    });
    match raced.await {
        Ok(reached) => Ok(Some(reached)),
        Err(NotReached::Unresolved(error)) => Err(unreachable(error)),
        Err(NotReached::Failed(error)) => Err(error),
        Err(NotReached::Silent) => Ok(None),
    }
}

/// Dials the endpoint at `addr` from a socket that other links share.
///
/// It is for one process that plays many edges. The socket has to outlive the link.
///
/// # Errors
/// As for [`dial`].
pub async fn dial_from(
    outgoing: &Outgoing,
    endpoint: &Endpoint,
    addr: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    keep_alive: KeepAlive,
) -> Result<QuicLink, LinkError> {
    within_handshake(connect(outgoing, endpoint, addr, tls, keep_alive)).await
}

async fn connect(
    outgoing: &Outgoing,
    endpoint: &Endpoint,
    addr: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    keep_alive: KeepAlive,
) -> Result<QuicLink, LinkError> {
    opened(handshake(outgoing, endpoint, addr, tls, keep_alive).await?, keep_alive).await
}

/// Opens the control stream of a new connection.
async fn opened(connection: Connection, keep_alive: KeepAlive) -> Result<QuicLink, LinkError> {
    let (send, recv) = connection.open_bi().await.map_err(|e| failed(&e))?;
    let mut link = QuicLink::new(connection, send, recv, keep_alive);
    link.opened = Some(accept_stream(link.connection.clone()).boxed());
    Ok(link)
}

async fn handshake(
    outgoing: &Outgoing,
    endpoint: &Endpoint,
    addr: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    keep_alive: KeepAlive,
) -> Result<Connection, LinkError> {
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| LinkError::Tls(e.to_string()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    // The cloud opens the calls and the bulk stream; while it replaces one, there may be a third.
    // quinn cannot change its interval later, and the cloud's own is shorter in a small fleet: then
    // these are sent only when nothing comes, and the edge asks by itself before.
    let rare = keep_alive.told(LONGEST);
    config.transport_config(Arc::new(transport(rare, 4)));
    let name = endpoint.host.trim_matches(['[', ']']);
    let connecting = outgoing
        .0
        .connect_with(config, addr, name)
        .map_err(|e| LinkError::Transport(e.to_string()))?;
    connecting.await.map_err(|e| failed(&e))
}

/// A UDP socket with a receive buffer as large as the system allows.
fn udp(addr: SocketAddr) -> std::io::Result<std::net::UdpSocket> {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::DGRAM, None)?;
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok(socket.into())
}

/// Waits for a stream that the cloud opens, and reads its kind.
async fn accept_stream(connection: Connection) -> Result<(StreamKind, Io), LinkError> {
    let (send, mut recv) = connection.accept_bi().await.map_err(|e| failed(&e))?;
    let kind = match recv.read_u8().await {
        Ok(CALLS) => StreamKind::Calls,
        Ok(BULK) => StreamKind::Bulk,
        other => {
            return Err(LinkError::Transport(format!(
                "it opened a stream that begins with {other:?}"
            )));
        }
    };
    prioritize(&send, Some(kind));
    Ok((kind, Box::new(tokio::io::join(recv, send))))
}

/// Control messages have priority over calls, and calls over bulk.
///
/// quinn's priorities are strict. That starves nothing, because the preferred streams carry little.
fn prioritize(send: &quinn::SendStream, kind: Option<StreamKind>) {
    let priority = match kind {
        None => 2,
        Some(StreamKind::Calls) => 1,
        Some(StreamKind::Bulk) => 0,
    };
    // It fails only if the stream is closed; then its first write fails too.
    let _ = send.set_priority(priority);
}

/// The control stream. Not a `Framed`, which keeps two buffers of 8 KiB on every idle link.
struct Control {
    send: quinn::SendStream,
    recv: quinn::RecvStream,
    codec: LengthDelimitedCodec,
    /// The received part of an incomplete message.
    unread: BytesMut,
}

impl Control {
    /// The next message. May be dropped and called again without loss.
    async fn next(&mut self) -> std::io::Result<BytesMut> {
        loop {
            if let Some(message) = self.codec.decode(&mut self.unread)? {
                if self.unread.is_empty() {
                    self.unread = BytesMut::new();
                }
                return Ok(message);
            }
            let chunk = self.recv.read_chunk(MAX_BYTES, true).await?;
            let chunk = chunk.ok_or_else(|| std::io::Error::other("it ended"))?;
            self.unread.extend_from_slice(&chunk.bytes);
        }
    }

    async fn send(&mut self, text: String) -> std::io::Result<()> {
        let mut framed = BytesMut::new();
        self.codec.encode(Bytes::from(text), &mut framed)?;
        Ok(self.send.write_all(&framed).await?)
    }
}

impl QuicLink {
    fn new(
        connection: Connection,
        send: quinn::SendStream,
        recv: quinn::RecvStream,
        keep_alive: KeepAlive,
    ) -> Self {
        prioritize(&send, None);
        let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_BYTES).new_codec();
        let control = Control { send, recv, codec, unread: BytesMut::new() };
        let expires = certificate(&connection).and_then(|peer| Validity::of(&peer).ok());
        let expires = expires.map(|validity| validity.not_after);
        Self {
            connection,
            control,
            opened: None,
            has_heard: false,
            socket: None,
            keep_alive,
            watched: None,
            received: 0,
            expires,
        }
    }

    async fn next_event(&mut self) -> Event {
        let opened = async {
            match &mut self.opened {
                Some(opened) => opened.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            frame = self.control.next() => match frame {
                Ok(bytes) => {
                    self.has_heard = true;
                    Message::decode(&bytes)
                        .map_or_else(|error| Event::Closed(error.into()), Event::Message)
                }
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    Event::Closed(MessageError::Larger.into())
                }
                // Boxed, so that an idle link, which waits here, takes no memory for its end.
                Err(broken) => Event::Closed(Box::pin(self.why_ended(broken)).await),
            },
            opened = opened, if self.has_heard => {
                self.opened = Some(accept_stream(self.connection.clone()).boxed());
                opened.map_or_else(Event::Closed, |(kind, io)| Event::Opened(kind, io))
            }
        }
    }

    async fn send_text(&mut self, text: String) -> Result<(), LinkError> {
        match self.control.send(text).await {
            Ok(()) => Ok(()),
            Err(broken) => Err(self.why_ended(broken).await),
        }
    }

    /// Finds the reason why there are no more control messages. A peer ends them before it sends
    /// the reason.
    async fn why_ended(&mut self, broken: std::io::Error) -> LinkError {
        let Ok(reason) = timeout(2 * GOODBYE, self.connection.closed()).await else {
            return LinkError::Transport(format!("its control stream: {broken}"));
        };
        match &self.watched {
            Some(watched) if watched.is_dead() => failed(&ConnectionError::TimedOut),
            _ => failed(&reason),
        }
    }

    async fn close_gracefully(self: Box<Self>, reason: &str) {
        // A close discards what was not sent yet, so the last control message goes first.
        let mut send = self.control.send;
        let _ = send.finish();
        let _ = timeout(GOODBYE, send.stopped()).await;
        self.connection.close(VarInt::from_u32(0), reason.as_bytes());
        if let Some(socket) = self.socket {
            // At most three round trips, and only at the edge, whose socket ends with the link.
            let _ = timeout(HANDSHAKE, socket.wait_idle()).await;
        }
    }
}

impl End for QuicLink {
    fn transport(&self) -> Transport {
        Transport::Quic
    }

    fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    fn reopens_calls(&self) -> bool {
        true
    }

    fn keep_alive(&self) -> KeepAlive {
        self.keep_alive
    }

    fn set_keep_alive(&mut self, keep_alive: KeepAlive) {
        self.keep_alive = keep_alive;
    }

    fn is_silent(&mut self) -> bool {
        let received = sweep::received(&self.connection);
        std::mem::replace(&mut self.received, received) == received
    }

    fn next(&mut self) -> BoxFuture<'_, Event> {
        Box::pin(self.next_event())
    }

    fn send(&mut self, text: String) -> BoxFuture<'_, Result<(), LinkError>> {
        Box::pin(self.send_text(text))
    }

    fn open(&mut self, kind: StreamKind) -> Opening {
        let connection = self.connection.clone();
        Box::pin(within_handshake(open_stream(connection, kind)))
    }

    fn close<'a>(self: Box<Self>, reason: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(self.close_gracefully(reason))
    }
}

/// Opens a stream and sends its kind.
async fn open_stream(connection: Connection, kind: StreamKind) -> Result<Io, LinkError> {
    let (mut send, recv) = connection.open_bi().await.map_err(|e| failed(&e))?;
    prioritize(&send, Some(kind));
    let tag = if kind == StreamKind::Calls { CALLS } else { BULK };
    send.write_u8(tag).await.map_err(|e| LinkError::Transport(e.to_string()))?;
    Ok(Box::new(tokio::io::join(recv, send)))
}

fn failed(error: &ConnectionError) -> LinkError {
    match error {
        ConnectionError::TimedOut => {
            LinkError::Closed("no sign of life from the other side".into())
        }
        ConnectionError::ApplicationClosed(close) => LinkError::Closed(format!(
            "the other side closed it: {}",
            plain(&String::from_utf8_lossy(&close.reason))
        )),
        ConnectionError::LocallyClosed => LinkError::Closed("closed here".into()),
        ConnectionError::Reset => LinkError::Closed("the other side has been restarted".into()),
        ConnectionError::TransportError(error) => {
            LinkError::Tls(tls::explain_quic(error.code, &error.reason))
        }
        ConnectionError::ConnectionClosed(close) => LinkError::Tls(tls::explain_close(close)),
        error => LinkError::Transport(plain(&error.to_string())),
    }
}
