//! Listens for browsers and proxies, and tells who they are.
//! The door of each address is the one of the main port.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use proto::host::accept::accept;
use proto::host::chain;
use proto::host::door::{Admission, Limits, Slot};
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::link::{GREETING, HANDSHAKE, Io};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tracing::{debug, info, warn};

use crate::access::guard::Guard;
use crate::arguments::{Arguments, PageAddress};
use crate::connection;
use crate::connection::{HTTP2, Peer};
use crate::page::Page;
use crate::tls;
use crate::tls::Tls;
use crate::web;

/// Connections of all addresses.
const CONNECTIONS: usize = 1024;
/// The limits of one remote address. A proxy has one address for all.
const LIMITS: Limits = Limits { handshakes: 16, connections: 512 };
/// The word for a connection, for the log.
const CALLER: &str = "a connection to the page";
/// The pause between two looks at the files.
const FILES_INTERVAL: Duration = Duration::from_secs(10);
/// The mode of a unix socket: its owner, and its group for a proxy.
const MODE: u32 = 0o660;

/// Serves the page.
#[derive(Clone)]
pub(crate) struct PageListener {
    listen: Vec<PageAddress>,
    tls: Option<Arc<Tls>>,
    room: Arc<Semaphore>,
    admission: Admission,
    tasks: Tasks,
}

/// A connection that is served, and its places.
struct Arrived {
    io: Io,
    is_http2: bool,
    place: OwnedSemaphorePermit,
    slot: Option<Slot>,
}

impl PageListener {
    /// Nothing is listened at yet. Its connections are part of `tasks`.
    ///
    /// # Errors
    /// The certificate, its key or the CA of clients cannot be used.
    pub(crate) fn new(arguments: Arguments, tasks: Tasks) -> anyhow::Result<Self> {
        let tls = Tls::open(&arguments)?.map(Arc::new);
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let admission = Admission::new(LIMITS);
        Ok(Self { listen: arguments.listen, tls, room, admission, tasks })
    }

    /// Returns the hashes of the public keys of the CA of clients, each time as they are now.
    pub(crate) fn client_ca(&self) -> impl Fn() -> Arc<BTreeSet<String>> + Send + Sync + use<> {
        let tls = self.tls.clone();
        move || tls.as_ref().map(|tls| tls.client_ca()).unwrap_or_default()
    }

    /// Listens at all addresses, and prints them.
    ///
    /// # Errors
    /// An address cannot be listened at.
    pub(crate) async fn listen(self, page: Arc<Page>) -> anyhow::Result<()> {
        let router = web::router(page.clone());
        for address in &self.listen {
            let bound = match address {
                PageAddress::Unix(path) => self.listen_unix(path, &router),
                PageAddress::Tcp(address) => self.listen_tcp(*address, &router).await,
            };
            println!("page {}", bound.with_context(|| format!("cannot serve at {address}"))?);
        }
        let tls = self.tls.clone();
        self.tasks.spawn_until_stop("files", async move { keep_files(&page.guard, tls).await });
        Ok(())
    }

    fn listen_unix(&self, path: &Path, router: &Router) -> anyhow::Result<String> {
        let socket = Socket::bind_for(path, MODE)?;
        self.tasks.spawn("page", self.clone().accept_unix(socket, router.clone()));
        Ok(format!("unix:{}", path.display()))
    }

    async fn listen_tcp(&self, address: SocketAddr, router: &Router) -> anyhow::Result<String> {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.tasks.spawn_until_stop("page", self.clone().accept_tcp(listener, router.clone()));
        Ok(format!("{scheme}://{bound}"))
    }

    async fn accept_unix(self, socket: Socket, router: Router) {
        loop {
            let (stream, _) = tokio::select! {
                biased;
                () = self.tasks.stopped() => return,
                accepted = accept(CALLER, || socket.listener.accept()) => accepted,
            };
            match self.place() {
                Some(place) => {
                    let arrived =
                        Arrived { io: Box::new(stream), is_http2: false, place, slot: None };
                    self.serve(arrived, Peer::default(), router.clone());
                }
                None => warn!("refused a connection to the page: there are too many"),
            }
        }
    }

    async fn accept_tcp(self, listener: TcpListener, router: Router) {
        loop {
            let (tcp, from) = accept(CALLER, || listener.accept()).await;
            // It delays small answers, such as events, for the sake of large ones.
            let _ = tcp.set_nodelay(true);
            if let Some(tls) = &self.tls {
                self.admit(tcp, from, tls.clone(), router.clone());
                continue;
            }
            let Some(place) = self.place() else {
                warn!(%from, "refused a connection to the page: there are too many");
                continue;
            };
            let peer = Peer { address: Some(from.ip()), ..Peer::default() };
            let arrived = Arrived { io: Box::new(tcp), is_http2: false, place, slot: None };
            self.serve(arrived, peer, router.clone());
        }
    }

    fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().ok()
    }

    /// Waits at the door for the ClientHello of a connection, then makes the handshake in its turn.
    fn admit(&self, tcp: TcpStream, from: SocketAddr, tls: Arc<Tls>, router: Router) {
        let at_door = self.admission.at_door(from.ip());
        let listener = self.clone();
        self.tasks.spawn_until_stop("handshake", async move {
            let greeting = async {
                // TLS takes memory, and who sends nothing needs none.
                let _ = tcp.readable().await;
                LazyConfigAcceptor::new(rustls::server::Acceptor::default(), tcp).await
            };
            let Some(Ok(Ok(greeted))) = at_door.wait(timeout(GREETING, greeting)).await else {
                return debug!(%from, "gave up a connection at the door");
            };
            let pending = match listener.admission.enter(from.ip()).await {
                Ok(pending) => pending,
                Err(full) => return warn!(%from, error = %full, "refused a connection to the page"),
            };
            let handshake = timeout(HANDSHAKE, pending.pass(greeted.into_stream(tls.config())));
            let Ok(Some((Ok(stream), slot))) = handshake.await else {
                return debug!(%from, "a handshake for the page did not succeed");
            };
            // Only now: who is at the door takes nobody's place.
            let Some(place) = listener.place() else {
                return warn!(%from, "refused a connection to the page: there are too many");
            };
            let session = stream.get_ref().1;
            let is_http2 = session.alpn_protocol() == Some(HTTP2);
            let shown = session.peer_certificates().and_then(<[_]>::first);
            let has_certificate = shown.is_some_and(tls::is_persons);
            let peer = Peer { address: Some(from.ip()), has_certificate, ..Peer::default() };
            let arrived = Arrived { io: Box::new(stream), is_http2, place, slot };
            listener.serve(arrived, peer, router);
        });
    }

    /// Serves a connection in a task of its own, which keeps its places.
    fn serve(&self, arrived: Arrived, peer: Peer, router: Router) {
        let tasks = self.tasks.clone();
        let was_let_in = peer.was_let_in.clone();
        self.tasks.spawn("page connection", async move {
            let Arrived { io, is_http2, place, slot } = arrived;
            tokio::select! {
                biased;
                served = connection::serve(io, is_http2, peer, router, &tasks) => {
                    let error = served.err().map(|error| chain(&error)).unwrap_or_default();
                    debug!(error, "a connection to the page ended");
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

/// Reads the tokens and the files of TLS again and again. What cannot be used changes nothing.
async fn keep_files(guard: &Guard, tls: Option<Arc<Tls>>) {
    let mut last_tokens = None;
    let mut last_tls: Option<String> = None;
    loop {
        tokio::time::sleep(FILES_INTERVAL).await;
        guard.refresh(&mut last_tokens);
        let Some(tls) = &tls else { continue };
        let error = tls.reload().err().map(|error| format!("{error:#}"));
        if let Some(error) = error.as_ref().filter(|error| last_tls.as_ref() != Some(error)) {
            warn!(%error, "a certificate or key of the page cannot be used; the old ones stay");
        } else if error.is_none() && last_tls.is_some() {
            info!("the certificates and the key of the page can be used again");
        }
        last_tls = error;
    }
}
