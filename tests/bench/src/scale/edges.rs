//! A fleet of light edges in this process. Each dials, sends its hello, answers calls, and dials
//! again with csi-edge's backoff of each place when its link ends.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use cloud::pki::ca::CertificateAuthority;
use edge::identity::request::Request as NewCertificate;
use edge::link::backoff::{Backoff, Cap, STABLE};
use futures_util::future::select_all;
use http::{Request, Response};
use hyper::body::Incoming;
use parking_lot::Mutex;
use prost::Message as _;
use proto::control::certificate::{Certificate, Renew};
use proto::control::hello::{Hello, Message, PROTOCOL, Run, True};
use proto::csi;
use proto::csi::frame;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::forward;
use proto::http2::serve;
use proto::link::endpoint::{Endpoint, Transport};
use proto::link::tls;
use proto::link::tls::{Credentials, Files};
use proto::link::{Event, Io, KeepAlive, Link, LinkError, quic, ws};
use proto::names::{DriverName, NodeName};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Interval, interval_at};

use super::kind::{DRIVER, Kind};

/// The answer to GetCapacity of the first edge, in bytes; each next one has a byte more.
pub const CAPACITY: i64 = 1 << 40;
/// Links over QUIC that share a UDP socket.
const LINKS_PER_SOCKET: usize = 64;
/// Edges that dial from one address: csi-cloud takes 32,768 connections of each.
const EDGES_PER_ADDRESS: usize = 16_384;
/// Dials at the same time. The machine has two cores, so more would only wait within this process.
const DIALS: usize = 256;
/// The longest wait before the leader is dialed, as csi-edge's.
const SPREAD: Duration = Duration::from_millis(500);
/// A link that was up for so long shall not end by silence.
pub const OLD: Duration = Duration::from_secs(60);
/// How long edges may take to leave.
const LEAVING: Duration = Duration::from_secs(60);

/// Light edges of one cloud.
pub struct Fleet {
    edges: Vec<Arc<Edge>>,
    shared: Arc<Shared>,
    tasks: Tasks,
}

struct Edge {
    kind: Arc<Kind>,
    /// Its answer to GetCapacity.
    capacity: i64,
    node: NodeName,
    driver: DriverName,
    /// Its part of the time in which the fleet renews, from 0 to 1.
    share: f64,
    tls: Mutex<Arc<rustls::ClientConfig>>,
    has_renewed: AtomicBool,
    outgoing: Option<quic::Outgoing>,
}

/// Where a cloud listens.
struct Place {
    endpoint: Endpoint,
    addr: SocketAddr,
}

struct Shared {
    /// The clouds, of which one welcomes edges.
    places: Vec<Place>,
    room: Semaphore,
    linked: watch::Sender<usize>,
    /// Since when the fleet renews its certificates, and how long.
    renewing: watch::Sender<Option<(Instant, Duration)>>,
    renewed: watch::Sender<usize>,
    /// The time of each link's welcome.
    welcomed: Mutex<Vec<Instant>>,
    dials: AtomicU64,
    /// The links that ended because one end heard nothing, and those of them that were old.
    silent: AtomicU64,
    old_silent: AtomicU64,
    /// How often each edge sends a sign of life of its own, as older ones did.
    signs: Option<Duration>,
}

/// How a link ended.
enum LinkEnd {
    /// The longest delay that the cloud requested before the next one.
    Lost(Option<Duration>),
    /// The cloud follows another one, at this place; none if it names none of the places.
    Follows(Option<usize>),
    /// The edge has a new certificate, and the link goes on until the next one replaces it.
    Renewed,
}

/// What comes of a hello.
enum Greeted {
    /// A link, with the backoff that the cloud told, in ms.
    Welcome(Option<u32>),
    /// A refusal, and where the leader is.
    Refused(Vec<String>),
}

/// The address from which the edge with this number dials.
fn source(number: usize) -> anyhow::Result<SocketAddr> {
    let last = u8::try_from(1 + number / EDGES_PER_ADDRESS).context("too many edges")?;
    Ok(([127, 0, 1, last], 0).into())
}

/// The name of the edge with this number.
pub fn node_name(number: usize) -> String {
    format!("edge-{number:05}.scale.example")
}

impl Fleet {
    /// Edges with certificates of the CA in `pki`, that have not dialed yet.
    ///
    /// # Errors
    /// The CA or the URL cannot be used, or there are no sockets.
    pub fn new(pki: &Path, urls: &[String], links: usize) -> anyhow::Result<Self> {
        Self::of(pki, urls, Kind { numbers: 0..links, days: 1, ..Kind::default() })
    }

    /// Edges of one kind, that have not dialed yet.
    ///
    /// # Errors
    /// As for [`Fleet::new`].
    pub fn of(pki: &Path, urls: &[String], kind: Kind) -> anyhow::Result<Self> {
        let links = kind.numbers.len();
        let kind = Arc::new(kind);
        let mut places = Vec::new();
        for url in urls {
            let endpoint: Endpoint = url.parse()?;
            let addr = endpoint.address();
            places.push(Place { addr: addr.parse().context("no address")?, endpoint });
        }
        let Some(Place { endpoint, .. }) = places.first() else { bail!("no place to dial") };
        let authority = CertificateAuthority::open(pki)?;
        let ca = CertificateDer::from_pem_file(pki.join("ca.crt"))?;
        let mut outgoing = None;
        let mut edges = Vec::with_capacity(links);
        for number in kind.numbers.clone() {
            if endpoint.transport == Transport::Quic && number % LINKS_PER_SOCKET == 0 {
                outgoing = Some(quic::Outgoing::bind_at(source(number)?)?);
            }
            let node: NodeName = node_name(number).parse()?;
            let (certificate, key) = authority.node(&node, kind.days)?;
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let credentials = Credentials::made(ca.clone(), certificate.der().clone(), key)?;
            let alpn = if outgoing.is_some() { quic::ALPN } else { ws::ALPN };
            let tls = tls::client_config(&credentials, alpn)?;
            let driver = DRIVER.parse()?;
            let capacity = CAPACITY + i64::try_from(number)?;
            let edge = Edge {
                kind: kind.clone(),
                capacity,
                node,
                driver,
                share: (number - kind.numbers.start) as f64 / links as f64,
                tls: Mutex::new(tls),
                has_renewed: AtomicBool::new(false),
                outgoing: outgoing.clone(),
            };
            edges.push(Arc::new(edge));
        }
        let shared = Shared {
            places,
            room: Semaphore::new(DIALS),
            linked: watch::Sender::new(0),
            renewing: watch::Sender::new(None),
            renewed: watch::Sender::new(0),
            welcomed: Mutex::default(),
            dials: AtomicU64::new(0),
            silent: AtomicU64::new(0),
            old_silent: AtomicU64::new(0),
            signs: kind.signs,
        };
        Ok(Self { edges, shared: Arc::new(shared), tasks: Tasks::default() })
    }

    /// Lets all edges dial.
    pub fn dial(&self) {
        for edge in &self.edges {
            let edge = edge.clone();
            let shared = self.shared.clone();
            let tasks = self.tasks.clone();
            self.tasks.spawn("edge", async move { edge.keep(&shared, &tasks).await });
        }
    }

    /// Waits until all are linked.
    ///
    /// # Errors
    /// They are not within `limit`.
    pub async fn all_linked(&self, limit: Duration) -> anyhow::Result<()> {
        let all = self.edges.len();
        let mut linked = self.shared.linked.subscribe();
        let waiting = tokio::time::timeout(limit, linked.wait_for(|linked| *linked == all)).await;
        let linked = *self.shared.linked.borrow();
        waiting
            .with_context(|| format!("{linked} of {all} edges are linked after {limit:?}"))??;
        Ok(())
    }

    /// Waits until so many links were welcomed since the last [`Self::take_welcomed`].
    ///
    /// # Errors
    /// They are not within `limit`.
    pub async fn all_welcomed(&self, all: usize, limit: Duration) -> anyhow::Result<()> {
        let welcomed = &self.shared.welcomed;
        let count = || welcomed.lock().len();
        // Each welcome changes the number of links.
        let mut linked = self.shared.linked.subscribe();
        let waiting = tokio::time::timeout(limit, linked.wait_for(|_| count() >= all)).await;
        waiting.with_context(|| format!("{} of {all} edges are back", count()))??;
        self.all_linked(limit).await
    }

    /// Lets all edges renew their certificates within this time, one after another.
    pub fn renew(&self, within: Duration) {
        self.shared.renewing.send_replace(Some((Instant::now(), within)));
    }

    /// Waits until all edges have linked with a new certificate.
    ///
    /// # Errors
    /// They have not within `limit`.
    pub async fn all_renewed(&self, limit: Duration) -> anyhow::Result<()> {
        let all = self.edges.len();
        let mut renewed = self.shared.renewed.subscribe();
        let waiting = tokio::time::timeout(limit, renewed.wait_for(|renewed| *renewed == all));
        let waiting = waiting.await;
        let renewed = *self.shared.renewed.borrow();
        waiting.with_context(|| format!("{renewed} of {all} edges have renewed"))??;
        self.all_linked(limit).await
    }

    /// The times of the links since the last call, and the number of attempts.
    pub fn take_welcomed(&self) -> (Vec<Instant>, u64) {
        let welcomed = std::mem::take(&mut *self.shared.welcomed.lock());
        (welcomed, self.shared.dials.swap(0, Ordering::Relaxed))
    }

    /// The links of all time that ended because one end heard nothing.
    pub fn ended_by_silence(&self) -> u64 {
        self.shared.silent.load(Ordering::Relaxed)
    }

    /// The same of links that had been up for [`OLD`].
    pub fn old_ended_by_silence(&self) -> u64 {
        self.shared.old_silent.load(Ordering::Relaxed)
    }

    /// The links that are up.
    pub fn linked(&self) -> usize {
        *self.shared.linked.borrow()
    }

    /// Closes all links; the edges can dial again.
    pub async fn leave(&mut self) {
        std::mem::take(&mut self.tasks).finish(LEAVING).await;
    }
}

impl Edge {
    async fn keep(&self, shared: &Shared, tasks: &Tasks) {
        let mut cap = Cap::default();
        let backoffs = shared.places.iter().map(|_| Backoff::new(rand::make_rng()));
        let mut backoffs: Vec<_> = backoffs.collect();
        let mut place = 0;
        // The place of the leader that it was told, and whether it is of no use.
        let mut leader = None;
        let mut awaits_leader = false;
        while !tasks.is_stopped() {
            let begun = Instant::now();
            let ended = self.link_once((place, awaits_leader), shared, tasks).await;
            let Some(backoff) = backoffs.get_mut(place) else { return };
            match ended {
                Ok(LinkEnd::Renewed) => continue,
                Ok(LinkEnd::Follows(next)) => {
                    backoff.turned_away();
                    if let Some(next) = next {
                        leader = Some(next);
                        place = next;
                        tokio::time::sleep(SPREAD.mul_f64(rand::random())).await;
                        continue;
                    }
                }
                Ok(LinkEnd::Lost(told)) => {
                    awaits_leader = false;
                    cap.take(told);
                    backoff.ended(begun.elapsed() >= STABLE, cap);
                }
                // An error here is no news: while the cloud is away there are thousands.
                Err(_) => {
                    awaits_leader |= leader == Some(place);
                    backoff.failed(cap);
                }
            }
            tokio::select! {
                next = first_over(&backoffs) => place = next,
                () = tasks.stopped() => return,
            }
        }
    }

    /// Dials, and serves the link until it ends.
    async fn link_once(
        &self,
        (place, awaits_leader): (usize, bool),
        shared: &Shared,
        tasks: &Tasks,
    ) -> Result<LinkEnd, LinkError> {
        let mut permit = Some(shared.room.acquire().await.map_err(|_| LinkError::TimedOut)?);
        shared.dials.fetch_add(1, Ordering::Relaxed);
        let to = shared.places.get(place).ok_or(LinkError::TimedOut)?;
        let mut link = Box::pin(self.dial(to)).await?;
        if shared.places.len() > 1 {
            // A cloud that follows may let it wait for a leader.
            permit = None;
        }
        let mut cap_ms = match self.greet(&mut link, awaits_leader).await? {
            Greeted::Welcome(cap_ms) => cap_ms,
            Greeted::Refused(leader) => {
                let at = |place: &Place| leader.contains(&place.endpoint.to_string());
                return Ok(LinkEnd::Follows(shared.places.iter().position(at)));
            }
        };
        drop(permit);
        shared.welcomed.lock().push(Instant::now());
        shared.linked.send_modify(|linked| *linked += 1);
        if self.has_renewed.load(Ordering::Relaxed) {
            shared.renewed.send_modify(|renewed| *renewed += 1);
        }
        let has_renewed = self.serve(link, &mut cap_ms, shared, tasks).await;
        shared.linked.send_modify(|linked| *linked -= 1);
        if has_renewed {
            return Ok(LinkEnd::Renewed);
        }
        Ok(LinkEnd::Lost(cap_ms.map(|ms| Duration::from_millis(ms.into()))))
    }

    async fn dial(&self, Place { endpoint, addr }: &Place) -> Result<Link, LinkError> {
        let tls = self.tls.lock().clone();
        let keep_alive = KeepAlive::default();
        if let Some(outgoing) = &self.outgoing {
            let link = quic::dial_from(outgoing, endpoint, *addr, tls, keep_alive).await?;
            return Ok(link.into());
        }
        let dialer = ws::Dialer { endpoint: endpoint.clone(), tls, keep_alive, network: ws::tcp() };
        Ok(ws::dial(Arc::new(dialer)).await?.into())
    }

    /// Sends the hello, and waits for what comes of it.
    async fn greet(&self, link: &mut Link, awaits_leader: bool) -> Result<Greeted, LinkError> {
        let drivers = vec![self.kind.driver(&self.node, self.driver.clone())];
        let version = env!("CARGO_PKG_VERSION").into();
        let hello = Hello {
            protocol: PROTOCOL,
            node: self.node.clone(),
            version,
            drivers,
            leases: True,
            not_taken: True,
            expands: false,
            metadata: None,
            takes_node: false,
            begins_within: false,
            reopens_calls: true,
            certificate_on_disk: true,
            trust: None,
            awaits_leader,
            run: Run::begin(),
            machine: None,
            takes_watermark: false,
            answers_challenge: false,
            watermark: None,
        };
        link.send(&Message::Hello(hello)).await?;
        let answer = tokio::time::timeout(proto::link::HANDSHAKE, link.next()).await;
        match answer.map_err(|_| LinkError::TimedOut)? {
            Event::Message(Message::Welcome(welcome)) => {
                if let Some(ms) = welcome.keep_alive_ms {
                    let told = Duration::from_millis(ms.into());
                    link.set_keep_alive(KeepAlive::default().told(told));
                }
                Ok(Greeted::Welcome(welcome.backoff_cap_ms))
            }
            Event::Message(Message::Refused(refused)) => {
                Ok(Greeted::Refused(refused.leader.unwrap_or_default()))
            }
            Event::Closed(error) => Err(error),
            _ => Err(LinkError::Transport("it did not answer the hello".into())),
        }
    }

    /// Serves the link until it ends; true if the edge has a new certificate before that.
    async fn serve(
        &self,
        mut link: Link,
        cap_ms: &mut Option<u32>,
        shared: &Shared,
        tasks: &Tasks,
    ) -> bool {
        let (mut requested, begun) = (None, Instant::now());
        let mut signs = shared.signs.map(|every| interval_at(begun + every, every));
        loop {
            tokio::select! {
                () = next_sign(&mut signs) => {
                    let _ = link.send(&Message::Probe(True)).await;
                }
                event = link.next() => match event {
                    Event::Opened(_, io) => {
                        tasks.spawn_until_stop("http2", answer_calls(self.capacity, io));
                    }
                    // Said anew when the fleet has grown.
                    Event::Message(Message::Welcome(welcome)) => *cap_ms = welcome.backoff_cap_ms,
                    Event::Message(Message::Renewed(certificate)) => {
                        if self.take(requested.take(), &certificate).is_some() {
                            tasks.spawn("older link", outlive(link, self.capacity, tasks.clone()));
                            return true;
                        }
                    }
                    Event::Message(_) => {}
                    Event::Closed(error) => {
                        let is_silent = error.to_string().contains("no sign of life");
                        let is_old = is_silent && begun.elapsed() >= OLD;
                        shared.silent.fetch_add(is_silent.into(), Ordering::Relaxed);
                        shared.old_silent.fetch_add(is_old.into(), Ordering::Relaxed);
                        return false;
                    }
                },
                () = self.is_to_renew(shared), if requested.is_none() => {
                    let request = NewCertificate::new().ok();
                    let csr = request.as_ref().and_then(|request| request.csr().ok());
                    requested = request;
                    if let Some(csr) = csr {
                        // A link that is lost says so by its next event.
                        let _ = link.send(&Message::Renew(Renew { csr, machine: None })).await;
                    }
                }
                () = tasks.stopped() => {
                    link.close("the edge leaves").await;
                    return false;
                }
            }
        }
    }

    /// Ends when this edge renews its certificate.
    async fn is_to_renew(&self, shared: &Shared) {
        if self.has_renewed.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let mut renewing = shared.renewing.subscribe();
        let begun = renewing.wait_for(Option::is_some).await.ok().and_then(|begun| *begun);
        let Some((since, within)) = begun else { return std::future::pending().await };
        tokio::time::sleep_until(since + within.mul_f64(self.share)).await;
    }

    /// Takes a new certificate for the next link; none if it cannot be used.
    fn take(&self, request: Option<NewCertificate>, certificate: &Certificate) -> Option<()> {
        let issued = request?.issued(certificate, &Files::identity(Path::new("/"))).ok()?;
        let alpn = if self.outgoing.is_some() { quic::ALPN } else { ws::ALPN };
        let tls = tls::client_config(&issued.credentials, alpn).ok()?;
        *self.tls.lock() = tls;
        self.has_renewed.store(true, Ordering::Relaxed);
        Some(())
    }
}

/// Waits until a sign of life is due.
async fn next_sign(signs: &mut Option<Interval>) {
    match signs {
        Some(signs) => drop(signs.tick().await),
        None => std::future::pending().await,
    }
}

/// The place that may be dialed first.
async fn first_over(backoffs: &[Backoff]) -> usize {
    select_all(backoffs.iter().map(|backoff| Box::pin(backoff.over()))).await.1
}

/// Serves a link until the next one of its edge has replaced it.
async fn outlive(mut link: Link, capacity: i64, tasks: Tasks) {
    loop {
        tokio::select! {
            event = link.next() => match event {
                Event::Opened(_, io) => {
                    tasks.spawn_until_stop("http2", answer_calls(capacity, io));
                }
                Event::Message(_) => {}
                Event::Closed(_) => return,
            },
            () = tasks.stopped() => return,
        }
    }
}

async fn answer_calls(capacity: i64, io: Io) {
    // It ends with its link.
    let _ =
        serve::serve(io, move |request| answer(capacity, request), std::future::pending()).await;
}

/// Answers as a driver without volumes.
async fn answer(capacity: i64, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let _ = frame::collect(request.into_body()).await;
    let response = match method.as_str() {
        "GetCapacity" => {
            csi::GetCapacityResponse { available_capacity: capacity, ..Default::default() }
                .encode_to_vec()
        }
        "DeleteVolume" => Vec::new(),
        _ => return Ok(tonic::Status::not_found("there is no such volume").into_http()),
    };
    Ok(forward::Answer::of(frame::frame(&response)).response())
}
