//! Edges that take nothing of what csi-cloud sends, and make it send all the time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::try_join_all;
use harness::no_credit::{AFTER_WELCOME, AT_WELCOME, NoCredit};
use proto::control::hello::{Driver, Message};
use proto::link::{Connect, Io, Link, NodeNetwork};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use super::report::Row;
use super::world::{HOSTILE, TRANSPORTS, World, driver, hello, welcomed};

/// The drivers that it names, so that each answer is long.
const DRIVERS: usize = 64;
/// Messages at once, and then one each so often: within the budget of a link.
const BURST: usize = 150;
const EVERY: Duration = Duration::from_millis(60);
/// The receive buffer of the edge's socket, in bytes.
const BUFFER: u32 = 4096;
const LONGEST: Duration = Duration::from_secs(20);
const ASKED: &str = "closed <= 15 s, or <= 1 MiB held";

/// When an edge stops to take anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// After its hello.
    Hello,
    /// After its welcome.
    Welcome,
}

/// Such an edge.
pub(super) enum Unread {
    Quic(NoCredit),
    Ws(Link),
}

pub(super) async fn run(rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for since in [Since::Hello, Since::Welcome] {
        rows.extend(try_join_all(TRANSPORTS.map(|transport| unread(transport, since))).await?);
    }
    Ok(())
}

async fn unread(transport: &'static str, since: Since) -> anyhow::Result<Row> {
    let world = World::new(transport).await?;
    world.relink(1).await?;
    let mut edge = Unread::link(&world, HOSTILE, since).await?;
    let before = world.resident_mib()?;
    let begun = Instant::now();
    let drivers = drivers()?;
    let mut grown = 0;
    let telling = async {
        for told in 0.. {
            if edge.tell(drivers.clone()).await.is_err() {
                return;
            }
            if told > BURST {
                grown = grown.max(world.resident_mib().unwrap_or(u64::MAX).saturating_sub(before));
                sleep(EVERY).await;
            }
        }
    };
    let is_closed = timeout(LONGEST, telling).await.is_ok();
    let elapsed = begun.elapsed().as_secs_f64();
    world.stop().await?;
    let end = if is_closed { "closed after" } else { "open after" };
    Ok(Row {
        case: format!("unread since its {since:?}"),
        transport,
        asked: ASKED,
        measured: format!("{end} {elapsed:.1} s, +{grown} MiB"),
        ok: (is_closed && elapsed <= 15.0) || grown <= 1,
    })
}

impl Unread {
    /// An edge that takes nothing from then on.
    pub(super) async fn link(world: &World, node: &str, since: Since) -> anyhow::Result<Self> {
        let hello = Message::Hello(hello(node, Vec::new())?);
        if world.url().starts_with("quic") {
            let credit = if since == Since::Hello { AT_WELCOME } else { AFTER_WELCOME };
            let credentials = world.credentials(node)?;
            let edge = NoCredit::dial(world.url(), &credentials, credit, &hello).await?;
            return Ok(Self::Quic(edge));
        }
        let is_shut = Arc::new(AtomicBool::new(false));
        let mut link = world.dial(node, &gated(is_shut.clone())).await?;
        if since == Since::Hello {
            is_shut.store(true, Ordering::SeqCst);
            link.send(&hello).await?;
        } else {
            link.send(&hello).await?;
            welcomed(&mut link).await?;
            is_shut.store(true, Ordering::SeqCst);
        }
        Ok(Self::Ws(link))
    }

    /// Makes csi-cloud send a welcome.
    ///
    /// # Errors
    /// The connection is closed.
    pub(super) async fn tell(&mut self, drivers: Vec<Driver>) -> anyhow::Result<()> {
        match self {
            Self::Quic(edge) => edge.send(&Message::Drivers(drivers)).await,
            Self::Ws(link) => Ok(link.send(&Message::Drivers(drivers)).await?),
        }
    }

    /// Ends when csi-cloud has closed the connection.
    pub(super) async fn closed(mut self) {
        if let Self::Quic(edge) = &self {
            return edge.closed().await;
        }
        // A connection that is not read shows its end to who writes.
        while self.tell(Vec::new()).await.is_ok() {
            sleep(EVERY).await;
        }
    }
}

/// As many drivers as an edge may name, with long names.
fn drivers() -> anyhow::Result<Vec<Driver>> {
    (0..DRIVERS).map(|number| driver(&format!("d{number}.{}", "x".repeat(50)), true)).collect()
}

/// Reaches the cloud by a connection that is read while the gate is open.
fn gated(is_shut: Arc<AtomicBool>) -> NodeNetwork {
    let connect: Connect = Arc::new(move |at| {
        let is_shut = is_shut.clone();
        Box::pin(async move {
            let socket = TcpSocket::new_v4()?;
            socket.set_recv_buffer_size(BUFFER)?;
            let tcp = socket.connect(at.parse().map_err(io::Error::other)?).await?;
            Ok(Box::new(Gate { tcp, is_shut }) as Io)
        })
    });
    connect.into()
}

/// A connection of which nothing is read once the gate is shut.
struct Gate {
    tcp: TcpStream,
    is_shut: Arc<AtomicBool>,
}

impl AsyncRead for Gate {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_shut.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Gate {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
