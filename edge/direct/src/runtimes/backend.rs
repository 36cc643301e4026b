//! What a runtime takes and what its answers mean, for each kind of runtime.
//!
//! A backend does no I/O: it says what to send to a shim and reads the reply.

use std::path::{Path, PathBuf};

use http::{Method, StatusCode};

use super::http::Reply;
use super::sandbox::Sandbox;
use super::stats::{Stats, StatsError};

/// How much of a shim's text is told, in characters.
const MAX_TEXT: usize = 200;

/// A request to a shim.
#[derive(Debug)]
pub struct ShimRequest {
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub target: String,
    /// Its body, JSON.
    pub body: Option<Vec<u8>>,
}

/// What an answer means that is not what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Reject {
    /// The runtime cannot do this.
    #[error("{0}")]
    Cannot(String),
    /// It tried, and failed.
    #[error("it answered {status}: {text}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// The beginning of its text.
        text: String,
    },
    /// It answered something that is not certainly about the volume.
    #[error(transparent)]
    Nonsense(StatsError),
}

/// A runtime that reads the contract. An implementation talks to nobody: a new runtime is a file with one of
/// these, and a line in [`Runtimes::new`].
pub trait Runtime: Send + Sync {
    /// Its name, for people.
    fn name(&self) -> &'static str;
    /// The directory that has one directory for each sandbox.
    fn root(&self) -> &Path;
    /// Where the shim of this sandbox listens.
    fn socket(&self, sandbox: &Sandbox) -> PathBuf;
    /// Asks for the statistics of the volume with this device.
    fn stats(&self, device: &str) -> ShimRequest;
    /// Reads them, of a volume whose device has `size` bytes.
    ///
    /// # Errors
    /// There are none in it.
    fn read_stats(&self, reply: &Reply, size: u64) -> Result<Stats, Reject>;
    /// Asks to make the file system on this device `bytes` large.
    fn resize(&self, device: &str, bytes: u64) -> ShimRequest;
    /// Reads whether it was done.
    ///
    /// # Errors
    /// It was not.
    fn read_resize(&self, reply: &Reply) -> Result<(), Reject>;
    /// What it means that a shim that lives closes a connection without an answer; nothing, if that is a fault.
    fn without_a_word(&self) -> Option<&'static str>;
}

/// A path as a value in a query.
pub(super) fn escaped(path: &str) -> String {
    percent_encoding::utf8_percent_encode(path, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// What a status other than OK means.
pub(super) fn refused(reply: &Reply) -> Reject {
    let text: String = String::from_utf8_lossy(&reply.body).chars().take(MAX_TEXT).collect();
    let text = printable(&text);
    let nothing_there =
        [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
    // Kata's agent has no code of HTTP's; its word is in the text, in either spelling.
    if nothing_there.contains(&reply.status) || text.to_ascii_lowercase().contains("unimplemented")
    {
        let status = reply.status;
        Reject::Cannot(format!("it answered {status}: {text}"))
    } else {
        Reject::Refused { status: reply.status, text }
    }
}

/// A text from outside, without what moves a terminal's cursor, in one line.
pub(crate) fn printable(text: &str) -> String {
    let text = text.trim();
    let escaped =
        |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(escaped).collect()
}
