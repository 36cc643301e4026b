//! Floods of connections from many loopback addresses, as strangers on the network make them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proto::host::tasks::Tasks;
use proto::link::{Connect, Io};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

/// The pause after a connection that was closed, or not made.
const PAUSE: Duration = Duration::from_secs(1);
/// The time between two bytes of a slow sender.
const DRIP: Duration = Duration::from_secs(1);
/// The first bytes of a TLS record that holds a ClientHello.
const HELLO: [u8; 6] = [0x16, 3, 1, 2, 0, 1];

/// What each connection of a flood sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// Nothing.
    Nothing,
    /// The beginning of a ClientHello, a byte each second.
    Slowly,
}

/// Open connections. Each that is closed is made again soon. They end when this is dropped.
pub struct Flood {
    tasks: Tasks,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    open: AtomicUsize,
    made: AtomicUsize,
}

impl Flood {
    /// Keeps `each` connections of each of so many `addresses` open.
    pub fn new(target: SocketAddr, addresses: u32, each: usize, sends: Sends) -> Self {
        let flood = Self { tasks: Tasks::default(), counts: Arc::default() };
        for number in 0..addresses {
            for _ in 0..each {
                let counts = flood.counts.clone();
                let keeping = keep(target, address(number), sends, counts);
                flood.tasks.spawn_until_stop("flood", keeping);
            }
        }
        flood
    }

    /// The connections that are open.
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// The connections made so far.
    pub fn made(&self) -> usize {
        self.counts.made.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

/// A loopback address other than 127.0.0.x, by its number.
pub fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + number)
}

/// Reaches the cloud from this address.
pub fn from(address: Ipv4Addr) -> Connect {
    Arc::new(move |at| {
        Box::pin(async move {
            let at = at.parse().map_err(std::io::Error::other)?;
            Ok(Box::new(connect(at, address).await?) as Io)
        })
    })
}

/// Keeps one connection open.
async fn keep(target: SocketAddr, from: Ipv4Addr, sends: Sends, counts: Arc<Counts>) {
    loop {
        let Ok(stream) = connect(target, from).await else {
            sleep(PAUSE).await;
            continue;
        };
        counts.made.fetch_add(1, Ordering::Relaxed);
        counts.open.fetch_add(1, Ordering::Relaxed);
        hold(stream, sends).await;
        counts.open.fetch_sub(1, Ordering::Relaxed);
        sleep(PAUSE).await;
    }
}

async fn connect(target: SocketAddr, from: Ipv4Addr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(target).await
}

/// Holds a connection until the other side closes it.
async fn hold(mut stream: TcpStream, sends: Sends) {
    let mut bytes = HELLO.into_iter().chain(std::iter::repeat(0));
    loop {
        let mut answer = [0; 64];
        let wait = if sends == Sends::Nothing { Duration::from_secs(3600) } else { DRIP };
        match timeout(wait, stream.read(&mut answer)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => return,
            Err(_) if sends == Sends::Nothing => {}
            Err(_) => {
                let byte = bytes.next().unwrap_or_default();
                if stream.write_all(&[byte]).await.is_err() {
                    return;
                }
            }
        }
    }
}
