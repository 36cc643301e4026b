//! An edge over QUIC that lets csi-cloud send no more than it once allowed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use proto::control::hello::Message;
use proto::link::endpoint::Endpoint;
use proto::link::quic;
use proto::link::tls::{Credentials, client_config};

/// The credit of an edge that reads nothing from the start on, in bytes.
pub const AT_WELCOME: u32 = 0;
/// The credit of an edge that reads its welcome and little more, in bytes.
pub const AFTER_WELCOME: u32 = 400;

/// The connection of such an edge. It keeps its connection alive by itself.
pub struct NoCredit {
    connection: quinn::Connection,
    send: quinn::SendStream,
    _unread: quinn::RecvStream,
    _endpoint: quinn::Endpoint,
}

impl NoCredit {
    /// Dials with so many bytes of credit, and sends the hello.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn dial(
        url: &str,
        credentials: &Credentials,
        credit: u32,
        hello: &Message,
    ) -> anyhow::Result<Self> {
        let tls = client_config(credentials, quic::ALPN)?;
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls)?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        let mut transport = quinn::TransportConfig::default();
        transport.stream_receive_window(credit.into());
        transport.keep_alive_interval(Some(Duration::from_secs(2)));
        config.transport_config(Arc::new(transport));
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse()?)?;
        let Endpoint { host, port, .. } = url.parse()?;
        let at = format!("{host}:{port}").parse().context("csi-cloud listens at an address")?;
        let connection = endpoint.connect_with(config, at, &host)?.await?;
        let (send, unread) = connection.open_bi().await?;
        let mut edge = Self { connection, send, _unread: unread, _endpoint: endpoint };
        edge.send(hello).await?;
        Ok(edge)
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn send(&mut self, message: &Message) -> anyhow::Result<()> {
        let text = message.encode()?;
        self.send.write_all(&u32::try_from(text.len())?.to_be_bytes()).await?;
        Ok(self.send.write_all(text.as_bytes()).await?)
    }

    /// Ends when csi-cloud has closed the connection.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }
}
