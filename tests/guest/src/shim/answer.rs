//! Shared by the shims of all runtimes: the guest's file system, reading queries and writing
//! answers.

use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;

/// A file system in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestFileSystem {
    /// Bytes in all.
    pub total: u64,
    /// Bytes taken.
    pub used: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes taken.
    pub inodes_used: u64,
    /// Whether the guest's agent can make it larger; Kata's cannot.
    pub grows: bool,
}

/// A handler's answer; none if it fails as runtime-rs's handlers do.
pub(super) type Answer = Option<Response<Full<Bytes>>>;

/// A parameter of a query in the encoding of forms: `+` is a space.
pub(crate) fn parameter(uri: &http::Uri, name: &str) -> Option<String> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.into_iter().find(|(key, _)| *key == name)?.1.replace('+', " ");
    unescape(&value)
}

pub(super) fn unescape(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

pub(crate) fn reply(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}

/// CSI's statistics as Go writes them: what is zero is left out.
pub(crate) fn statistics(volume: &GuestFileSystem) -> serde_json::Value {
    let row = |unit: u64, total: u64, used: u64| {
        let fields =
            [("available", total - used), ("total", total), ("used", used), ("unit", unit)];
        let there = fields.into_iter().filter(|(_, value)| *value != 0);
        there
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect::<serde_json::Map<_, _>>()
    };
    let usage = [row(1, volume.total, volume.used), row(2, volume.inodes, volume.inodes_used)];
    serde_json::json!({ "usage": usage, "volume_condition": {} })
}
