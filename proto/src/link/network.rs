//! The network of a node, as its links use it: names, connects, and the proxy in the way.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};

use super::addresses::{Addresses, NotReached};
use super::end::{Connect, Io};
use super::endpoint::Transport;
use super::routes::Routes;

/// The time limit for connecting over TCP: less than for a handshake, so that a refusal by one
/// address is told though another one is silent.
const CONNECT: Duration = Duration::from_secs(8);
/// The bytes of a segment that pass every tunnel: IPv6's smallest MTU, 1,280, less its headers and
/// TCP's, is 1,220.
const SEGMENT_BYTES: u32 = 1200;
/// What the kernel may hold of a connection beyond what the network took, in bytes.
const UNSENT: u32 = 128 * 1024;

/// How a node reaches the cloud. Clones remember together which address of a name worked last.
#[derive(Clone)]
pub struct NodeNetwork {
    pub(super) addresses: Addresses,
    /// Connects to `host:port`, for what runs over TCP.
    pub(super) connect: Connect,
    /// It is the system's, so its routes can change.
    pub(super) has_routes: bool,
}

/// What runs over TCP goes over these connections, such as those of a simulated network.
impl From<Connect> for NodeNetwork {
    fn from(connect: Connect) -> Self {
        Self { addresses: Addresses::system(), connect, has_routes: false }
    }
}

impl NodeNetwork {
    /// Dials directly.
    pub fn direct(addresses: Addresses) -> Self {
        let racing = addresses.clone();
        let connect: Connect = Arc::new(move |at| {
            let addresses = racing.clone();
            Box::pin(async move {
                Ok(Box::new(connect_tcp(&addresses, &at, addresses.is_narrow(&at)).await?) as Io)
            })
        });
        Self { addresses, connect, has_routes: true }
    }

    /// The same network with these addresses of names.
    #[must_use]
    pub fn with_addresses(self, addresses: Addresses) -> Self {
        Self { addresses, ..self }
    }

    /// Looks at the routes to the cloud, to see later that they have changed.
    pub fn routes(&self) -> Routes {
        if self.has_routes { Routes::to(self.addresses.worked_last()) } else { Routes::none() }
    }

    /// Resolves the addresses of `host:port`, in the order in which they are dialed.
    ///
    /// # Errors
    /// The name cannot be resolved, or has no address.
    pub async fn resolve(&self, at: &str) -> io::Result<Vec<SocketAddr>> {
        self.addresses.resolve(at).await
    }
}

/// Prepares a TCP connection for a link.
pub fn tune(tcp: &TcpStream) {
    // Otherwise HTTP/2's small writes would wait for delayed acknowledgements.
    let _ = tcp.set_nodelay(true);
    // The default, cubic, takes every lost packet for a full queue: with 1 % loss at 100 ms it
    // sends 1.2 Mbit/s on any path. A kernel without BBR keeps its default.
    let socket = SockRef::from(tcp);
    let _ = socket.set_tcp_congestion(b"bbr");
    // Otherwise the kernel holds up to 4 MiB for a peer that reads nothing, and takes more of it
    // for so long that the peer is given up late.
    let _ = socket.set_tcp_notsent_lowat(UNSENT);
}

/// Connects to the first address of `at` that answers, and prepares the connection for a link. A
/// narrow one has small segments both ways.
///
/// # Errors
/// The name cannot be resolved, or no address of it takes the connection.
pub(super) async fn connect_tcp(
    addresses: &Addresses,
    at: &str,
    is_narrow: bool,
) -> io::Result<TcpStream> {
    let raced = addresses.race((Transport::Ws, at), CONNECT, |addr| dial_tcp(addr, is_narrow));
    let raced = raced.await;
    let tcp = raced.map_err(|error| match error {
        NotReached::Unresolved(error) | NotReached::Failed(error) => error,
        NotReached::Silent => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {CONNECT:?}"))
        }
    })?;
    tune(&tcp);
    Ok(tcp)
}

async fn dial_tcp(addr: SocketAddr, is_narrow: bool) -> io::Result<TcpStream> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if is_narrow {
        // Before the connect, because the SYN tells it to the other side.
        SockRef::from(&socket).set_tcp_mss(SEGMENT_BYTES)?;
    }
    socket.connect(addr).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_is_tuned_as_far_as_the_kernel_allows() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tune(&tcp);
        assert!(tcp.nodelay().unwrap());
        assert_eq!(SockRef::from(&tcp).tcp_notsent_lowat().unwrap(), UNSENT);
        // The algorithms that users other than root may choose.
        let allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
        let allowed = std::fs::read_to_string(allowed).unwrap_or_default();
        if allowed.split_whitespace().any(|name| name == "bbr") {
            assert!(SockRef::from(&tcp).tcp_congestion().unwrap().starts_with(b"bbr"));
        }
    }

    #[tokio::test]
    async fn a_narrow_connection_has_small_segments_both_ways() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let addresses = Addresses::system();
        for is_narrow in [false, true] {
            let tcp = connect_tcp(&addresses, &at, is_narrow).await.unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            for end in [SockRef::from(&tcp), SockRef::from(&accepted)] {
                assert_eq!(end.tcp_mss().unwrap() <= SEGMENT_BYTES, is_narrow);
            }
        }
    }
}
