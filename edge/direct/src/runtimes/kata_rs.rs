//! Kata Containers' runtime-rs. It supports neither request today; this file reads its refusals.
//!
//! Its handlers want a path inside the guest, which the runtime tells nobody, and answer text for
//! people. So it gets the request of its own command-line client, with the host's device. A version
//! that answers as the Go runtime does is believed; today's answers mean "not implemented".

use std::path::{Path, PathBuf};

use http::{Method, StatusCode};
use serde::Serialize;

use super::backend::{Reject, Runtime, ShimRequest, refused};
use super::http::Reply;
use super::kata_go;
use super::kata_go::SOCKET;
use super::sandbox::Sandbox;
use super::stats;
use super::stats::{Stats, StatsError};

/// The shims of one host, by the directory of their sockets.
pub struct KataRs {
    /// `/run/kata`, unless the runtime runs without root.
    pub root: PathBuf,
}

#[derive(Serialize)]
struct Resize<'a> {
    volume_guest_path: &'a str,
    size: u64,
}

impl Runtime for KataRs {
    fn name(&self) -> &'static str {
        "kata-rs"
    }

    fn socket(&self, sandbox: &Sandbox) -> PathBuf {
        self.root.join(sandbox.as_str()).join(SOCKET)
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn stats(&self, device: &str) -> ShimRequest {
        // Not POST: a guest would take the path for a file of another file system.
        kata_go::stats(device)
    }

    fn read_stats(&self, reply: &Reply, size: u64) -> Result<Stats, Reject> {
        match reply.status {
            StatusCode::OK => stats::read(&reply.body, size).map_err(|nonsense| match nonsense {
                StatsError::Json(_) => {
                    Reject::Cannot("it answers text for people, which is no data".into())
                }
                other => Reject::Nonsense(other),
            }),
            _ => Err(refused(reply)),
        }
    }

    fn resize(&self, device: &str, bytes: u64) -> ShimRequest {
        // A path that the guest does not have is an error, and resizes nothing.
        let body = serde_json::to_vec(&Resize { volume_guest_path: device, size: bytes });
        ShimRequest {
            method: Method::POST,
            target: "/direct-volume/resize".into(),
            body: body.ok(),
        }
    }

    fn read_resize(&self, reply: &Reply) -> Result<(), Reject> {
        if reply.status == StatusCode::OK { Ok(()) } else { Err(refused(reply)) }
    }

    fn without_a_word(&self) -> Option<&'static str> {
        Some("its handler failed, and this runtime says nothing then")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, body: &'static str) -> Reply {
        Reply { status: StatusCode::from_u16(status).unwrap(), body: body.into() }
    }

    #[test]
    fn text_for_people_is_no_data_and_json_is() {
        let runtime = KataRs { root: "/".into() };
        let text = "Usage: [VolumeUsage { available: 1, total: 2, used: 1, unit: BYTES }] Volume \
                    Condition: None";
        let cannot = runtime.read_stats(&answered(200, text), 9).unwrap_err();
        assert!(matches!(cannot, Reject::Cannot(_)), "{cannot}");
        let cannot = runtime.read_stats(&answered(404, "URL NOT FOUND"), 9).unwrap_err();
        assert!(matches!(cannot, Reject::Cannot(_)), "{cannot}");
        let json = "{\"usage\":[{\"total\":2,\"used\":1,\"available\":1,\"unit\":1}]}";
        assert_eq!(runtime.read_stats(&answered(200, json), 9).unwrap().bytes.used, 1);
    }
}
