//! Joining: `GET /join` on a connection without a client certificate, one question and its answer.
//!
//! It shares the listener of links, and is told apart by its ALPN before any certificate is asked
//! for.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, TlsStream};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{ClientRequestBuilder, Message as Frame};

use super::metered::Metered;
use super::stream::{Ws, config, failed, tls_failed};
use super::unfragmented::Unfragmented;
use crate::control::join::{Answer, Join, MAX_BYTES};
use crate::link::endpoint::Endpoint;
use crate::link::error::{LinkError, within_handshake};
use crate::link::network::NodeNetwork;
use crate::link::tls::{Pin, joining_config};

/// The application protocol in the TLS handshake of an edge that joins.
pub const ALPN: &[u8] = b"edge-csi-join";
/// The path of the upgrade.
pub(super) const PATH: &str = "/join";
/// The time limit for the answer. The cloud may ask Kubernetes about a token first.
const ANSWER: Duration = Duration::from_secs(30);

/// An edge that asks to join, at the cloud.
pub struct Asker {
    /// Its question. Nothing in it is verified.
    pub join: Join,
    ws: Ws,
}

impl Asker {
    /// Reads the question.
    ///
    /// # Errors
    /// The edge sends no text or closes the connection, or its question cannot be read.
    pub(super) async fn read(mut ws: Ws) -> Result<Self, LinkError> {
        let join = Join::decode(next_text(&mut ws).await?.as_bytes())?;
        Ok(Self { join, ws })
    }

    /// Answers, and closes the connection.
    ///
    /// # Errors
    /// The edge is gone or too slow; it may not have the answer.
    pub async fn reply(mut self, answer: &Answer) -> Result<(), LinkError> {
        let text = answer.encode()?;
        within_handshake(async {
            self.ws.send(Frame::text(text)).await.map_err(|e| failed(&e))?;
            let _ = self.ws.close(None).await;
            // A connection that is dropped with unread bytes takes the answer with it.
            while let Some(Ok(_)) = self.ws.next().await {}
            Ok(())
        })
        .await
    }
}

/// The settings of the WebSocket: as for a link, with smaller messages.
pub(super) fn limits() -> WebSocketConfig {
    config().max_message_size(Some(MAX_BYTES)).max_frame_size(Some(MAX_BYTES))
}

/// Asks the cloud at this endpoint for a certificate. It trusts only the CA with the hash `pin`,
/// and sends nothing before TLS has verified the cloud's certificate.
///
/// # Errors
/// The endpoint is not a WebSocket's, cannot be reached, is not who it should be, or takes no
/// tokens; the text says what to do.
pub async fn ask(
    endpoint: &Endpoint,
    pin: Pin,
    join: &Join,
    network: &NodeNetwork,
) -> Result<Answer, LinkError> {
    let text = join.encode()?;
    let mut ws = within_handshake(upgraded(endpoint, pin, network)).await?;
    let answered = async {
        ws.send(Frame::text(text)).await.map_err(|e| failed(&e))?;
        next_text(&mut ws).await
    };
    let answer = tokio::time::timeout(ANSWER, answered).await;
    let answer = answer.map_err(|_| LinkError::Unanswered(ANSWER))??;
    let _ = within_handshake(async { ws.close(None).await.map_err(|e| failed(&e)) }).await;
    Ok(Answer::decode(answer.as_bytes())?)
}

async fn upgraded(endpoint: &Endpoint, pin: Pin, network: &NodeNetwork) -> Result<Ws, LinkError> {
    let Endpoint { transport, host, port } = endpoint;
    if !transport.takes_tokens() {
        let why = format!("{endpoint} takes no tokens; name a wss:// endpoint of csi-cloud");
        return Err(LinkError::NotJoined(why));
    }
    let at = endpoint.address();
    let io = (network.connect)(at.clone()).await.map_err(|e| LinkError::Unreachable(at, e))?;
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
        .map_err(|_| LinkError::Tls(format!("{host:?} is no name that a certificate can have")))?;
    let tls = TlsConnector::from(joining_config(pin, ALPN)?);
    let stream = tls.connect(name, Metered::new(io)).await.map_err(|error| tls_failed(&error))?;
    if stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        return Err(LinkError::Tls("it takes no tokens: is it csi-cloud, and new enough?".into()));
    }
    let uri = format!("wss://{host}:{port}{PATH}");
    let uri = uri.parse().map_err(|_| LinkError::Transport(format!("{uri} is no URL")))?;
    let request = ClientRequestBuilder::new(uri);
    let stream = Unfragmented::new(Box::new(TlsStream::from(stream)));
    let (ws, _) =
        client_async_with_config(request, stream, Some(limits())).await.map_err(|e| failed(&e))?;
    Ok(ws)
}

/// The next text message.
async fn next_text(ws: &mut Ws) -> Result<String, LinkError> {
    loop {
        match ws.next().await {
            Some(Ok(Frame::Text(text))) => return Ok(text.as_str().to_owned()),
            Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => {}
            Some(Ok(_)) => {
                return Err(LinkError::Transport("it did not send a message of joining".into()));
            }
            Some(Err(error)) => return Err(failed(&error)),
            None => return Err(LinkError::Closed("it closed the connection".into())),
        }
    }
}
