//! The connection between a socket relay (`csi-cloud front`) and the csi-cloud that serves.
//!
//! It is a unix socket that only its owner may use, or TLS 1.3 over TCP with certificates of one CA
//! on both sides. The certificates of fronts and nodes differ, so neither can play the other.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::link::tls;
use crate::link::tls::Credentials;
use crate::link::{HANDSHAKE, Io, LinkError};
use crate::names::{FrontName, front_of};

/// The application protocol in the TLS handshake.
const ALPN: &[u8] = b"h2";
/// Only the owner may use the unix socket.
pub const MODE: u32 = 0o600;
/// A header of csi-cloud's answers to a relay: csi-cloud is stopping and did not carry out the
/// call. The relay sends it to the next csi-cloud.
pub const AGAIN: &str = "edge-csi-again";
/// The time of silence before the kernel sends a keep-alive probe, and between two probes.
const SILENCE: Duration = Duration::from_secs(5);
/// How long sent data may stay unacknowledged.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// How many probes may stay unanswered.
const PROBES: u32 = 2;

/// The address of csi-cloud: `unix:PATH` or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the same host, at this path.
    Unix(PathBuf),
    /// On this or another host, over TLS.
    Https {
        /// A host name or an address; an IPv6 address is in brackets.
        host: String,
        /// The TCP port; 0, for a listener, is any that is free.
        port: u16,
    },
}

/// A text is not an address of csi-cloud.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no place of csi-cloud for a front; use unix:PATH or https://HOST:PORT")]
pub struct NoPlace(String);

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let none = || NoPlace(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(none()) } else { Ok(Self::Unix(path.into())) };
        }
        let uri: Uri = text.parse().map_err(|_| none())?;
        let authority =
            uri.authority().filter(|a| !a.as_str().contains('@') && !a.host().is_empty());
        let (authority, port) =
            authority.and_then(|a| Some((a, a.port_u16()?))).ok_or_else(none)?;
        let bare = uri.path_and_query().is_none_or(|path| path == "/");
        if uri.scheme_str() != Some("https") || !bare {
            return Err(none());
        }
        Ok(Self::Https { host: authority.host().to_owned(), port })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Https { host, port } => write!(f, "https://{host}:{port}"),
        }
    }
}

/// Connects to csi-cloud with a front's credentials.
///
/// # Errors
/// It cannot be reached, has a wrong certificate, or needs credentials that are missing.
pub async fn dial(place: &Place, credentials: Option<&Credentials>) -> Result<Io, LinkError> {
    let unreachable = |error| LinkError::Unreachable(place.to_string(), error);
    let dialing = async {
        match place {
            Place::Unix(path) => {
                Ok(Box::new(UnixStream::connect(path).await.map_err(unreachable)?) as Io)
            }
            Place::Https { host, port } => {
                let none =
                    || LinkError::Tls("a front needs --ca, --cert and --key for https".into());
                let config = tls::client_config(credentials.ok_or_else(none)?, ALPN)?;
                let tcp =
                    TcpStream::connect(format!("{host}:{port}")).await.map_err(unreachable)?;
                watch(&tcp).map_err(unreachable)?;
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
                let name = name.map_err(|_| {
                    LinkError::Tls(format!("{host:?} is no name that a certificate can have"))
                })?;
                let connected = TlsConnector::from(config).connect(name, tcp).await;
                Ok(Box::new(connected.map_err(|error| LinkError::Tls(tls::explain_io(&error)))?)
                    as Io)
            }
        }
    };
    tokio::time::timeout(HANDSHAKE, dialing).await.unwrap_or(Err(LinkError::TimedOut))
}

/// Accepts connections of socket relays at csi-cloud.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// An acceptor with csi-cloud's certificate.
    ///
    /// # Errors
    /// The CA cannot verify clients; [`Credentials::load`] rules that out.
    pub fn new(credentials: &Credentials) -> Result<Self, LinkError> {
        Ok(Self(tls::server_config(credentials, ALPN)?.into()))
    }

    /// Authenticates a connection.
    ///
    /// # Errors
    /// The peer has no front's certificate, is too slow, or does not speak TLS.
    pub async fn accept(&self, tcp: TcpStream) -> Result<(FrontName, Io), LinkError> {
        let unusable = |error| LinkError::Unreachable("the holder".into(), error);
        watch(&tcp).map_err(unusable)?;
        let accepted = tokio::time::timeout(HANDSHAKE, self.0.accept(tcp)).await;
        let stream = accepted.map_err(|_| LinkError::TimedOut)?;
        let stream = stream.map_err(|error| LinkError::Tls(tls::explain_io(&error)))?;
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let none = || LinkError::Tls("it showed no certificate".into());
        let front = front_of(certificates.first().ok_or_else(none)?);
        let front = front
            .map_err(|error| LinkError::Tls(format!("it may not hold fronts here: {error}")))?;
        Ok((front, Box::new(stream)))
    }
}

/// Lets the kernel find a peer that is gone without closing. A unix socket always closes.
fn watch(tcp: &TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    let keepalive =
        TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE).with_retries(PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_back_and_other_text_is_refused() {
        for text in ["unix:/run/x.sock", "https://cloud.example:7444", "https://[::1]:0"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        assert_eq!("unix:///run/x".parse::<Place>().unwrap(), Place::Unix("/run/x".into()));
        for text in
            ["", "unix:", "/run/x", "http://h:1", "https://h", "https://u@h:1", "https://h:1/x"]
        {
            let error = text.parse::<Place>().unwrap_err().to_string();
            assert!(error.contains("unix:PATH"), "{text}: {error}");
        }
    }
}
