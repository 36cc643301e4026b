//! Links over WebSocket whose control messages are seen and sent as text, byte for byte.

use anyhow::{Context, bail};
use futures_util::{SinkExt, StreamExt};
use harness::stand::Stand;
use harness::wait::START;
use harness::world::NODE;
use proto::link::tls::{Role, client_config, server_config};
use proto::link::ws;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_tungstenite::{WebSocketStream, accept_async, client_async, tungstenite};

/// One end of such a link.
pub(super) struct RawLink(WebSocketStream<TlsStream<TcpStream>>);

/// Where the cloud's end listens.
pub(super) struct RawCloud {
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl RawCloud {
    /// A listener with the stand's certificate of the cloud, and its URL for edges.
    pub(super) async fn listen(stand: &Stand) -> anyhow::Result<(Self, String)> {
        let tls = server_config(&stand.credentials("cloud", Role::Cloud)?, ws::ALPN)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("wss://{}", listener.local_addr()?);
        Ok((Self { listener, tls: TlsAcceptor::from(tls) }, url))
    }

    /// The next link.
    pub(super) async fn accept(&self) -> anyhow::Result<RawLink> {
        let accepting = async {
            let (tcp, _) = self.listener.accept().await?;
            let tls = self.tls.accept(tcp).await?;
            anyhow::Ok(RawLink(accept_async(TlsStream::from(tls)).await?))
        };
        tokio::time::timeout(START, accepting).await.context("no edge dials")?
    }
}

impl RawLink {
    /// Dials a csi-cloud as [`NODE`].
    pub(super) async fn dial(stand: &Stand, url: &str) -> anyhow::Result<Self> {
        let at = url.trim_start_matches("wss://");
        let tls = client_config(&stand.credentials(NODE, Role::Node)?, ws::ALPN)?;
        let tcp = TcpStream::connect(at).await?;
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1")?;
        let tls = TlsStream::from(TlsConnector::from(tls).connect(name, tcp).await?);
        Ok(Self(client_async(format!("wss://{at}/link"), tls).await?.0))
    }

    /// Sends a control message.
    pub(super) async fn send(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(self.0.send(tungstenite::Message::text(text)).await?)
    }

    /// The next control message.
    pub(super) async fn next(&mut self) -> anyhow::Result<String> {
        let reading = async {
            while let Some(message) = self.0.next().await {
                match message? {
                    tungstenite::Message::Text(text) => return Ok(text.to_string()),
                    tungstenite::Message::Close(frame) => bail!("it was closed: {frame:?}"),
                    _ => {}
                }
            }
            bail!("it ended")
        };
        tokio::time::timeout(START, reading).await.context("nothing is said")?
    }
}
