//! Listens for browsers and proxies, and tells who they are.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::Request;
use hyper::body::Incoming;
use parking_lot::Mutex;
use proto::host::accept::accept;
use proto::host::chain;
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::link::tls;
use proto::link::tls::Credentials;
use proto::link::{HANDSHAKE, Io};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use super::connection;
use super::connection::{ALPN, HTTP2};
use super::guard::{Guard, Peer};
use super::hub::Hub;
use super::router::Router;
use super::settings::{PageAddress, PageSettings};
use super::trust;
use crate::admin::admin_state::AdminState;
use proto::host::door::{Admission, Limits};

/// Connections of all addresses.
const CONNECTIONS: usize = 1024;
/// The limits of one remote address. A proxy has one address for all.
const LIMITS: Limits = Limits { handshakes: 16, connections: 512 };
/// Who is accepted, for the log.
const CALLER: &str = "a connection to the page";
/// How often files are looked at.
const COMPARED: Duration = Duration::from_secs(10);
/// The mode of a unix socket: its owner, and its group for a proxy.
const MODE: u32 = 0o660;

/// Serves the page.
#[derive(Clone)]
pub(crate) struct PageListener {
    router: Arc<Router>,
    secured: Arc<Secured>,
    room: Arc<Semaphore>,
    tasks: Tasks,
}

/// What handshakes with browsers are made by.
struct Secured {
    credentials: Credentials,
    settings: PageSettings,
    config: Mutex<Arc<ServerConfig>>,
}

impl Secured {
    fn new(settings: PageSettings, credentials: Credentials) -> anyhow::Result<Self> {
        let config = Mutex::new(made(&settings, &credentials)?);
        Ok(Self { credentials, settings, config })
    }

    fn acceptor(&self) -> TlsAcceptor {
        self.config.lock().clone().into()
    }

    /// Reads the CA of clients again.
    fn reload(&self) -> anyhow::Result<()> {
        if self.settings.client_ca.is_some() {
            let config = made(&self.settings, &self.credentials)?;
            *self.config.lock() = config;
        }
        Ok(())
    }
}

fn made(settings: &PageSettings, credentials: &Credentials) -> anyhow::Result<Arc<ServerConfig>> {
    let ca = settings.client_ca.as_deref();
    let roots = ca.map(|ca| trust::read(ca, credentials)).transpose()?;
    // Without tokens, nobody gets as far as a request without a certificate.
    let must_show = settings.tokens.is_none();
    Ok(tls::browser_config(credentials, roots, must_show, &ALPN)?)
}

impl PageListener {
    /// Nothing is listened at yet. Its connections are part of `tasks`.
    ///
    /// # Errors
    /// The tokens or the CA of clients cannot be used.
    pub(crate) fn new(
        settings: PageSettings,
        state: Arc<AdminState>,
        credentials: &Credentials,
        tasks: Tasks,
    ) -> anyhow::Result<Self> {
        let guard = Guard::open(settings.tokens.clone())?;
        let secured = Secured::new(settings, credentials.clone())?;
        let hub = Arc::new(Hub::new(state));
        tasks.spawn("page", hub.clone().keep_looking(tasks.clone()));
        let router = Arc::new(Router::new(hub, guard, tasks.clone()));
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        Ok(Self { router, secured: Arc::new(secured), room, tasks })
    }

    /// Listens at all addresses, and prints them.
    ///
    /// # Errors
    /// An address cannot be listened at.
    pub(crate) async fn listen(self) -> anyhow::Result<()> {
        for address in &self.secured.settings.listen {
            let bound = match address {
                PageAddress::Unix(path) => self.listen_unix(path),
                PageAddress::Http(_) | PageAddress::Https(..) => self.listen_tcp(address).await,
            };
            let cannot = || format!("cannot serve the page at {address} ([page] listen, --page)");
            println!("page {}", bound.with_context(cannot)?);
        }
        let keeper = self.clone();
        self.tasks.spawn_until_stop("files of the page", async move { keeper.keep_files().await });
        Ok(())
    }

    fn listen_unix(&self, path: &Path) -> anyhow::Result<PageAddress> {
        let socket = Socket::bind_for(path, MODE)?;
        self.tasks.spawn("page", self.clone().accept_unix(socket));
        Ok(PageAddress::Unix(path.to_owned()))
    }

    async fn listen_tcp(&self, address: &PageAddress) -> anyhow::Result<PageAddress> {
        let (host, bound) = match address {
            PageAddress::Https(host, port) => {
                let found = lookup_host(format!("{host}:{port}")).await?.next();
                (Some(host.clone()), found.context("the host has no address")?)
            }
            PageAddress::Http(bound) => (None, *bound),
            PageAddress::Unix(_) => anyhow::bail!("that is no address of TCP"),
        };
        let listener = TcpListener::bind(bound).await?;
        let bound = listener.local_addr()?;
        let accepting = self.clone().accept_tcp(listener, host.is_some());
        self.tasks.spawn_until_stop("page", accepting);
        Ok(match host {
            Some(host) => PageAddress::Https(host, bound.port()),
            None => PageAddress::Http(bound),
        })
    }

    async fn accept_unix(self, socket: Socket) {
        loop {
            let (stream, _) = tokio::select! {
                biased;
                () = self.tasks.stopped() => return,
                accepted = accept(CALLER, || socket.listener.accept()) => accepted,
            };
            match self.place() {
                Some(place) => self.serve(Box::new(stream), false, Peer::default(), place),
                None => warn!("refused a connection to the page: there are too many"),
            }
        }
    }

    async fn accept_tcp(self, listener: TcpListener, has_tls: bool) {
        let admission = Admission::new(LIMITS);
        loop {
            let (tcp, from) = accept(CALLER, || listener.accept()).await;
            let Some(place) = self.place() else {
                warn!(%from, "refused a connection to the page: there are too many");
                continue;
            };
            // It delays small answers, such as events, for the sake of large ones.
            let _ = tcp.set_nodelay(true);
            let peer = Peer { address: Some(from.ip()), has_certificate: false };
            if has_tls {
                self.admit(tcp, peer, place, &admission).await;
            } else {
                self.serve(Box::new(tcp), false, peer, place);
            }
        }
    }

    fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().ok()
    }

    /// Makes the handshake in a task of its own, if the address is within its limits.
    async fn admit(
        &self,
        tcp: TcpStream,
        peer: Peer,
        place: OwnedSemaphorePermit,
        admission: &Admission,
    ) {
        let Some(address) = peer.address else { return };
        let waiting = match admission.enter(address).await {
            Ok(waiting) => waiting,
            Err(full) => return warn!(%address, error = %full, "refused a connection to the page"),
        };
        let listener = self.clone();
        let acceptor = self.secured.acceptor();
        self.tasks.spawn_until_stop("handshake", async move {
            let handshake = tokio::time::timeout(HANDSHAKE, waiting.pass(acceptor.accept(tcp)));
            let Ok(Some((Ok(stream), slot))) = handshake.await else {
                return debug!(%address, "a handshake for the page did not succeed");
            };
            let session = stream.get_ref().1;
            let is_http2 = session.alpn_protocol() == Some(HTTP2);
            let shown = session.peer_certificates().and_then(<[_]>::first);
            let has_certificate = shown.is_some_and(trust::is_persons);
            let peer = Peer { has_certificate, ..peer };
            listener.serve(Box::new(stream), is_http2, peer, (place, slot));
        });
    }

    /// Serves a connection in a task of its own, which keeps its places.
    fn serve(&self, io: Io, is_http2: bool, peer: Peer, places: impl Send + 'static) {
        let router = self.router.clone();
        let tasks = self.tasks.clone();
        let service = move |request: Request<Incoming>| router.clone().answer(peer, request);
        self.tasks.spawn("page connection", async move {
            let _places = places;
            let served = connection::serve(io, is_http2, service, &tasks);
            tokio::select! {
                biased;
                served = served => {
                    let error = served.err().map(|error| chain(&error)).unwrap_or_default();
                    debug!(error, "a connection to the page ended");
                }
                () = tasks.given_up() => {}
            }
        });
    }

    /// Reads the tokens and the CA of clients again and again. What cannot be used changes nothing.
    async fn keep_files(&self) {
        let mut tokens = None;
        let mut ca: Option<String> = None;
        loop {
            tokio::time::sleep(COMPARED).await;
            self.router.guard().refresh(&mut tokens);
            let error = self.secured.reload().err().map(|error| format!("{error:#}"));
            if let Some(error) = error.as_ref().filter(|error| ca.as_ref() != Some(error)) {
                warn!(%error, "the CA of the page's clients has changed and cannot be used");
            } else if error.is_none() && ca.is_some() {
                info!("the CA of the page's clients can be used again");
            }
            ca = error;
        }
    }
}
