//! Kata's Go runtime, as its handlers are: `containerd-shim-v2/shim_management.go` of 4.1.
//!
//! Its sandbox knows a volume only while a container has it.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Response, StatusCode, request};
use http_body_util::Full;
use serde::Deserialize;

use super::answer::{GuestFileSystem, parameter, reply, statistics, unescape};

/// Go matches keys in any case.
#[derive(Deserialize)]
struct Resize {
    #[serde(default, alias = "volumepath", alias = "volumePath", rename = "VolumePath")]
    volume_path: String,
    #[serde(default, alias = "size", rename = "Size")]
    size: u64,
}

/// A parsed request.
pub(crate) enum Query {
    /// The statistics of the volume with this device.
    Stats(String),
    /// Resize the file system of this device to this many bytes.
    Resize(String, u64),
    /// Nothing that its handlers take: the answer.
    Refused(StatusCode, &'static str),
}

/// Reads a request as its handlers do.
pub(crate) fn parse(parts: &request::Parts, body: &Bytes) -> Query {
    match parts.uri.path() {
        "/direct-volume/stats" => {
            let Some(path) = parameter(&parts.uri, "path") else {
                return Query::Refused(
                    StatusCode::BAD_REQUEST,
                    "Required parameter path not found",
                );
            };
            // The query was decoded already, and here it is once more.
            match unescape(&path).filter(|_| well_escaped(&path)) {
                Some(path) => Query::Stats(path),
                None => Query::Refused(StatusCode::INTERNAL_SERVER_ERROR, "invalid URL escape"),
            }
        }
        "/direct-volume/resize" => match serde_json::from_slice(body) {
            Ok(Resize { volume_path, size }) => Query::Resize(volume_path, size),
            Err(_) => Query::Refused(StatusCode::INTERNAL_SERVER_ERROR, "invalid character"),
        },
        _ => Query::Refused(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

pub(super) fn answer(
    volumes: &mut BTreeMap<String, GuestFileSystem>,
    parts: &request::Parts,
    body: &Bytes,
) -> Response<Full<Bytes>> {
    match parse(parts, body) {
        Query::Refused(status, text) => reply(status, text),
        Query::Resize(path, size) => resize(volumes, &path, size),
        Query::Stats(path) => match volumes.get(&path) {
            Some(volume) => reply(StatusCode::OK, statistics(volume).to_string()),
            None => no_container(&path),
        },
    }
}

/// Go's decoder fails on a percent sign that begins nothing.
fn well_escaped(text: &str) -> bool {
    let hex =
        |part: &str| part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    text.split('%').skip(1).all(hex)
}

/// The answer about a device that no container of the sandbox has.
fn no_container(path: &str) -> Response<Full<Bytes>> {
    reply(StatusCode::INTERNAL_SERVER_ERROR, format!("mount {path} not found in sandbox"))
}

fn resize(
    volumes: &mut BTreeMap<String, GuestFileSystem>,
    path: &str,
    size: u64,
) -> Response<Full<Bytes>> {
    match volumes.get_mut(path) {
        None => no_container(path),
        Some(volume) if !volume.grows => {
            let text = "rpc error: code = Unimplemented desc = \"resize_volume is not \
                        implemented in kata-agent\"";
            reply(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
        Some(volume) => {
            // The file system's own overhead is not available to users.
            volume.total = size - size / 16;
            reply(StatusCode::OK, "")
        }
    }
}
