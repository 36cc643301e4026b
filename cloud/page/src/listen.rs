//! Listens for browsers and proxies, and tells who they are.
//! The door of each address is the one of the main port.
//!
//! A connection is HTTP/2 if TLS agreed on it, else HTTP/1. Over HTTP/1 a browser has six
//! connections to a host, so its seventh page that watches would wait. Over HTTP/2 all pages of a
//! browser share one. A connection on which nobody was let in is closed after some time.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use axum::{Extension, Router};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use proto::host::accept::accept;
use proto::host::chain;
use proto::host::door::{Admission, Limits, Slot};
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::host::program;
use proto::host::socket::Socket;
use proto::host::tasks::{TaskKind, Tasks};
use proto::http2::paced::Paced;
use proto::link::{GREETING, HANDSHAKE, Io};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tracing::debug;

use crate::access::guard::Peer;
use crate::arguments::PageAddress;
use crate::state::PageState;
use crate::tls::{HTTP2, Tls, is_persons};
use crate::web;

/// Connections of all addresses.
const CONNECTIONS: usize = 1024;
/// The limits of one remote address. A proxy has one address for all.
const LIMITS: Limits = Limits { handshakes: 16, connections: 512 };
/// The word for a connection, for the log.
const CALLER: &str = "a connection to the page";
/// The mode of a unix socket: its owner, and its group for a proxy.
const MODE: u32 = 0o660;
/// The time limit for a request's headers.
const HEADERS: Duration = Duration::from_secs(10);
/// The largest headers, in bytes.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Requests at a time on one connection; pages that watch count.
const STREAMS: u32 = 256;
/// A connection over HTTP/2 may be silent for so long before it is asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(20);
/// A connection on which nobody was let in is closed after so long. A browser opens another one.
const STRANGER: Duration = Duration::from_secs(30);

/// Serves the page.
pub(crate) struct PageListener {
    page: Arc<PageState>,
    router: Router,
    room: Arc<Semaphore>,
    admission: Admission,
}

impl PageListener {
    /// Nothing is listened at yet. Its connections are tasks of the page.
    pub(crate) fn new(page: Arc<PageState>) -> Arc<Self> {
        let router = web::router(page.clone());
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        Arc::new(Self { page, router, room, admission: Admission::new(LIMITS) })
    }

    /// Listens at all addresses, and prints them.
    ///
    /// # Errors
    /// An address cannot be listened at.
    pub(crate) async fn listen(self: Arc<Self>, addresses: &[PageAddress]) -> anyhow::Result<()> {
        for address in addresses {
            let bound = self.bind(address).await;
            program::tell(format_args!(
                "page {}",
                bound.with_context(|| format!("cannot serve at {address}"))?
            ));
        }
        Ok(())
    }

    async fn bind(self: &Arc<Self>, address: &PageAddress) -> anyhow::Result<String> {
        let listener = self.clone();
        let tasks = &self.page.tasks;
        match address {
            PageAddress::Unix(path) => {
                let socket = Socket::bind_for(path, MODE)?;
                tasks.spawn_until_stop(TaskKind::All("page"), async move {
                    listener.accept_unix(socket).await
                });
                Ok(address.to_string())
            }
            PageAddress::Tcp(address) => {
                let tcp = TcpListener::bind(address).await?;
                let bound = tcp.local_addr()?;
                tasks.spawn_until_stop(TaskKind::All("page"), async move {
                    listener.accept_tcp(tcp).await
                });
                let scheme = if self.page.tls.is_some() { "https" } else { "http" };
                Ok(format!("{scheme}://{bound}"))
            }
        }
    }

    async fn accept_unix(self: Arc<Self>, socket: Socket) {
        loop {
            let (stream, _) = accept(CALLER, || socket.listener.accept()).await;
            self.serve(Box::new(stream), Peer::default(), None);
        }
    }

    async fn accept_tcp(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (tcp, from) = accept(CALLER, || listener.accept()).await;
            // It delays small answers, such as events, for the sake of large ones.
            let _ = tcp.set_nodelay(true);
            if self.page.tls.is_some() {
                self.page.tasks.spawn_until_stop("handshake", self.clone().admit(tcp, from.ip()));
            } else {
                let peer = Peer { address: Some(from.ip()), ..Peer::default() };
                self.serve(Box::new(tcp), peer, None);
            }
        }
    }

    /// Waits at the door for the ClientHello of a connection, then makes the handshake in its turn.
    async fn admit(self: Arc<Self>, tcp: TcpStream, from: IpAddr) {
        let Some(config) = self.page.tls.as_ref().map(Tls::config) else { return };
        let greeting = async {
            // TLS takes memory, and who sends nothing needs none.
            let _ = tcp.readable().await;
            LazyConfigAcceptor::new(rustls::server::Acceptor::default(), tcp).await
        };
        let at_door = self.admission.at_door(from);
        let Some(Ok(Ok(greeted))) = at_door.wait(timeout(GREETING, greeting)).await else {
            return debug!(%from, "gave up a connection at the door");
        };
        let pending = match self.admission.enter(from).await {
            Ok(pending) => pending,
            Err(full) => {
                return peer_warn!(LogPeer::Stranger, %from, error = %full, "refused {CALLER}");
            }
        };
        let handshake = timeout(HANDSHAKE, pending.pass(greeted.into_stream(config)));
        let Ok(Some((Ok(stream), slot))) = handshake.await else {
            return debug!(%from, "a handshake for the page did not succeed");
        };
        let session = stream.get_ref().1;
        let shown = session.peer_certificates().and_then(<[_]>::first);
        let peer = Peer {
            address: Some(from),
            has_certificate: shown.is_some_and(is_persons),
            is_http2: session.alpn_protocol() == Some(HTTP2),
            ..Peer::default()
        };
        self.serve(Box::new(stream), peer, slot);
    }

    /// Serves a connection in a task of its own, which keeps its places.
    fn serve(&self, io: Io, peer: Peer, slot: Option<Slot>) {
        // Only now: who is at the door takes nobody's place.
        let Ok(place) = self.room.clone().try_acquire_owned() else {
            return peer_warn!(
                LogPeer::Stranger, from = ?peer.address, "refused {CALLER}: there are too many"
            );
        };
        let router = self.router.clone();
        let tasks = self.page.tasks.clone();
        self.page.tasks.spawn("page connection", async move {
            let was_let_in = peer.was_let_in.clone();
            tokio::select! {
                biased;
                served = serve(io, peer, router, &tasks) => {
                    let error = served.err().map(|error| chain(&error)).unwrap_or_default();
                    debug!(error, "{CALLER} ended");
                }
                () = tasks.given_up() => {}
            }
            // Its address has a door of its own from now on.
            if let Some(slot) = slot.filter(|_| was_let_in.load(Ordering::Relaxed)) {
                slot.note_linked();
            }
            drop(place);
        });
    }
}

/// Starts hyper's tasks as ours.
#[derive(Clone)]
struct PageExecutor(Tasks);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for PageExecutor {
    fn execute(&self, task: F) {
        self.0.spawn("page request", task);
    }
}

/// Answers requests until the connection closes; after the tasks are told to stop, or after some
/// time without anybody who is let in, only those that are there.
///
/// # Errors
/// The connection breaks, or the peer is too slow or does not speak HTTP.
async fn serve(io: Io, peer: Peer, router: Router, tasks: &Tasks) -> hyper::Result<()> {
    let (is_http2, was_let_in) = (peer.is_http2, peer.was_let_in.clone());
    let stranger = async {
        tokio::time::sleep(STRANGER).await;
        if was_let_in.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    let over = async {
        tokio::select! {
            biased;
            () = tasks.stopped() => {}
            () = stranger => {}
        }
    };
    let service = TowerToHyperService::new(router.layer(Extension(peer)));
    if is_http2 {
        let mut builder = http2::Builder::new(PageExecutor(tasks.clone()));
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEADER_BYTES_MAX)
            .keep_alive_interval(SILENCE)
            .keep_alive_timeout(SILENCE);
        let io = TokioIo::new(Paced::serving(io));
        return drive(builder.serve_connection(io, service), over).await;
    }
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS);
    builder.max_buf_size(HEADER_BYTES_MAX as usize);
    drive(builder.serve_connection(TokioIo::new(io), service), over).await
}

/// Drives a connection until it is over, and then waits for the answers that are on their way.
async fn drive<C>(connection: C, over: impl Future<Output = ()>) -> hyper::Result<()>
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = over => connection.as_mut().graceful_shutdown(),
    }
    // A peer that sends PINGs would never be closed.
    timeout(STRANGER, connection).await.unwrap_or(Ok(()))
}
