//! A csi-cloud of a test's own, which sends to an edge what it likes.

use std::collections::BTreeMap;

use proto::control::hello::{Message, PROTOCOL, True, Welcome};
use proto::host::tasks::Tasks;
use proto::link::tls::{Credentials, Role, server_config};
use proto::link::{Event, Io, KeepAlive, Link, StreamKind, quic, ws};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::raw::RawClient;
use crate::stand::Stand;
use crate::wait::START;

/// Such a csi-cloud.
pub enum HostileCloud {
    /// Over WebSocket.
    Ws(TcpListener, ws::Acceptor),
    /// Over QUIC.
    Quic(quic::Acceptor),
}

impl HostileCloud {
    /// Listens on a free port over the transport of this URL, with the stand's certificate of the
    /// cloud. Returns the URL for edges too.
    ///
    /// # Errors
    /// There is no certificate or no port.
    pub async fn listen(stand: &Stand, transport: &str) -> anyhow::Result<(Self, String)> {
        Self::with(&stand.credentials("cloud", Role::Cloud)?, transport).await
    }

    /// The same with this certificate.
    ///
    /// # Errors
    /// There is no port.
    pub async fn with(
        credentials: &Credentials,
        transport: &str,
    ) -> anyhow::Result<(Self, String)> {
        let keep_alive = KeepAlive::default();
        if transport.starts_with("wss") {
            let acceptor = ws::Acceptor::new(server_config(credentials, ws::ALPN)?, keep_alive);
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let url = format!("wss://{}", listener.local_addr()?);
            return Ok((Self::Ws(listener, acceptor), url));
        }
        let acceptor = quic::Acceptor::bind("127.0.0.1:0".parse()?, credentials, keep_alive)?;
        let url = format!("quic://{}", acceptor.local_addr()?);
        Ok((Self::Quic(acceptor), url))
    }

    /// Takes the next link.
    ///
    /// # Errors
    /// There is none soon.
    pub async fn accept(&self) -> anyhow::Result<Link> {
        let link = async {
            match self {
                Self::Ws(listener, acceptor) => {
                    let (tcp, _) = listener.accept().await?;
                    let greeted = acceptor.greet(Box::new(tcp)).await?;
                    let link = acceptor.accept(greeted).await?;
                    let link = link.link().ok_or_else(|| anyhow::anyhow!("no link"))?.1;
                    anyhow::Ok(Link::from(link))
                }
                Self::Quic(acceptor) => {
                    let incoming = acceptor.accept().await;
                    let incoming = incoming.ok_or_else(|| anyhow::anyhow!("closed"))?;
                    Ok(Link::from(quic::authenticate(incoming).await?.1))
                }
            }
        };
        timeout(START, link).await?
    }

    /// Welcomes an edge.
    ///
    /// # Errors
    /// It says no hello.
    pub async fn welcome(&self) -> anyhow::Result<Link> {
        self.welcome_as("hostile").await
    }

    /// Welcomes an edge as a csi-cloud of this version.
    ///
    /// # Errors
    /// It says no hello.
    pub async fn welcome_as(&self, version: &str) -> anyhow::Result<Link> {
        let mut link = self.accept().await?;
        anyhow::ensure!(matches!(link.next().await, Event::Message(Message::Hello(_))));
        link.send(&Message::Welcome(welcome(version))).await?;
        Ok(link)
    }
}

/// The welcome of a csi-cloud of this version that does nothing beside calls.
pub fn welcome(version: &str) -> Welcome {
    Welcome {
        protocol: PROTOCOL,
        version: version.into(),
        backoff_cap_ms: None,
        scopes: Default::default(),
        publishes_topology: None,
        node_info_every_s: BTreeMap::new(),
        leases: True,
        not_taken: True,
        metadata: false,
        renews: false,
        renew_now: false,
        leader_epoch: None,
        watermark: None,
        keep_alive_ms: None,
    }
}

/// Calls a driver of an edge over its link, which is driven meanwhile.
///
/// # Errors
/// The edge closes the link.
pub async fn caller(link: Link, driver: &str, tasks: &Tasks) -> anyhow::Result<RawClient> {
    RawClient::over(opened(link, tasks).await?, driver).await
}

/// Opens a stream for calls over an edge's link, which is driven meanwhile.
///
/// # Errors
/// The edge closes the link.
pub async fn opened(mut link: Link, tasks: &Tasks) -> anyhow::Result<Io> {
    let opening = link.open(StreamKind::Calls);
    let io = {
        let mut opening = std::pin::pin!(opening);
        loop {
            tokio::select! {
                io = &mut opening => break io?,
                event = link.next() => {
                    anyhow::ensure!(!matches!(event, Event::Closed(_)), "the edge closed the link");
                }
            }
        }
    };
    tasks.spawn_until_stop("link", async move {
        while !matches!(link.next().await, Event::Closed(_)) {}
    });
    Ok(io)
}
