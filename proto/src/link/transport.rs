//! The dispatch over transports: `dial` and `check` have one arm for each, and a `Link` is an end
//! of any.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::timeout;

use super::end::{End, Event, Opening, StreamKind};
use super::endpoint::{Endpoint, Transport};
use super::error::{LinkError, WRITE};
use super::keep_alive::KeepAlive;
use super::network::NodeNetwork;
use super::steps::Steps;
use super::tls::{Credentials, Seen, checking_config, client_config};
use super::{quic, ws};
use crate::control::hello::Message;

/// Dials the cloud over the endpoint's transport. TCP goes through the proxy where there is one.
///
/// # Errors
/// The cloud cannot be reached, is not who it should be, or does not take our certificate.
pub async fn dial(
    endpoint: &Endpoint,
    credentials: &Credentials,
    keep_alive: KeepAlive,
    network: &NodeNetwork,
) -> Result<Link, LinkError> {
    match endpoint.transport {
        Transport::Ws => {
            let tls = client_config(credentials, ws::ALPN)?;
            let endpoint = endpoint.clone();
            let network = network.clone();
            let dialer = ws::Dialer { endpoint, tls, keep_alive, network };
            Ok(ws::dial(Arc::new(dialer)).await?.into())
        }
        Transport::Quic => {
            let tls = client_config(credentials, quic::ALPN)?;
            Ok(quic::dial(endpoint, tls, keep_alive, network).await?.into())
        }
    }
}

/// An endpoint that is looked at, and as whom.
pub(super) struct Checked<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) credentials: &'a Credentials,
    /// Gets the certificate that the other side shows.
    pub(super) seen: &'a Seen,
    pub(super) network: &'a NodeNetwork,
}

/// Looks how far a dial comes, each step at most this long.
///
/// # Errors
/// The step that failed.
pub(super) async fn check(
    checked: Checked<'_>,
    patience: Duration,
    steps: &mut Steps,
) -> Result<(), LinkError> {
    let Checked { endpoint, credentials, seen, network } = checked;
    match endpoint.transport {
        Transport::Ws => {
            let tls = checking_config(credentials, ws::ALPN, seen)?;
            let network = network.clone();
            let keep_alive = KeepAlive::default();
            let dialer = ws::Dialer { endpoint: endpoint.clone(), tls, keep_alive, network };
            dialer.check(patience, steps).await
        }
        Transport::Quic => {
            let tls = checking_config(credentials, quic::ALPN, seen)?;
            quic::check::check((endpoint, network), tls, patience, steps).await
        }
    }
}

/// One end of a link over any transport. Call [`Link::next`] again and again: it also keeps the
/// link alive.
pub struct Link(Box<dyn End>);

impl<T: End + 'static> From<T> for Link {
    fn from(end: T) -> Self {
        Self(Box::new(end))
    }
}

impl Link {
    /// The transport, as the scheme of an endpoint's URL.
    pub fn transport(&self) -> &'static str {
        self.0.transport().scheme()
    }

    /// When the other side's certificate ends; none if that cannot be read.
    pub fn expires(&self) -> Option<SystemTime> {
        self.0.expires()
    }

    /// At the cloud: true if it opens another stream for calls when one has ended.
    pub fn reopens_calls(&self) -> bool {
        self.0.reopens_calls()
    }

    /// The interval of its signs of life.
    pub fn keep_alive(&self) -> KeepAlive {
        self.0.keep_alive()
    }

    /// At the edge: changes the interval to what the cloud wants.
    pub fn set_keep_alive(&mut self, keep_alive: KeepAlive) {
        self.0.set_keep_alive(keep_alive);
    }

    /// At the edge, each interval: true if nothing came since the last look, so that the cloud is
    /// to be asked. False where the transport asks on its own.
    pub fn is_silent(&mut self) -> bool {
        self.0.is_silent()
    }

    /// The next event. May be dropped and called again without loss.
    pub async fn next(&mut self) -> Event {
        self.0.next().await
    }

    /// Sends a control message; it goes out while [`Link::next`] is called. Dropped before its end,
    /// it leaves a link that can only be closed.
    ///
    /// # Errors
    /// The message is too large, the link is gone, or the other side does not take it in time.
    pub async fn send(&mut self, message: &Message) -> Result<(), LinkError> {
        let text = message.encode()?;
        timeout(WRITE, self.0.send(text)).await.unwrap_or(Err(LinkError::NotRead))
    }

    /// At the cloud: opens a byte stream. The future does not borrow the link, and ends only if
    /// [`Link::next`] goes on being called.
    pub fn open(&mut self, kind: StreamKind) -> Opening {
        self.0.open(kind)
    }

    /// Closes the link and its byte streams, and tells the other side why.
    pub async fn close(self, reason: &str) {
        self.0.close(reason).await;
    }
}
