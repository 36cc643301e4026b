//! The connection between a socket relay (`csi-cloud relay`) and the csi-cloud that serves.
//!
//! It is a unix socket that only its owner may use, or TLS 1.3 over TCP with certificates of one
//! CA. A relay's certificate is not valid for a node, nor a node's for a relay: neither can play
//! the other.

use std::time::Duration;

use proto::link::tls;
use proto::link::tls::Credentials;
use proto::link::{HANDSHAKE, Io, LinkError};
use proto::names::FrontName;
use proto::names::certificate::Identity;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::relay::address::Address;

/// The mode of the unix socket: only its owner may connect.
pub const MODE: u32 = 0o600;
/// A header of csi-cloud's answers: it is stopping or does not lead, so the next csi-cloud is to
/// get the call.
pub const AGAIN: &str = "edge-csi-again";
/// The application protocol in the TLS handshake.
const ALPN: &[u8] = b"h2";
/// The silence before a TCP keepalive probe, and the time between two probes.
const SILENCE: Duration = Duration::from_secs(5);
/// Unanswered probes after which the connection is dead.
const PROBES: u32 = 2;
/// The time for which sent bytes may stay unacknowledged; longer than all probes take.
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// Connects to csi-cloud with a relay's credentials.
///
/// # Errors
/// csi-cloud cannot be reached or authenticated, or credentials are missing.
pub async fn dial(address: &Address, credentials: Option<&Credentials>) -> Result<Io, LinkError> {
    let dialing = async {
        match address {
            Address::Unix(path) => {
                let connected = UnixStream::connect(path).await;
                let stream = connected.map_err(|error| unreachable(address, error))?;
                Ok(Box::new(stream) as Io)
            }
            Address::Https { host, port } => dial_tls(address, host, *port, credentials).await,
        }
    };
    tokio::time::timeout(HANDSHAKE, dialing).await.unwrap_or(Err(LinkError::TimedOut))
}

async fn dial_tls(
    address: &Address,
    host: &str,
    port: u16,
    credentials: Option<&Credentials>,
) -> Result<Io, LinkError> {
    let missing = || LinkError::Tls("a front needs --ca, --cert and --key for https".into());
    let config = tls::client_config(credentials.ok_or_else(missing)?, ALPN)?;
    let connected = TcpStream::connect(format!("{host}:{port}")).await;
    let tcp = connected.map_err(|error| unreachable(address, error))?;
    detect_dead_peer(&tcp).map_err(|error| unreachable(address, error))?;
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
        .map_err(|_| LinkError::Tls(format!("{host:?} is no name that a certificate can have")))?;
    let secured = TlsConnector::from(config).connect(name, tcp).await;
    Ok(Box::new(secured.map_err(|error| LinkError::Tls(tls::explain_io(&error)))?))
}

fn unreachable(address: &Address, error: std::io::Error) -> LinkError {
    LinkError::Unreachable(address.to_string(), error)
}

/// Authenticates relays' TLS connections at csi-cloud.
#[derive(Clone)]
pub struct TlsAcceptor(tokio_rustls::TlsAcceptor);

impl TlsAcceptor {
    /// Shows csi-cloud's certificate.
    ///
    /// # Errors
    /// The CA cannot verify clients; loading the credentials has ruled that out.
    pub fn new(credentials: &Credentials) -> Result<Self, LinkError> {
        Ok(Self(tls::server_config(credentials, ALPN)?.into()))
    }

    /// Authenticates a connection.
    ///
    /// # Errors
    /// The peer has no relay's certificate, is too slow, or speaks another protocol.
    pub async fn accept(&self, tcp: TcpStream) -> Result<(Identity<FrontName>, Io), LinkError> {
        let unusable = |error| LinkError::Unreachable("the socket relay".into(), error);
        detect_dead_peer(&tcp).map_err(unusable)?;
        let accepted = tokio::time::timeout(HANDSHAKE, self.0.accept(tcp)).await;
        let stream = accepted.map_err(|_| LinkError::TimedOut)?;
        let stream = stream.map_err(|error| LinkError::Tls(tls::explain_io(&error)))?;
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let none = || LinkError::Tls("it showed no certificate".into());
        let relay = Identity::of_front(certificates.first().ok_or_else(none)?);
        let relay = relay
            .map_err(|error| LinkError::Tls(format!("it may not hold fronts here: {error}")))?;
        Ok((relay, Box::new(stream)))
    }
}

/// Lets the kernel notice a peer that vanished; a unix socket's peer always closes it.
fn detect_dead_peer(tcp: &TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    let keepalive =
        TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE).with_retries(PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))
}
