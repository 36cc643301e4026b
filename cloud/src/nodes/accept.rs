//! Takes the links that edges dial, over each transport, each handshake in a task of its own.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::link::endpoint::{Endpoint, Transport};
use proto::link::tls;
use proto::link::tls::Credentials;
use proto::link::{HANDSHAKE, KeepAlive, Link, LinkError, quic, ws};
use proto::names::NodeName;
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tracing::warn;

use super::admission::{Admission, Limits};
use crate::nodes::links::Links;

/// Edges that may wait to be taken, if the system's own limit (`net.core.somaxconn`) lets them. All of a fleet come at once when
/// csi-cloud is back, and one that finds no place asks again only after a second, then three, then seven.
const WAITING: u32 = 65_535;

/// Where links come in: what all listeners share.
#[derive(Clone)]
pub struct Acceptor {
    links: Arc<Links>,
    admission: Admission,
    keep_alive: KeepAlive,
    tasks: Tasks,
}

impl Acceptor {
    /// A door to these links, which live in `tasks`.
    pub fn new(links: Arc<Links>, limits: Limits, keep_alive: KeepAlive, tasks: Tasks) -> Self {
        Self { links, admission: Admission::new(limits), keep_alive, tasks }
    }

    /// Listens on an endpoint, prints where, and takes links until the links are drained or told to stop.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn listen(
        &self,
        endpoint: &Endpoint,
        credentials: &Credentials,
    ) -> anyhow::Result<()> {
        let cannot = || format!("cannot listen on {endpoint}");
        let addr = format!("{}:{}", endpoint.host, endpoint.port);
        let addr = lookup_host(&addr).await.with_context(cannot)?.next().with_context(cannot)?;
        let bound = match endpoint.transport {
            Transport::Ws => self.clone().ws(addr, credentials),
            Transport::Quic => self.clone().quic(addr, credentials),
        };
        let port = bound.with_context(cannot)?.port();
        println!("listening {}", Endpoint { port, ..endpoint.clone() });
        Ok(())
    }

    fn ws(self, addr: SocketAddr, credentials: &Credentials) -> anyhow::Result<SocketAddr> {
        let acceptor =
            ws::Acceptor::new(tls::server_config(credentials, ws::ALPN)?, self.keep_alive);
        let listener = listen(addr)?;
        let addr = listener.local_addr()?;
        self.tasks.clone().spawn_until_stop("accept", async move {
            // Drained, nobody listens any more, and what goes away next is the listener.
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
            match listener.accept().await {
                Ok((tcp, from)) => self.take(from, ws_link(acceptor.clone(), tcp)).await,
                Err(error) => {
                    // Out of file descriptors, say: the links that are there go on.
                    warn!(%error, "cannot accept an edge");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn quic(self, addr: SocketAddr, credentials: &Credentials) -> anyhow::Result<SocketAddr> {
        let acceptor = quic::Acceptor::bind(addr, credentials, self.keep_alive)?;
        let addr = acceptor.local_addr()?;
        let tasks = self.tasks.clone();
        self.tasks.clone().spawn("accept", async move {
            let taking = async {
                while let Some(incoming) = acceptor.accept().await {
                    self.take_quic(incoming).await;
                }
            };
            tokio::select! {
                biased;
                () = tasks.stopped() => {}
                () = taking => {}
            }
            acceptor.close().await;
        });
        Ok(addr)
    }

    /// A listener of QUIC is also its links' socket, so it stays when the links are drained, and refuses.
    async fn take_quic(&self, incoming: quic::Incoming) {
        if self.links.is_drained() {
            return incoming.refuse();
        }
        // A datagram can show any address.
        if self.admission.is_busy() && incoming.may_retry() {
            let _ = incoming.retry();
            return;
        }
        self.take(incoming.remote_address(), quic_link(incoming)).await;
    }

    /// Waits for admission, and authenticates and runs a link in a task of its own.
    async fn take<F>(&self, from: SocketAddr, authenticate: F)
    where
        F: Future<Output = Authenticated> + Send + 'static,
    {
        let waiting = match self.admission.enter(from.ip()).await {
            Ok(waiting) => waiting,
            Err(full) => return warn!(%from, error = %full, "refused a connection"),
        };
        let (links, tasks) = (self.links.clone(), self.tasks.clone());
        self.tasks.spawn("handshake", async move {
            let handshake = tokio::time::timeout(HANDSHAKE, waiting.pass(authenticate));
            let Ok((authenticated, place)) = handshake.await else {
                return warn!(%from, error = %LinkError::TimedOut, "refused a connection");
            };
            match authenticated {
                // In a task of its own, which does not keep the size of the handshake's.
                Ok(Some((node, link))) => tasks.spawn("link", async move {
                    links.run(node, link, Some(from)).await;
                    drop(place);
                }),
                Ok(None) => {}
                Err(error) => warn!(%from, error = chain(&error), "refused a connection"),
            }
        });
    }
}

/// A link and the node it is proved to be; none if the connection was another link's byte stream.
type Authenticated = Result<Option<(NodeName, Link)>, LinkError>;

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(WAITING)
}

async fn ws_link(acceptor: ws::Acceptor, tcp: TcpStream) -> Authenticated {
    ws::tune(&tcp);
    // Boxed, as the other: what waits for its turn does not take the admission of a handshake.
    let link = Box::pin(acceptor.accept(Box::new(tcp))).await?;
    Ok(link.map(|(node, link)| (node, link.into())))
}

async fn quic_link(incoming: quic::Incoming) -> Authenticated {
    let (node, link) = Box::pin(quic::authenticate(incoming)).await?;
    Ok(Some((node, link.into())))
}
