//! The control messages of a link.

use std::collections::BTreeMap;
use std::time::SystemTime;

use cloud::state::authority::Authority;
use cloud::state::ingest;
use cloud::state::policy::Policy;
use cloud::state::quotas::Quotas;
use cloud::state::report;
use cloud::state::store::memory::Memory;
use cloud::state::store::writer::Store;
use proto::control::hello::{Hello, Message};
use proto::control::join::{Answer, Join};
use proto::host::tasks::Tasks;
use proto::http2::paced::{Frames, weight};
use proto::link::ws::unfragmented::FrameScan;
use proto::names::certificate::{Identity, Subject};
use proto::names::{FrontName, NodeName};
use rustls::pki_types::CertificateDer;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

/// Room for what a store writes beside a node's own words.
const OVERHEAD: i64 = 64 * 1024;

/// The end of the head of an HTTP message.
const HEAD_END: &[u8] = b"\r\n\r\n";
/// The types of HTTP/2's frames with headers: HEADERS and CONTINUATION.
const HEADERS: [u8; 2] = [1, 9];

/// The bytes below a WebSocket: a fragment is found however they arrive, and where the library
/// finds one.
pub fn websocket(bytes: &[u8]) {
    let whole = FrameScan::default().is_whole(bytes);
    let mut scan = FrameScan::default();
    let in_pieces = pieces(bytes).all(|piece| scan.is_whole(piece));
    assert_eq!(whole, in_pieces, "it depends on how the bytes arrive");
    let end = bytes.windows(HEAD_END.len()).position(|window| window == HEAD_END);
    let frames = end.and_then(|end| bytes.get(end + HEAD_END.len()..));
    if let Some(frames) = frames.filter(|_| !bytes.starts_with(b"HTTP/"))
        && let Some(has_fragment) = has_fragment(frames)
    {
        assert_eq!(whole, !has_fragment, "the library reads it otherwise");
    }
}

/// True if one of these frames is a fragment; `None` if the library refuses one before that.
fn has_fragment(frames: &[u8]) -> Option<bool> {
    let mut cursor = std::io::Cursor::new(frames);
    while let Some((header, length)) = FrameHeader::parse(&mut cursor).ok()? {
        if !header.is_final || header.opcode == OpCode::Data(Data::Continue) {
            return Some(true);
        }
        cursor.set_position(cursor.position().saturating_add(length));
    }
    // The head of the last one is not whole.
    let place = usize::try_from(cursor.position()).ok()?;
    frames.get(place).is_none().then_some(false)
}

/// HTTP/2's frames: the same ones are found however the bytes arrive, and headers weigh by their
/// length.
pub fn weights(bytes: &[u8]) {
    let mut whole = Vec::new();
    Frames::after(0).scan(bytes, |kind, length| whole.push((kind, length)));
    let mut in_pieces = Vec::new();
    let mut frames = Frames::after(0);
    for piece in pieces(bytes) {
        frames.scan(piece, |kind, length| in_pieces.push((kind, length)));
    }
    assert_eq!(whole, in_pieces, "it depends on how the bytes arrive");
    for (kind, length) in whole {
        let weight = weight(kind, length);
        match HEADERS.contains(&kind) {
            true => assert!(weight > 0 && u64::from(weight) * 64 > length as u64, "{length} bytes"),
            false => assert!(weight <= 1, "a frame of type {kind} weighs {weight}"),
        }
    }
}

/// The bytes in pieces whose length depends on the last of them.
fn pieces(bytes: &[u8]) -> std::slice::Chunks<'_, u8> {
    bytes.chunks(usize::from(bytes.last().copied().unwrap_or_default() % 16) + 1)
}

/// Any control message: what was read is read again from its own text.
pub fn control(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    // Escapes may make it longer than it may be.
    let Ok(text) = message.encode() else { return };
    let again = Message::decode(text.as_bytes());
    assert_eq!(again.ok(), Some(message), "{text}");
}

/// The two messages of joining: what was read is read again, and no error tells the token.
pub fn joining(bytes: &[u8]) {
    match Join::decode(bytes) {
        Ok(join) => {
            let again = join.encode().ok().map(|text| Join::decode(text.as_bytes()));
            assert!(again.is_none_or(|again| again.ok() == Some(join)), "another question");
        }
        Err(error) => {
            let text = format!("{error} {error:?}");
            assert!(text.len() < 256 && !text.contains(char::is_control), "{text}");
        }
    }
    let Ok(answer) = Answer::decode(bytes) else { return };
    let again = answer.encode().ok().map(|text| Answer::decode(text.as_bytes()));
    assert!(again.is_none_or(|again| again.ok() == Some(answer)), "another answer");
}

/// A peer's certificate: an identity has a name that is one, and its time does not run backwards.
pub fn certificate(bytes: &[u8]) {
    let Ok(identity) = Identity::of(&CertificateDer::from(bytes)) else { return };
    let shown = match &identity.name {
        Subject::Node(node) => node.as_str().parse::<NodeName>().is_ok(),
        Subject::Front(front) => front.as_str().parse::<FrontName>().is_ok(),
    };
    assert!(shown, "{}", identity.name);
    assert!(identity.serial.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()));
    let validity = identity.validity;
    for now in [SystemTime::UNIX_EPOCH, validity.not_before, validity.not_after] {
        assert!(!validity.may_only_renew(now) || validity.ended(now));
        assert!(
            validity.ended(now)
                || validity.left(now) <= validity.life()
                || now < validity.not_before
        );
    }
}

/// A hello, and csi-cloud records it: what it keeps stays within the node's quotas.
pub fn hello(bytes: &[u8]) {
    if let Ok(Message::Hello(hello)) = Message::decode(bytes) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.map(|runtime| runtime.block_on(record(hello))).unwrap_or_default();
    }
}

async fn record(hello: Hello) {
    let tasks = Tasks::default();
    let Ok(store) = Store::open(Box::new(Memory::default()), &tasks) else { return };
    let quotas = Quotas::default();
    let store = store.with_quotas(quotas);
    let served: BTreeMap<_, _> =
        hello.drivers.iter().map(|driver| (driver.name.clone(), Policy::new(None))).collect();
    let Ok(node): Result<NodeName, _> = "n1".parse() else { return };
    if let Ok(drivers) = report::check(&store, &node, hello.drivers) {
        let authority = Authority::new(served);
        let recorded = ingest::drivers(&store, &authority, &node, drivers);
        assert!(recorded.await.is_ok(), "a store in memory takes every record");
    }
    let most = i64::try_from(quotas.durable_bytes).unwrap_or(i64::MAX).saturating_add(OVERHEAD);
    let bytes = store.read(|state| state.usage(&node).bytes);
    assert!(bytes <= most, "{bytes} bytes are kept of one hello");
    tasks.stop();
}
