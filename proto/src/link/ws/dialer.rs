//! The edge's side of a WebSocket: TCP or a tunnel, TLS, and the question for a path.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, StatusCode};
use rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, TlsStream};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::ClientRequestBuilder;
use tokio_tungstenite::tungstenite::Error as WsError;
use uuid::Uuid;

use super::check;
use super::metered::Metered;
use super::socket::Socket;
use super::stream::{Ws, config, failed, tls_failed};
use super::unfragmented::Unfragmented;
use crate::link::end::Io;
use crate::link::endpoint::Endpoint;
use crate::link::error::{LinkError, within_handshake};
use crate::link::keep_alive::KeepAlive;
use crate::link::network::NodeNetwork;
use crate::link::steps::{Steps, step};

/// The path under which the edge asks for a bulk stream.
pub(super) const BULK_PATH: &str = "/bulk/";

/// Dials the cloud.
pub struct Dialer {
    /// The cloud's address.
    pub endpoint: Endpoint,
    /// With ALPN `http/1.1`.
    pub tls: Arc<rustls::ClientConfig>,
    /// The keep-alive settings of the link.
    pub keep_alive: KeepAlive,
    /// Connects to the address.
    pub network: NodeNetwork,
}

impl Dialer {
    pub(super) async fn connect(&self, path: &str) -> Result<Ws, LinkError> {
        let stream = self.encrypt(self.reach().await?).await?;
        self.ask(stream, path, None).await?.map_err(|e| failed(&e))
    }

    /// Connects, through a proxy where there is one.
    async fn reach(&self) -> Result<Io, LinkError> {
        let at = self.endpoint.address();
        (self.network.connect)(at.clone()).await.map_err(|e| LinkError::Unreachable(at, e))
    }

    /// Begins TLS.
    async fn encrypt(&self, io: Io) -> Result<Box<TlsStream<Metered>>, LinkError> {
        let host = &self.endpoint.host;
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|_| {
            LinkError::Tls(format!("{host:?} is no name that a certificate can have"))
        })?;
        let tls = TlsConnector::from(self.tls.clone());
        let stream =
            tls.connect(name, Metered::new(io)).await.map_err(|error| tls_failed(&error))?;
        Ok(Box::new(TlsStream::from(stream)))
    }

    /// Asks for a WebSocket at this path, with one more header.
    async fn ask(
        &self,
        stream: Box<TlsStream<Metered>>,
        path: &str,
        more: Option<(HeaderName, String)>,
    ) -> Result<Result<Ws, WsError>, LinkError> {
        let Endpoint { host, port, .. } = &self.endpoint;
        let uri = format!("wss://{host}:{port}{path}");
        let uri = uri.parse().map_err(|_| LinkError::Transport(format!("{uri} is no URL")))?;
        let mut request = ClientRequestBuilder::new(uri);
        if let Some((name, value)) = more {
            request = request.with_header(name.as_str(), value);
        }
        let asked =
            client_async_with_config(request, Unfragmented::new(stream), Some(config())).await;
        Ok(asked.map(|(ws, _)| ws))
    }

    pub(super) async fn bulk(self: Arc<Self>, ticket: Uuid) -> Result<Io, LinkError> {
        let ws = within_handshake(self.connect(&format!("{BULK_PATH}{ticket}"))).await?;
        let (socket, _) = Socket::new(ws, self.keep_alive);
        Ok(Box::new(socket))
    }

    /// Looks how far a dial comes.
    ///
    /// # Errors
    /// The endpoint cannot be reached, TLS fails, or the answer to the question is another than
    /// 404. [`LinkError::Unanswered`] if a step takes longer than `patience`.
    pub(in crate::link) async fn check(
        &self,
        patience: Duration,
        steps: &mut Steps,
    ) -> Result<(), LinkError> {
        let io = step(patience, &mut steps.connected, self.reach()).await?;
        let stream = step(patience, &mut steps.encrypted, self.encrypt(io)).await?;
        // TLS 1.3: the client has finished before the server has seen its certificate.
        let asked = self.ask_no_link(stream, None);
        let answer = step(patience, &mut steps.round_trip, asked).await?;
        steps.time = check::time(&answer);
        steps.large = self.check_large(patience).await.transpose();
        Ok(())
    }

    /// Sends a large message over a connection of its own. Returns `None` if the answer is small.
    async fn check_large(&self, patience: Duration) -> Result<Option<()>, LinkError> {
        let asked = async {
            let stream = self.encrypt(self.reach().await?).await?;
            self.ask_no_link(stream, Some(check::padding())).await
        };
        let answer = step(patience, &mut None, asked).await?;
        Ok(check::is_padded(&answer).then_some(()))
    }

    /// The answer to a question for a path without a link.
    async fn ask_no_link(
        &self,
        stream: Box<TlsStream<Metered>>,
        more: Option<(HeaderName, String)>,
    ) -> Result<HeaderMap, LinkError> {
        match self.ask(stream, check::PATH, more).await? {
            Err(WsError::Http(answer)) if answer.status() == StatusCode::NOT_FOUND => {
                Ok(answer.headers().clone())
            }
            Err(error) => Err(failed(&error)),
            Ok(_) => Err(LinkError::Transport(format!("it makes a link at {}", check::PATH))),
        }
    }
}
