//! Calls and answers: HTTP/2, frames, edits of messages, pages of lists and their tokens.

use std::time::Duration;

use bytes::Bytes;
use cloud::csi::lists::kind::{ListKind, Page};
use cloud::csi::lists::token;
use cloud::rewrite::parameters;
use proto::csi::wire::Malformed;
use proto::csi::{self, Method, Rewrite, topology, wire};
use proto::http2::{deadline, serve};
use proto::names::NodeName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// An unknown field, which every edit keeps.
const NEW: &[u8] = b"\xa2\x06\x03new";
/// A connection whose peer has said everything comes to its end by then.
const END: Duration = Duration::from_secs(20);
/// A client's connection preface (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One page of a driver's list: each entry is read, and has an id or is refused.
pub fn lists(bytes: &[u8]) {
    let Some(page) = Page::read(bytes) else { return };
    assert!(page.size() <= bytes.len(), "a page is larger than its answer");
    for kind in [ListKind::Volumes, ListKind::Snapshots] {
        for entry in page.entries() {
            if let Ok(Some(made)) = kind.read(entry) {
                assert!(!made.id.text().is_empty(), "an entry without an id was taken");
            }
        }
    }
}

/// What follows a client's preface on a connection that we serve.
pub fn head(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let served = runtime.map(|runtime| runtime.block_on(connection(bytes)));
    assert!(served.is_ok_and(|ended| ended), "a connection did not end");
}

/// Serves a client that says this and closes. Returns whether the connection ended.
async fn connection(bytes: &[u8]) -> bool {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let service = |request: http::Request<_>| async move {
        let _ = deadline::deadline(request.headers());
        let method = Method::of_path(request.uri().path());
        Ok(tonic::Status::unimplemented(method.map_or("", Method::name)).into_http())
    };
    let serving = serve::serve(ours, service, std::future::pending());
    let talking = async move {
        let (mut read, mut write) = tokio::io::split(theirs);
        let said = [PREFACE, bytes].concat();
        let writing = async move {
            let _ = write.write_all(&said).await;
            let _ = write.shutdown().await;
        };
        let reading = async move {
            let mut rest = Vec::new();
            let _ = read.read_to_end(&mut rest).await;
        };
        tokio::join!(writing, reading);
    };
    tokio::time::timeout(END, async { tokio::join!(serving, talking) }).await.is_ok()
}

/// A gRPC body: its one message, whose frame is the same body.
pub fn frame(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let Ok(message) = csi::frame::message(&body) else { return };
    assert_eq!(csi::frame::frame(&message), body, "a frame is not what it was");
    for method in Method::ALL {
        let _ = method.key(&message);
        assert!(method.same(&message, &message), "a message differs from itself");
    }
}

/// A message in each edit: unknown fields survive, and the result can be read.
pub fn edits(bytes: &[u8]) {
    let message: Bytes = [bytes, NEW].concat().into();
    // The last field of a cut message has swallowed the unknown one.
    let is_cut = !is_whole(bytes);
    let check = |edit: &str, edited: Result<Bytes, Malformed>| {
        if let Ok(edited) = edited
            && edited != message
        {
            assert!(is_whole(&message), "{edit} took what is malformed");
            let keeps = edited.windows(NEW.len()).any(|part| part == NEW);
            assert!(keeps || is_cut, "{edit} lost an unknown field");
            assert!(is_whole(&edited), "{edit} broke a message");
        }
    };
    let Ok(node): Result<NodeName, _> = "n1".parse() else { return };
    for rewrite in [
        Rewrite::PluginCapabilities,
        Rewrite::NodeInfo,
        Rewrite::CreateVolume,
        Rewrite::CreateSnapshot,
        Rewrite::ListVolumes,
        Rewrite::ListSnapshots,
        Rewrite::Capacity,
    ] {
        check("out_of_request", topology::out_of_request(rewrite, &message));
        check("into_answer", topology::into_answer(rewrite, &message, &node));
        check("correct_answer", topology::correct_answer(rewrite, &message, &node));
    }
    let parts = parameters::out_of_create_volume(&message);
    check("parameters", parts.map(|(message, _)| message));
    let parts = parameters::out_of_capacity(&message);
    check("parameters", parts.map(|(message, _)| message));
    let _ = parameters::claim(&message);
}

fn is_whole(message: &[u8]) -> bool {
    wire::fields(message).all(|field| field.is_ok())
}

/// A page token: none, or the only text of what it says.
pub fn tokens(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for list in [b'v', b's'] {
        if let Some(after) = token::read(list, text) {
            assert_eq!(token::write(list, &after), text, "two tokens are the same place");
        }
    }
}
