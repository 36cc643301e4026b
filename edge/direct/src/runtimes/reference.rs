//! A runtime other than Kata: three requests by which any VM runtime can serve statistics and
//! growth. `docs/reference/runtime-contract.md` is its contract.
//!
//! It uses CSI's own JSON for statistics and, unlike Kata, returns the size after a resize.

use std::path::{Path, PathBuf};

use http::{Method, StatusCode};
use serde::Serialize;

use super::backend::{Reject, Runtime, ShimRequest, escaped, refused};
use super::http::Reply;
use super::sandbox::Sandbox;
use super::stats;
use super::stats::Stats;

/// The sandboxes of one host, by the directory of their sockets.
pub struct Reference {
    /// `/run/edge-csi/sandboxes` by default.
    pub root: PathBuf,
}

/// The file name of a sandbox's socket in its directory.
const SOCKET: &str = "direct.sock";

#[derive(Serialize)]
struct Resize<'a> {
    device: &'a str,
    bytes: u64,
}

impl Runtime for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn socket(&self, sandbox: &Sandbox) -> PathBuf {
        self.root.join(sandbox.as_str()).join(SOCKET)
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn stats(&self, device: &str) -> ShimRequest {
        ShimRequest {
            method: Method::GET,
            target: format!("/v1/stats?device={}", escaped(device)),
            body: None,
        }
    }

    fn read_stats(&self, reply: &Reply, size: u64) -> Result<Stats, Reject> {
        match reply.status {
            StatusCode::OK => stats::read(&reply.body, size).map_err(Reject::Nonsense),
            _ => Err(refused(reply)),
        }
    }

    fn resize(&self, device: &str, bytes: u64) -> ShimRequest {
        let body = serde_json::to_vec(&Resize { device, bytes });
        ShimRequest { method: Method::POST, target: "/v1/resize".into(), body: body.ok() }
    }

    fn read_resize(&self, reply: &Reply) -> Result<(), Reject> {
        if matches!(reply.status, StatusCode::OK | StatusCode::NO_CONTENT) {
            Ok(())
        } else {
            Err(refused(reply))
        }
    }

    fn without_a_word(&self) -> Option<&'static str> {
        None
    }
}
