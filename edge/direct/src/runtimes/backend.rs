//! The trait of a kind of runtime: the requests for its shims, and the meaning of their answers.
//!
//! A backend does no I/O: it builds requests for a shim and reads the replies.

use std::path::{Path, PathBuf};

use http::{Method, StatusCode};

use super::http::Reply;
use super::sandbox::Sandbox;
use super::stats::{Stats, StatsError};

/// The longest text of a shim that is shown, in characters.
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

/// An answer other than the requested one.
#[derive(Debug, thiserror::Error)]
pub enum Reject {
    /// The runtime cannot do this.
    #[error("{0}")]
    Cannot(String),
    /// No container of the sandbox has the volume now.
    #[error("no container has it now")]
    NoContainer,
    /// It tried, and failed.
    #[error("it answered {status}: {text}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// The beginning of its text.
        text: String,
    },
    /// The answer may not be about the volume.
    #[error(transparent)]
    Nonsense(StatsError),
}

/// A kind of runtime that reads the contract. It does no I/O. A new runtime is a file with one of
/// these, and a line in [`Runtimes::new`](super::registry::Runtimes::new).
pub trait Runtime: Send + Sync {
    /// Its name, for people.
    fn name(&self) -> &'static str;
    /// The directory with one directory per sandbox.
    fn root(&self) -> &Path;
    /// The socket of this sandbox's shim.
    fn socket(&self, sandbox: &Sandbox) -> PathBuf;
    /// Asks for the statistics of the volume with this device.
    fn stats(&self, device: &str) -> ShimRequest;
    /// Reads the statistics of a volume whose device has `size` bytes.
    ///
    /// # Errors
    /// The reply has none.
    fn read_stats(&self, reply: &Reply, size: u64) -> Result<Stats, Reject>;
    /// Asks to grow the file system on this device to `bytes`.
    fn resize(&self, device: &str, bytes: u64) -> ShimRequest;
    /// Reads the reply to a resize.
    ///
    /// # Errors
    /// The file system was not grown.
    fn read_resize(&self, reply: &Reply) -> Result<(), Reject>;
    /// The meaning of a connection that a live shim closes without an answer. `None` if that is a
    /// fault.
    fn without_a_word(&self) -> Option<&'static str>;
}

/// A path as a value in a query.
pub(super) fn escaped(path: &str) -> String {
    percent_encoding::utf8_percent_encode(path, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// The meaning of a status other than OK.
pub(super) fn refused(reply: &Reply) -> Reject {
    let text: String = String::from_utf8_lossy(&reply.body).chars().take(MAX_TEXT).collect();
    let text = printable(&text);
    let nothing_there =
        [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
    // Kata's agent has no HTTP code for this; its text says so, in either spelling.
    if nothing_there.contains(&reply.status) || text.to_ascii_lowercase().contains("unimplemented")
    {
        let status = reply.status;
        Reject::Cannot(format!("it answered {status}: {text}"))
    } else {
        Reject::Refused { status: reply.status, text }
    }
}

/// Makes a text from outside one line without terminal control characters.
pub(crate) fn printable(text: &str) -> String {
    let text = text.trim();
    let escaped =
        |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(escaped).collect()
}
