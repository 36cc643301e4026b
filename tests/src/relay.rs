//! A relay on loopback, TCP or UDP, that tests cut: what is connected breaks, and nothing comes through until it is
//! mended. Over UDP nobody is told, as when a path is black-holed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use proto::stop::Tasks;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

/// A relay; it ends when it is dropped.
pub struct Relay {
    url: String,
    whole: watch::Sender<bool>,
    tasks: Tasks,
}

impl Relay {
    /// Relays to the cloud's URL, with the transport that this has.
    ///
    /// # Errors
    /// No port can be had, or the URL has no address in it.
    pub async fn to(url: &str) -> anyhow::Result<Self> {
        let (scheme, target) = url.split_once("://").ok_or_else(|| anyhow::anyhow!("{url} is no URL"))?;
        let (target, whole, tasks) = (target.parse()?, watch::Sender::new(true), Tasks::default());
        let addr = match scheme {
            "quic" => datagrams(target, whole.subscribe(), &tasks).await?,
            _ => connections(target, whole.subscribe(), &tasks).await?,
        };
        Ok(Self { url: format!("{scheme}://{addr}"), whole, tasks })
    }

    /// Where to dial instead.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Breaks all connections; new ones are closed at once. Datagrams are lost.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// Lets new connections, and datagrams, through again.
    pub fn mend(&self) {
        self.whole.send_replace(true);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

async fn connections(
    target: SocketAddr,
    whole: watch::Receiver<bool>,
    tasks: &Tasks,
) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (addr, inner) = (listener.local_addr()?, tasks.clone());
    tasks.spawn_until_stop("relay", async move {
        while let Ok((near, _)) = listener.accept().await {
            if *whole.borrow() {
                inner.spawn_until_stop("relayed", relayed(near, target, whole.clone()));
            }
        }
    });
    Ok(addr)
}

async fn relayed(mut near: TcpStream, target: SocketAddr, mut whole: watch::Receiver<bool>) {
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = whole.wait_for(|whole| !whole) => {}
    }
}

async fn datagrams(
    target: SocketAddr,
    whole: watch::Receiver<bool>,
    tasks: &Tasks,
) -> anyhow::Result<SocketAddr> {
    let near = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
    let (addr, inner) = (near.local_addr()?, tasks.clone());
    tasks.spawn_until_stop("relay", async move {
        let (mut peers, mut buffer) = (HashMap::<SocketAddr, Arc<UdpSocket>>::new(), vec![0; 65_536]);
        loop {
            // An ICMP error of an earlier datagram says nothing about this one.
            let Ok((length, from)) = near.recv_from(&mut buffer).await else { continue };
            if !*whole.borrow() {
                continue;
            }
            let far = match peers.get(&from) {
                Some(far) => far.clone(),
                None => {
                    let Ok(far) = outward(target).await else { continue };
                    let back = answers(near.clone(), far.clone(), from, whole.clone());
                    inner.spawn_until_stop("relayed", back);
                    peers.insert(from, far.clone());
                    far
                }
            };
            let _ = far.send(&buffer[..length]).await;
        }
    });
    Ok(addr)
}

async fn outward(target: SocketAddr) -> std::io::Result<Arc<UdpSocket>> {
    let far = UdpSocket::bind("127.0.0.1:0").await?;
    far.connect(target).await?;
    Ok(Arc::new(far))
}

async fn answers(near: Arc<UdpSocket>, far: Arc<UdpSocket>, to: SocketAddr, whole: watch::Receiver<bool>) {
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok(length) = far.recv(&mut buffer).await else { continue };
        if *whole.borrow() {
            let _ = near.send_to(&buffer[..length], to).await;
        }
    }
}
