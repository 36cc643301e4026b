//! QUIC Initials from many addresses that never answer, as a sender of forged addresses makes them.
//!
//! Each is a valid first datagram of a client, with a ClientHello and ids of its own. The packet is
//! made here as RFC 9000, 17.2.2, and RFC 9001, 5, say. The sockets count what comes back.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, anyhow};
use harness::flood;
use proto::link::quic;
use proto::link::tls::client_config;
use rand::random;
use rustls::quic::{ClientConnection, Keys, Version};
use rustls::{CipherSuite, Side};
use tokio::time::{Instant, interval};

use super::report::Row;
use super::world::{HONEST, World};

/// Initials a second.
const RATE: u32 = 20_000;
const SHORT_RATE: u32 = 2_000;
/// How long.
const TIME: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(3);
/// The addresses, each with a socket.
const ADDRESSES: [u32; 2] = [4, 400];
/// Between two bursts of Initials.
const EVERY: Duration = Duration::from_millis(10);
const BURSTS: u32 = 100;
/// The size of a client's first datagram, in bytes. RFC 9000, 14.1.
const DATAGRAM: usize = 1200;
/// The bytes of a packet number, and of the tag of its encryption.
const NUMBER: usize = 4;
const TAG: usize = 16;
/// A long header with the packet type Initial and a packet number of four bytes; version 1.
const INITIAL: [u8; 5] = [0xc3, 0, 0, 0, 1];
const CRYPTO: u8 = 6;
/// The bytes after the packet number's place from which a mask is made. RFC 9001, 5.4.2.
const SAMPLE: usize = 16;
/// The transport parameter initial_source_connection_id, with eight bytes.
const SOURCE_ID: [u8; 2] = [0x0f, 8];
const ASKED: &str = "<= 3 bytes out per byte in, honest relink < 2 s";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for addresses in ADDRESSES {
        rows.push(flooded(addresses, short).await?);
    }
    Ok(())
}

async fn flooded(addresses: u32, short: bool) -> anyhow::Result<Row> {
    let world = World::new("quic").await?;
    // It has linked before, as edges have.
    world.relink(1).await?;
    let mut flood = Initials::new(&world, addresses)?;
    let (rate, time) = if short { (SHORT_RATE, SHORT) } else { (RATE, TIME) };
    let begun = Instant::now();
    let relinking = async {
        let mut longest = Duration::ZERO;
        while begun.elapsed() < time {
            longest = longest.max(world.relink(1).await?);
        }
        anyhow::Ok(longest)
    };
    let (longest, ()) = tokio::try_join!(relinking, flood.send(rate, time))?;
    let peak = world.peak_mib()?;
    world.stop().await?;
    let Initials { sent, bytes_in, bytes_out, .. } = flood;
    let ratio = bytes_out as f64 / bytes_in as f64;
    Ok(Row {
        case: format!("{sent} Initials at {rate}/s of {addresses} addresses"),
        transport: "quic",
        asked: ASKED,
        measured: format!(
            "{ratio:.2} bytes out per byte in, {:.2} s, {peak} MiB",
            longest.as_secs_f64()
        ),
        // Without any answer the Initials were not valid.
        ok: ratio <= 3.0 && bytes_out > 0 && longest.as_secs_f64() < 2.0,
    })
}

/// A flood, and what it counted.
struct Initials {
    target: SocketAddr,
    sockets: Vec<UdpSocket>,
    hello: Hello,
    sent: u64,
    bytes_in: u64,
    bytes_out: u64,
}

impl Initials {
    fn new(world: &World, addresses: u32) -> anyhow::Result<Self> {
        let bind = |number| {
            let socket = UdpSocket::bind((flood::address(number), 0))?;
            socket.set_nonblocking(true)?;
            anyhow::Ok(socket)
        };
        let sockets = (0..addresses).map(bind).collect::<Result<_, _>>()?;
        let hello = Hello::new(world)?;
        let target = world.addr()?;
        Ok(Self { target, sockets, hello, sent: 0, bytes_in: 0, bytes_out: 0 })
    }

    /// Sends so many a second for so long.
    async fn send(&mut self, rate: u32, time: Duration) -> anyhow::Result<()> {
        let mut ticks = interval(EVERY);
        let begun = Instant::now();
        while begun.elapsed() < time {
            ticks.tick().await;
            for _ in 0..rate / BURSTS {
                self.send_one()?;
            }
            self.count();
        }
        Ok(())
    }

    fn send_one(&mut self) -> anyhow::Result<()> {
        let datagram = self.hello.datagram()?;
        let at = usize::try_from(self.sent)? % self.sockets.len();
        let socket = self.sockets.get(at).context("no socket")?;
        self.sent += 1;
        // A full buffer loses it, as a network does.
        if let Ok(bytes) = socket.send_to(&datagram, self.target) {
            self.bytes_in += u64::try_from(bytes)?;
        }
        Ok(())
    }

    /// Counts what came back.
    fn count(&mut self) {
        let mut datagram = [0; 2048];
        for socket in &self.sockets {
            while let Ok(bytes) = socket.recv(&mut datagram) {
                self.bytes_out += bytes as u64;
            }
        }
    }
}

/// The ClientHello of all Initials.
struct Hello {
    source_id: [u8; 8],
    bytes: Vec<u8>,
    suite: rustls::SupportedCipherSuite,
}

impl Hello {
    fn new(world: &World) -> anyhow::Result<Self> {
        let tls = client_config(&world.credentials(HONEST)?, quic::ALPN)?;
        let mut suites = tls.crypto_provider().cipher_suites.iter().copied();
        let is_initial = |suite: &rustls::SupportedCipherSuite| {
            suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256
        };
        let suite = suites.find(is_initial).context("no cipher for Initials")?;
        let source_id = random::<[u8; 8]>();
        let parameters = [&SOURCE_ID[..], &source_id].concat();
        let name = "127.0.0.1".try_into()?;
        let mut client = ClientConnection::new(tls, Version::V1, name, parameters)?;
        let mut bytes = Vec::new();
        client.write_hs(&mut bytes);
        Ok(Self { source_id, bytes, suite })
    }

    /// A client's first datagram, with a connection id that nobody used before.
    fn datagram(&self) -> anyhow::Result<Vec<u8>> {
        let id = random::<[u8; 8]>();
        let suite = self.suite.tls13().context("no TLS 1.3")?;
        let quic = suite.quic.context("no QUIC")?;
        let keys = Keys::initial(Version::V1, suite, quic, &id, Side::Client);
        let mut header = INITIAL.to_vec();
        for id in [&id, &self.source_id] {
            header.push(8);
            header.extend_from_slice(id);
        }
        // No token.
        header.push(0);
        let number_at = header.len() + 2;
        let rest = DATAGRAM - number_at;
        header.extend(varint(rest)?);
        header.extend([0; NUMBER]);
        let mut payload = vec![CRYPTO, 0];
        payload.extend(varint(self.bytes.len())?);
        payload.extend(&self.bytes);
        payload.resize(rest - NUMBER - TAG, 0);
        let tag = keys.local.packet.encrypt_in_place(0, &header, &mut payload)?;
        let mut datagram = [&header[..], &payload, tag.as_ref()].concat();
        mask(&keys, &mut datagram, number_at)?;
        Ok(datagram)
    }
}

/// Protects the header. RFC 9001, 5.4.
fn mask(keys: &Keys, datagram: &mut [u8], number_at: usize) -> anyhow::Result<()> {
    let short = || anyhow!("a short datagram");
    let (header, payload) = datagram.split_at_mut_checked(number_at + NUMBER).ok_or_else(short)?;
    let (first, rest) = header.split_first_mut().ok_or_else(short)?;
    let number = rest.last_chunk_mut::<NUMBER>().ok_or_else(short)?;
    let sample = payload.get(..SAMPLE).ok_or_else(short)?;
    Ok(keys.local.header.encrypt_in_place(sample, first, number)?)
}

/// A length in two bytes. RFC 9000, 16.
fn varint(length: usize) -> anyhow::Result<[u8; 2]> {
    Ok((u16::try_from(length)? | 0x4000).to_be_bytes())
}
