//! Accepts the links that edges dial, over each transport.
//!
//! Each handshake runs in a task of its own, and each link in another.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::host::program;
use proto::host::tasks::{TaskKind, Tasks};
use proto::link::endpoint::{Endpoint, Transport};
use proto::link::network::tune;
use proto::link::tls;
use proto::link::tls::Credentials;
use proto::link::ws::join::Asker;
use proto::link::{GREETING, HANDSHAKE, KeepAlive, Link, LinkError, quic, ws};
use proto::names::NodeName;
use proto::names::certificate::Identity;
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;
use tracing::debug;

use crate::nodes::brief::{BriefConnections, Stay};
use crate::nodes::join;
use crate::nodes::link_task;
use crate::nodes::links::Links;
use crate::nodes::overload::Overload;
use proto::host::door::{Admission, Limits, Pending};

/// The listen backlog, which the system caps (`net.core.somaxconn`). After a restart of csi-cloud a
/// whole fleet dials at once. An edge that finds the backlog full retries only after one, three,
/// then seven seconds.
const WAITING: u32 = 65_535;

/// The pause after a connection that cannot be accepted.
const PAUSE: Duration = Duration::from_millis(20);

/// The state that all listeners share.
#[derive(Clone)]
pub struct Acceptor {
    links: Arc<Links>,
    admission: Admission,
    brief: BriefConnections,
    overload: Overload,
    keep_alive: KeepAlive,
    tasks: Tasks,
}

impl Acceptor {
    /// An acceptor for these links, whose tasks are part of `tasks`.
    pub fn new(links: Arc<Links>, limits: Limits, keep_alive: KeepAlive, tasks: Tasks) -> Self {
        let (admission, brief) = (Admission::new(limits), BriefConnections::default());
        let overload = Overload::default();
        let measured = overload.clone();
        tasks.spawn_until_stop(TaskKind::All("overload"), async move { measured.measure().await });
        Self { links, admission, brief, overload, keep_alive, tasks }
    }

    /// Listens on an endpoint, prints it, and accepts links until they are drained or stopped.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn listen(
        &self,
        endpoint: &Endpoint,
        credentials: &Credentials,
    ) -> anyhow::Result<()> {
        let cannot = || format!("cannot listen on {endpoint}");
        let addr = endpoint.address();
        let addr = lookup_host(&addr).await.with_context(cannot)?.next().with_context(cannot)?;
        let bound = match endpoint.transport {
            Transport::Ws => self.clone().ws(addr, credentials),
            Transport::Quic => self.clone().quic(addr, credentials),
        };
        let port = bound.with_context(cannot)?.port();
        program::tell(format_args!("listening {}", Endpoint { port, ..endpoint.clone() }));
        Ok(())
    }

    fn ws(self, addr: SocketAddr, credentials: &Credentials) -> anyhow::Result<SocketAddr> {
        let links = tls::server_config(credentials, ws::ALPN)?;
        let joining = tls::join_config(credentials, ws::join::ALPN)?;
        let acceptor = ws::Acceptor::new(links, self.keep_alive).with_join(joining);
        let listener = listen(addr)?;
        let addr = listener.local_addr()?;
        self.tasks.clone().spawn_until_stop(TaskKind::All("accept"), async move {
            // Once drained, the listener is closed.
            tokio::select! {
                biased;
                () = self.links.drained() => {}
                () = self.accept(&listener, acceptor) => {}
            }
        });
        Ok(addr)
    }

    async fn accept(&self, listener: &TcpListener, acceptor: ws::Acceptor) {
        loop {
            // What nobody accepts waits in the kernel, which refuses more.
            self.overload.over().await;
            match listener.accept().await {
                Ok((tcp, from)) => self.take_tcp(tcp, from, acceptor.clone()),
                Err(error) => {
                    // For example without file descriptors: existing links go on.
                    peer_warn!(LogPeer::Stranger, %error, "cannot accept an edge");
                    self.admission.make_room();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn quic(self, addr: SocketAddr, credentials: &Credentials) -> anyhow::Result<SocketAddr> {
        let acceptor = Arc::new(quic::Acceptor::bind(addr, credentials, self.keep_alive)?);
        let addr = acceptor.local_addr()?;
        let tasks = self.tasks.clone();
        self.tasks.clone().spawn(TaskKind::All("accept"), async move {
            let taking = async {
                while let Some(incoming) = acceptor.accept().await {
                    self.take_quic(incoming, acceptor.clone());
                }
            };
            tokio::select! {
                biased;
                () = tasks.stopped() => {}
                () = taking => {}
                () = acceptor.end_dead() => {}
            }
            acceptor.close().await;
        });
        Ok(addr)
    }

    /// A QUIC listener shares the socket of its links. So it stays when the links are drained, and
    /// refuses.
    fn take_quic(&self, incoming: quic::Incoming, quic: Arc<quic::Acceptor>) {
        if self.links.is_drained() {
            return incoming.refuse();
        }
        if self.overload.is_on() {
            // Its edge sends it again, later and later.
            return incoming.ignore();
        }
        let from = incoming.remote_address();
        // The source address of a datagram may be forged.
        if self.admission.is_busy(from.ip()) && incoming.may_retry() {
            let _ = incoming.retry();
            return;
        }
        let at_door = self.admission.at_door(from.ip());
        let mut stay = self.brief.begin(from.ip());
        let acceptor = self.clone();
        self.tasks.spawn("handshake", async move {
            let entering = timeout(HANDSHAKE, async {
                stay.admitted().await;
                acceptor.admission.enter(from.ip()).await
            });
            match at_door.wait(entering).await {
                Some(Ok(Ok(pending))) => {
                    let keep_alive = acceptor.keep_alive();
                    let linking = quic_link(quic, incoming, keep_alive);
                    acceptor.link(from, stay, pending, linking).await;
                }
                Some(Ok(Err(full))) => {
                    peer_warn!(LogPeer::Stranger, %from, error = %full, "refused a connection")
                }
                Some(Err(_)) | None => {
                    // Others must not wait for what somebody sends with their address.
                    stay.hand_over();
                    debug!(%from, "gave up a connection at the door");
                }
            }
        });
    }

    /// The signs of life of a link that is accepted now.
    fn keep_alive(&self) -> KeepAlive {
        self.keep_alive.among(self.links.count())
    }

    /// Waits for the ClientHello of a connection and for admission, then makes a link of it.
    fn take_tcp(&self, tcp: TcpStream, from: SocketAddr, ws: ws::Acceptor) {
        let at_door = self.admission.at_door(from.ip());
        let mut stay = self.brief.begin(from.ip());
        let acceptor = self.clone();
        self.tasks.spawn("handshake", async move {
            let entering = timeout(HANDSHAKE, async {
                stay.admitted().await;
                acceptor.greet(tcp, from, &ws).await
            });
            match at_door.wait(entering).await {
                Some(Ok(Some((greeted, pending)))) => {
                    let ws = ws.with_keep_alive(acceptor.keep_alive());
                    acceptor.link(from, stay, pending, ws_link(ws, greeted)).await;
                }
                Some(Ok(None)) => {}
                Some(Err(_)) | None => debug!(%from, "gave up a connection at the door"),
            }
        });
    }

    /// Reads the ClientHello of a connection; none if it is refused.
    async fn greet(
        &self,
        tcp: TcpStream,
        from: SocketAddr,
        ws: &ws::Acceptor,
    ) -> Option<(ws::Greeted, Pending)> {
        tune(&tcp);
        let greeting = async {
            // TLS takes memory, and who sends nothing needs none.
            let _ = tcp.readable().await;
            Box::pin(ws.greet(Box::new(tcp))).await
        };
        let greeted = match timeout(GREETING, greeting).await.unwrap_or(Err(LinkError::Silent)) {
            Ok(greeted) => greeted,
            Err(error @ LinkError::Silent) => {
                debug!(%from, error = chain(&error), "refused a connection");
                return None;
            }
            Err(error) => {
                peer_warn!(LogPeer::Stranger, %from, error = chain(&error), "refused a connection");
                return None;
            }
        };
        match self.admission.enter(from.ip()).await {
            Ok(pending) => Some((greeted, pending)),
            Err(full) => {
                peer_warn!(LogPeer::Stranger, %from, error = %full, "refused a connection");
                None
            }
        }
    }

    /// Authenticates a connection in its turn, and runs its link in a task of its own.
    async fn link<F>(self, from: SocketAddr, stay: Stay, pending: Pending, authenticate: F)
    where
        F: Future<Output = Authenticated>,
    {
        let passed = timeout(HANDSHAKE, pending.pass(authenticate)).await;
        let Ok(Some((authenticated, slot))) = passed else {
            return peer_warn!(
                LogPeer::Stranger, %from, error = %LinkError::TimedOut, "refused a connection"
            );
        };
        match authenticated {
            // A task of its own, so that a link does not keep the size of the handshake's future.
            Ok(Arrival::Link(peer, link)) => self.tasks.clone().spawn("link", async move {
                if let Some(slot) = &slot {
                    slot.note_linked();
                }
                link_task::run(&self.links, peer, link, Some(from)).await;
                drop((slot, stay));
            }),
            Ok(Arrival::Asker(asker)) => join::answer(&self.links, from, *asker).await,
            Ok(Arrival::Bulk) => stay.hand_over(),
            Err(ref error @ LinkError::Checked(ref node)) => {
                peer_info!(LogPeer::Node(node), %from, "{error}");
            }
            Err(error) => {
                peer_warn!(LogPeer::Stranger, %from, error = chain(&error), "refused a connection")
            }
        }
    }
}

/// The purpose of an accepted connection.
enum Arrival {
    /// A link, and its node's identity.
    Link(Box<Identity<NodeName>>, Link),
    /// A byte stream of another link, which has it now.
    Bulk,
    /// An edge that asks to join.
    Asker(Box<Asker>),
}

type Authenticated = Result<Arrival, LinkError>;

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(WAITING)
}

async fn ws_link(acceptor: ws::Acceptor, greeted: ws::Greeted) -> Authenticated {
    // Boxed, so that a waiting connection takes no memory for a handshake.
    Ok(match Box::pin(acceptor.accept(greeted)).await? {
        ws::Accepted::Link(peer, link) => Arrival::Link(Box::new(peer), (*link).into()),
        ws::Accepted::Bulk => Arrival::Bulk,
        ws::Accepted::Asker(asker) => Arrival::Asker(asker),
    })
}

async fn quic_link(
    acceptor: Arc<quic::Acceptor>,
    incoming: quic::Incoming,
    keep_alive: KeepAlive,
) -> Authenticated {
    let (peer, link) = Box::pin(acceptor.link(incoming, keep_alive)).await?;
    Ok(Arrival::Link(Box::new(peer), link.into()))
}
