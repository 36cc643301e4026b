//! Floods of HTTP/2 frames from an edge, on the stream on which csi-cloud calls it.
//!
//! The edge answers its first call with headers, so that frames of that stream are no errors by
//! themselves. Then it sends one frame again and again. If csi-cloud gives the stream up, it floods
//! the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use harness::raw::RawClient;
use harness::requests::controller;
use proto::control::hello::Message;
use proto::host::tasks::Tasks;
use proto::link::endpoint::Endpoint;
use proto::link::tls::Credentials;
use proto::link::{Event, Io, KeepAlive, Link, dial, ws};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::meter::Meter;
use super::report::Row;
use super::served::{Served, slack};
use super::threads::Threads;
use super::world::{DRIVER, HOSTILE, PATIENCE, TRANSPORTS, World, driver, hello, welcomed};

/// How long each flood lasts.
const TIME: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(1);
/// Between two calls that open a stream to the edge.
const EVERY: Duration = Duration::from_millis(100);
/// The frames of one write.
const AT_ONCE: usize = 2_000;
const AT_ONCE_BYTES: usize = 64 * 1024;
/// The part of a core that a program may take for a flood.
pub(super) const CORES: f64 = 0.25;
/// The bounds of a debug build for a flood of headers, which it decodes many times more slowly: the
/// first second's are decoded at once.
const HEADERS_CORES: f64 = 0.75;
const HEADERS_MORE: f64 = 300.0;
const ASKED: &str = "honest p99 <= 2 x, <= 25 % of a core, log <= 100 KiB";
const SHORT_ASKED: &str = "honest p99 <= 2 x or + 100 ms, <= 25 % of a core, log <= 100 KiB";
const HEADERS_ASKED: &str = "honest p99 <= 2 x or + 300 ms, <= 75 % of a core, log <= 100 KiB";

/// The answer's head: `:status: 200`, `content-type: application/grpc` (HPACK, RFC 7541).
const HEAD: &[u8] = b"\x88\x5f\x10application/grpc";

/// An informational answer of 250 headers, each by its index: `:status: 103`, and then
/// `accept-encoding: gzip, deflate` again and again.
const EARLY: [u8; 255] = {
    let mut block = [0x90; 255];
    [block[0], block[1], block[2], block[3], block[4]] = *b"\x08\x03103";
    block
};

/// A frame: type, stream, payload. RFC 9113, 6.
struct Frame {
    name: &'static str,
    kind: u8,
    stream: u32,
    payload: &'static [u8],
    /// Sent before the first one.
    begin: Option<(u8, u8)>,
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Answers with headers that are complete.
const ANSWERED: Option<(u8, u8)> = Some((HEADERS, END_HEADERS));

static FRAMES: [Frame; 10] = [
    Frame { name: "PING", kind: PING, stream: 0, payload: &[0; 8], begin: None },
    Frame { name: "SETTINGS", kind: SETTINGS, stream: 0, payload: &[], begin: None },
    Frame { name: "empty DATA", kind: 0, stream: 1, payload: &[], begin: ANSWERED },
    Frame { name: "DATA of 1 byte", kind: 0, stream: 1, payload: &[0], begin: ANSWERED },
    Frame { name: "RST_STREAM", kind: 3, stream: 1, payload: &[0, 0, 0, 8], begin: ANSWERED },
    Frame { name: "WINDOW_UPDATE", kind: 8, stream: 0, payload: &[0, 0, 0, 1], begin: None },
    Frame { name: "CONTINUATION", kind: 9, stream: 1, payload: &[], begin: Some((HEADERS, 0)) },
    Frame { name: "PRIORITY", kind: 2, stream: 3, payload: &[0, 0, 0, 0, 1], begin: None },
    Frame {
        name: "103 answers of 250 headers",
        kind: HEADERS,
        stream: 1,
        payload: &EARLY,
        begin: None,
    },
    Frame { name: "an unknown type", kind: 0x7f, stream: 1, payload: &[], begin: None },
];

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut stand = World::stand().await?;
        // A library that logs what it reads would fill the disk.
        stand.log("info");
        let mut world = World::on(stand, transport, &["--store=memory:"]).await?;
        // Linked first, it pins the driver's profile. Otherwise it could less and got no calls.
        link(&world).await?.close("known").await;
        let served = Served::new(&mut world).await?;
        for frame in &FRAMES {
            let measured = flooded(&world, transport, &served, frame, short).await;
            rows.push(measured.with_context(|| format!("{transport}, {}", frame.name))?);
        }
        served.stop().await?;
        world.stop().await?;
    }
    Ok(())
}

async fn flooded(
    world: &World,
    transport: &'static str,
    served: &Served,
    frame: &'static Frame,
    short: bool,
) -> anyhow::Result<Row> {
    let time = if short { SHORT } else { TIME };
    let quiet = served.load(world, time / 2).await?;
    let meter = Meter::begin(&world.cloud.process)?;
    let sent = Arc::new(AtomicU64::new(0));
    let tasks = Tasks::default();
    tasks.spawn_until_stop("ask", ask(world.stand.cloud_front(DRIVER)));
    let threads = Threads::start()?;
    let (peer, counted, floods) = (Peer::of(world)?, sent.clone(), tasks.clone());
    threads.spawn(&tasks, async move {
        match peer.link().await {
            Ok(link) => drive(link, frame, floods, counted).await,
            Err(error) => eprintln!("{}: {error:#}", frame.name),
        }
    });
    let begun = timeout(PATIENCE, async {
        while sent.load(Ordering::Relaxed) == 0 {
            sleep(EVERY).await;
        }
    });
    begun.await.context("csi-cloud does not call the edge")?;
    let load = served.load(world, time).await;
    tasks.stop();
    let load = load?;
    let cores = (load.cores - quiet.cores).max(0.0);
    let used = meter.end()?;
    let sent = sent.load(Ordering::Relaxed);
    let (asked, most, more) = match (short, frame.kind) {
        (true, HEADERS) => (HEADERS_ASKED, HEADERS_CORES, HEADERS_MORE),
        (true, _) => (SHORT_ASKED, CORES, slack(short)),
        (false, _) => (ASKED, CORES, slack(short)),
    };
    Ok(Row {
        case: format!("flood of {}", frame.name),
        transport,
        asked,
        measured: format!(
            "p99 {:.1} -> {:.1} ms, {:.0} % of a core more, {used}, {sent} frames",
            quiet.p99,
            load.p99,
            cores * 100.0
        ),
        ok: load.is_near(&quiet, more) && cores <= most && used.is_quiet(),
    })
}

/// What the hostile peer has to link with.
struct Peer {
    url: Endpoint,
    credentials: Credentials,
}

impl Peer {
    fn of(world: &World) -> anyhow::Result<Self> {
        Ok(Self { url: world.url().parse()?, credentials: world.credentials(HOSTILE)? })
    }

    async fn link(self) -> anyhow::Result<Link> {
        let network = ws::tcp();
        let dialed = dial(&self.url, &self.credentials, KeepAlive::default(), &network);
        let mut link = dialed.await?;
        link.send(&Message::Hello(hello(HOSTILE, vec![driver(DRIVER, true)?])?)).await?;
        welcomed(&mut link).await?;
        Ok(link)
    }
}

/// Links with a driver, so that csi-cloud calls it.
pub(super) async fn link(world: &World) -> anyhow::Result<Link> {
    Peer::of(world)?.link().await
}

/// Floods csi-cloud until it closes the link; `sent` counts the frames.
pub(super) async fn attack(
    world: &World,
    tasks: Tasks,
    sent: Arc<AtomicU64>,
) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let link = link(world).await?;
    tasks.spawn_until_stop("ask", ask(world.stand.cloud_front(DRIVER)));
    let [ping, ..] = &FRAMES;
    Ok(drive(link, ping, tasks, sent))
}

/// Asks for the capacity of all nodes, so that csi-cloud calls each of them.
async fn ask(front: String) {
    loop {
        if let Ok(front) = RawClient::connect(&front).await {
            let _ = timeout(EVERY, front.call(&controller("GetCapacity"), &[])).await;
        }
        sleep(EVERY).await;
    }
}

/// Floods each stream that csi-cloud opens.
async fn drive(mut link: Link, frame: &'static Frame, tasks: Tasks, sent: Arc<AtomicU64>) {
    loop {
        match link.next().await {
            Event::Opened(_, io) => {
                tasks.spawn_until_stop("flood", flood(io, frame, sent.clone()));
            }
            Event::Closed(_) => return,
            Event::Message(_) => {}
        }
    }
}

/// Sends frames until the stream ends.
async fn flood(mut io: Io, frame: &Frame, sent: Arc<AtomicU64>) {
    // The call has come when its first bytes are there.
    if !matches!(io.read(&mut [0; 16 * 1024]).await, Ok(1..)) {
        return;
    }
    let mut begin = [encoded(SETTINGS, 0, 0, &[]), encoded(SETTINGS, ACK, 0, &[])].concat();
    if let Some((kind, flags)) = frame.begin {
        begin.extend(encoded(kind, flags, 1, HEAD));
    }
    // An answer of its own is whole.
    let flags = if frame.kind == HEADERS { END_HEADERS } else { 0 };
    repeat(io, &begin, &encoded(frame.kind, flags, frame.stream, frame.payload), &sent).await;
}

/// Sends the beginning of a client's connection, and acknowledges PINGs that never were.
pub(super) async fn flood_with_acks(io: impl AsyncRead + AsyncWrite, sent: &AtomicU64) {
    let begin = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*encoded(SETTINGS, 0, 0, &[])].concat();
    repeat(io, &begin, &encoded(PING, ACK, 0, &[0; 8]), sent).await;
}

/// Sends `begin`, and then `frame` until the stream ends. What the other end sends is dropped.
async fn repeat(io: impl AsyncRead + AsyncWrite, begin: &[u8], frame: &[u8], sent: &AtomicU64) {
    let (mut reader, mut writer) = tokio::io::split(io);
    let mut unread = [0; 16 * 1024];
    let taking = async { while let Ok(1..) = reader.read(&mut unread).await {} };
    let flooding = async {
        writer.write_all(begin).await?;
        // Large ones are counted before the whole of them is out: the connection may end there.
        let at_once = AT_ONCE.min(AT_ONCE_BYTES / frame.len()).max(1);
        let frames = frame.repeat(at_once);
        loop {
            writer.write_all(&frames).await?;
            writer.flush().await?;
            sent.fetch_add(at_once as u64, Ordering::Relaxed);
        }
    };
    tokio::select! {
        biased;
        () = taking => {}
        _ = async { let flooded: std::io::Result<()> = flooding.await; flooded } => {}
    }
}

fn encoded(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&[a, b, c, kind, flags], &stream.to_be_bytes()[..], payload].concat()
}
