//! A runtime that serves the contract of `docs/reference/runtime-contract.md`.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Response, StatusCode, request};
use http_body_util::Full;
use serde::Deserialize;

use super::answer::{GuestFileSystem, parameter, reply, statistics};

#[derive(Deserialize)]
struct Resize {
    device: String,
    bytes: u64,
}

pub(super) fn answer(
    volumes: &mut BTreeMap<String, GuestFileSystem>,
    parts: &request::Parts,
    body: &Bytes,
) -> Response<Full<Bytes>> {
    match (&parts.method, parts.uri.path()) {
        (&Method::GET, "/v1/stats") => {
            let device = parameter(&parts.uri, "device").unwrap_or_default();
            match volumes.get(&device) {
                Some(volume) => reply(StatusCode::OK, statistics(volume).to_string()),
                None => reply(StatusCode::CONFLICT, format!("this sandbox does not have {device}")),
            }
        }
        (&Method::POST, "/v1/resize") => {
            let Ok(Resize { device, bytes }) = serde_json::from_slice(body) else {
                return reply(StatusCode::BAD_REQUEST, "no device and bytes");
            };
            match volumes.get_mut(&device) {
                None => reply(StatusCode::CONFLICT, format!("this sandbox does not have {device}")),
                Some(volume) if !volume.grows => {
                    reply(StatusCode::NOT_IMPLEMENTED, "it cannot grow")
                }
                Some(volume) => {
                    volume.total = bytes - bytes / 16;
                    reply(StatusCode::NO_CONTENT, "")
                }
            }
        }
        _ => reply(StatusCode::NOT_FOUND, ""),
    }
}
