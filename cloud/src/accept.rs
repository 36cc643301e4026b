//! Takes the links that edges dial, over each transport, each handshake in a task of its own.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use proto::error::chain;
use proto::identity::NodeName;
use proto::link::endpoint::{Endpoint, Transport};
use proto::link::tls::{self, Credentials};
use proto::link::{KeepAlive, Link, LinkError, quic, ws};
use proto::stop::Tasks;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tracing::warn;

use crate::links::Links;

/// Handshakes at the same time. One takes about a millisecond of CPU, so more would not be done sooner; the
/// others wait in the kernel's backlog.
const HANDSHAKES: usize = 256;

/// Listens on an endpoint, prints where, and takes links until told to stop.
///
/// # Errors
/// The address cannot be listened on.
pub async fn listen(
    endpoint: &Endpoint,
    credentials: &Credentials,
    links: Arc<Links>,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot listen on {endpoint}");
    let addr = format!("{}:{}", endpoint.host, endpoint.port);
    let addr = lookup_host(&addr).await.with_context(cannot)?.next().with_context(cannot)?;
    let door = Door { links, room: Arc::new(Semaphore::new(HANDSHAKES)), tasks: tasks.clone() };
    let bound = match endpoint.transport {
        Transport::Ws => door.ws(addr, credentials).await,
        Transport::Quic => door.quic(addr, credentials),
    };
    let port = bound.with_context(cannot)?.port();
    println!("listening {}", Endpoint { port, ..endpoint.clone() });
    Ok(())
}

/// Where links come in.
#[derive(Clone)]
struct Door {
    links: Arc<Links>,
    room: Arc<Semaphore>,
    tasks: Tasks,
}

impl Door {
    async fn ws(self, addr: SocketAddr, credentials: &Credentials) -> anyhow::Result<SocketAddr> {
        let acceptor = ws::Acceptor::new(tls::server_config(credentials, ws::ALPN)?, KeepAlive::default());
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        self.tasks.clone().spawn_until_stop("accept", async move {
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
        });
        Ok(addr)
    }

    fn quic(self, addr: SocketAddr, credentials: &Credentials) -> anyhow::Result<SocketAddr> {
        let acceptor =
            quic::Acceptor::bind(addr, tls::server_config(credentials, quic::ALPN)?, KeepAlive::default())?;
        let addr = acceptor.local_addr()?;
        let tasks = self.tasks.clone();
        self.tasks.clone().spawn("accept", async move {
            let taking = async {
                while let Some(incoming) = acceptor.accept().await {
                    self.take(incoming.remote_address(), quic_link(incoming)).await;
                }
            };
            tokio::select! { () = taking => {}, () = tasks.stopped() => {} }
            acceptor.close().await;
        });
        Ok(addr)
    }

    /// Waits for room, and authenticates and runs a link in a task of its own.
    async fn take<F>(&self, from: SocketAddr, authenticate: F)
    where
        F: Future<Output = Authenticated> + Send + 'static,
    {
        let Ok(permit) = self.room.clone().acquire_owned().await else {
            return;
        };
        let links = self.links.clone();
        self.tasks.spawn("link", async move {
            let authenticated = authenticate.await;
            drop(permit);
            match authenticated {
                Ok(Some((node, link))) => links.run(node, link).await,
                Ok(None) => {}
                Err(error) => warn!(%from, error = chain(&error), "refused a connection"),
            }
        });
    }
}

/// A link and the node it is proved to be; none if the connection was another link's byte stream.
type Authenticated = Result<Option<(NodeName, Link)>, LinkError>;

async fn ws_link(acceptor: ws::Acceptor, tcp: TcpStream) -> Authenticated {
    ws::tune(&tcp);
    let link = acceptor.accept(Box::new(tcp)).await?;
    Ok(link.map(|(node, link)| (node, link.into())))
}

async fn quic_link(incoming: quic::Incoming) -> Authenticated {
    let (node, link) = quic::authenticate(incoming).await?;
    Ok(Some((node, link.into())))
}
