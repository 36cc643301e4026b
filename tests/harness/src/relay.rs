//! A relay on loopback, TCP or UDP, that tests cut, move to another port, or make swallow bytes.
//! Over UDP neither end is told of a cut, as with a black-holed path.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use proto::host::tasks::Tasks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

/// A relay; it ends when it is dropped.
pub struct Relay {
    url: String,
    state: watch::Sender<RelayState>,
    tasks: Tasks,
}

/// How a relay treats bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Pass,
    Cut,
    Swallow,
}

#[derive(Clone, Copy, Default)]
struct RelayState {
    mode: Mode,
    /// Datagrams go out from another port when this is another number.
    port: u32,
}

type States = watch::Receiver<RelayState>;

impl Relay {
    /// Relays to the cloud's URL, with the transport that this has.
    ///
    /// # Errors
    /// No port can be had, or the URL has no address in it.
    pub async fn to(url: &str) -> anyhow::Result<Self> {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)), url).await
    }

    /// The same at an address of this machine.
    ///
    /// # Errors
    /// The address cannot be had, or the URL has no address in it.
    pub async fn at(listen: SocketAddr, url: &str) -> anyhow::Result<Self> {
        let state = watch::Sender::default();
        let tasks = Tasks::default();
        let url = begin(listen, url, state.subscribe(), &tasks).await?;
        Ok(Self { url, state, tasks })
    }

    /// Relays to one more URL, at one more address of this machine. It is cut and mended with the
    /// first. Returns where to dial instead.
    ///
    /// # Errors
    /// As for [`Relay::at`].
    pub async fn also(&self, listen: SocketAddr, url: &str) -> anyhow::Result<String> {
        begin(listen, url, self.state.subscribe(), &self.tasks).await
    }

    /// Where to dial instead.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Breaks all connections; new ones are closed at once. Datagrams are lost.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.mode = Mode::Cut);
    }

    /// Leaves connections open and lets nothing through, new ones too. Datagrams are lost.
    pub fn swallow(&self) {
        self.state.send_modify(|state| state.mode = Mode::Swallow);
    }

    /// Lets connections, what they have waiting, and datagrams through again.
    pub fn mend(&self) {
        self.state.send_modify(|state| state.mode = Mode::Pass);
    }

    /// Sends datagrams from another port from now on; datagrams to the old one are lost.
    pub fn move_port(&self) {
        self.state.send_modify(|state| state.port += 1);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

/// Begins to relay to a URL, and returns the one to dial instead.
async fn begin(
    listen: SocketAddr,
    url: &str,
    states: States,
    tasks: &Tasks,
) -> anyhow::Result<String> {
    let (scheme, target) =
        url.split_once("://").ok_or_else(|| anyhow::anyhow!("{url} is no URL"))?;
    let target = target.parse()?;
    let addr = match scheme {
        "quic" => datagrams(listen, target, states, tasks).await?,
        _ => connections(listen, target, states, tasks).await?,
    };
    Ok(format!("{scheme}://{addr}"))
}

async fn connections(
    listen: SocketAddr,
    target: SocketAddr,
    states: States,
    tasks: &Tasks,
) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await?;
    let addr = listener.local_addr()?;
    let inner = tasks.clone();
    tasks.spawn_until_stop("relay", async move {
        while let Ok((near, _)) = listener.accept().await {
            if states.borrow().mode != Mode::Cut {
                inner.spawn_until_stop("relayed", relayed(near, target, states.clone()));
            }
        }
    });
    Ok(addr)
}

async fn relayed(near: TcpStream, target: SocketAddr, mut states: States) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    let up = copy(near_in, far_out, states.clone());
    let down = copy(far_in, near_out, states.clone());
    let copied = async { tokio::join!(up, down) };
    tokio::select! {
        _ = copied => {}
        _ = states.wait_for(|state| state.mode == Mode::Cut) => {}
    }
}

/// Copies one direction, and shuts the writer down at its end.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut states: States) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if states.wait_for(|state| state.mode != Mode::Swallow).await.is_err()
            || to.write_all(&bytes[..length]).await.is_err()
        {
            return;
        }
    }
}

async fn datagrams(
    listen: SocketAddr,
    target: SocketAddr,
    states: States,
    tasks: &Tasks,
) -> anyhow::Result<SocketAddr> {
    let near = Arc::new(UdpSocket::bind(listen).await?);
    let addr = near.local_addr()?;
    let inner = tasks.clone();
    tasks.spawn_until_stop("relay", async move {
        let mut peers = HashMap::new();
        let mut buffer = vec![0; 65_536];
        loop {
            // An ICMP error of an earlier datagram does not concern this one.
            let Ok((length, from)) = near.recv_from(&mut buffer).await else { continue };
            let RelayState { mode, port } = *states.borrow();
            if mode != Mode::Pass {
                continue;
            }
            let far = match peers.get(&from) {
                Some((at, far)) if *at == port => Arc::clone(far),
                _ => {
                    let Ok(far) = outward(target).await else { continue };
                    let back = answers(near.clone(), far.clone(), from, states.clone(), port);
                    inner.spawn_until_stop("relayed", back);
                    peers.insert(from, (port, far.clone()));
                    far
                }
            };
            let _ = far.send(&buffer[..length]).await;
        }
    });
    Ok(addr)
}

async fn outward(target: SocketAddr) -> std::io::Result<Arc<UdpSocket>> {
    let far = UdpSocket::bind("0.0.0.0:0").await?;
    far.connect(target).await?;
    Ok(Arc::new(far))
}

/// Copies answers until the port changes.
async fn answers(
    near: Arc<UdpSocket>,
    far: Arc<UdpSocket>,
    to: SocketAddr,
    states: States,
    port: u32,
) {
    let mut buffer = vec![0; 65_536];
    let mut moves = states.clone();
    loop {
        let received = tokio::select! {
            received = far.recv(&mut buffer) => received,
            _ = moves.wait_for(|state| state.port != port) => return,
        };
        let Ok(length) = received else { continue };
        if states.borrow().mode == Mode::Pass {
            let _ = near.send_to(&buffer[..length], to).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_more_address_is_cut_with_the_first() -> anyhow::Result<()> {
        let far = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("tcp://{}", far.local_addr()?);
        let relay = Relay::to(&url).await?;
        let other = relay.also(SocketAddr::from(([127, 0, 0, 1], 0)), &url).await?;
        assert_ne!(other, relay.url());
        let mut near = TcpStream::connect(other.trim_start_matches("tcp://")).await?;
        near.write_all(b"call").await?;
        let (mut accepted, _) = far.accept().await?;
        let mut bytes = [0; 4];
        accepted.read_exact(&mut bytes).await?;
        assert_eq!(&bytes, b"call");
        relay.cut();
        assert_eq!(near.read(&mut bytes).await?, 0, "it is open");
        Ok(())
    }

    #[tokio::test]
    async fn a_moved_relay_comes_from_another_port_and_answers_find_back() -> anyhow::Result<()> {
        let cloud = UdpSocket::bind("127.0.0.1:0").await?;
        let relay = Relay::to(&format!("quic://{}", cloud.local_addr()?)).await?;
        let edge = UdpSocket::bind("127.0.0.1:0").await?;
        edge.connect(relay.url().trim_start_matches("quic://")).await?;
        let mut ports = std::collections::HashSet::new();
        let mut bytes = [0; 8];
        for _ in 0..3 {
            edge.send(b"call").await?;
            let (_, from) = cloud.recv_from(&mut bytes).await?;
            assert!(ports.insert(from.port()), "it did not move");
            cloud.send_to(b"answer", from).await?;
            let length = edge.recv(&mut bytes).await?;
            assert_eq!(&bytes[..length], b"answer");
            relay.move_port();
        }
        Ok(())
    }
}
