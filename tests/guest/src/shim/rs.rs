//! Kata's runtime-rs, as its handlers are: `runtimes/src/shim_mgmt/handlers.rs` of 4.1.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, StatusCode, request};
use serde::Deserialize;

use super::answer::{Answer, GuestFileSystem, parameter, reply};

#[derive(Deserialize)]
struct Resize {
    volume_guest_path: String,
    #[serde(rename = "size")]
    _size: u64,
}

pub(super) fn answer(
    volumes: &BTreeMap<String, GuestFileSystem>,
    parts: &request::Parts,
    body: &Bytes,
) -> Answer {
    match (&parts.method, parts.uri.path()) {
        (&Method::POST, "/direct-volume/stats") => {
            // It parses the target as a whole URL, which only an absolute one is.
            parts.uri.scheme()?;
            let volume = volumes.get(&parameter(&parts.uri, "path")?)?;
            let text = format!(
                "Usage: [VolumeUsage {{ available: {}, total: {}, used: {}, unit: BYTES }}] \
                 Volume Condition: None",
                volume.total - volume.used,
                volume.total,
                volume.used
            );
            Some(reply(StatusCode::OK, text))
        }
        (&Method::POST, "/direct-volume/resize") => {
            let Resize { volume_guest_path, .. } = serde_json::from_slice(body).ok()?;
            let volume = volumes.get(&volume_guest_path)?;
            // The agent's UNIMPLEMENTED is a failure of the handler.
            volume.grows.then(|| reply(StatusCode::OK, ""))
        }
        _ => Some(reply(StatusCode::NOT_FOUND, "URL NOT FOUND")),
    }
}
