//! The answer of a command that changes something.

use serde::{Deserialize, Serialize};
use tracing::info;

/// The result of a change.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// True if anything was done; if not, `text` says what would be.
    pub done: bool,
    /// For an operator.
    pub text: String,
}

/// A change was made: it is logged.
pub(super) fn done(text: String) -> Done {
    info!(change = text, "changed by an operator");
    Done { done: true, text }
}
