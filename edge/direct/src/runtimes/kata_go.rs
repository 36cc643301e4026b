//! Kata Containers' Go runtime (`containerd-shim-kata-v2`): its requests, and what its answers
//! mean.
//!
//! Its handlers accept any method; a path is decoded twice; an error is a status and a text. Its
//! agent cannot resize, and says so in the text of a 500. It knows a volume only while a container
//! has it: not between two runs of a container, nor after an init container.

use std::path::{Path, PathBuf};

use http::Method;
use http::StatusCode;
use serde::Serialize;

use super::backend::{Reject, Runtime, ShimRequest, escaped, refused};
use super::http::Reply;
use super::sandbox::Sandbox;
use super::stats;
use super::stats::Stats;

/// The shims of one host, by the directory of their sockets.
pub struct KataGo {
    /// `/run/vc/sbs`, unless the runtime runs without root.
    pub root: PathBuf,
}

/// The end of its text about a device that no container of the sandbox has.
const NO_CONTAINER: &str = "not found in sandbox";
/// The file name of a shim's socket in its sandbox's directory, as in runtime-rs.
pub(super) const SOCKET: &str = "shim-monitor.sock";

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Resize<'a> {
    volume_path: &'a str,
    size: u64,
}

/// Statistics of the volume with this host device.
pub(super) fn stats(device: &str) -> ShimRequest {
    // Decoding twice differs from decoding once only for a percent sign.
    let path = escaped(&device.replace('%', "%25"));
    ShimRequest {
        method: Method::GET,
        target: format!("/direct-volume/stats?path={path}"),
        body: None,
    }
}

/// The meaning of a status other than OK.
fn failed(reply: &Reply) -> Reject {
    match refused(reply) {
        Reject::Refused { text, .. } if text.ends_with(NO_CONTAINER) => Reject::NoContainer,
        other => other,
    }
}

impl Runtime for KataGo {
    fn name(&self) -> &'static str {
        "kata-go"
    }

    fn socket(&self, sandbox: &Sandbox) -> PathBuf {
        self.root.join(sandbox.as_str()).join(SOCKET)
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn stats(&self, device: &str) -> ShimRequest {
        stats(device)
    }

    fn read_stats(&self, reply: &Reply, size: u64) -> Result<Stats, Reject> {
        // kata-runtime itself takes a 500's text for statistics.
        match reply.status {
            StatusCode::OK => stats::read(&reply.body, size).map_err(Reject::Nonsense),
            _ => Err(failed(reply)),
        }
    }

    fn resize(&self, device: &str, bytes: u64) -> ShimRequest {
        let body = serde_json::to_vec(&Resize { volume_path: device, size: bytes });
        ShimRequest {
            method: Method::POST,
            target: "/direct-volume/resize".into(),
            body: body.ok(),
        }
    }

    fn read_resize(&self, reply: &Reply) -> Result<(), Reject> {
        if reply.status == StatusCode::OK { Ok(()) } else { Err(failed(reply)) }
    }

    fn without_a_word(&self) -> Option<&'static str> {
        None
    }
}
