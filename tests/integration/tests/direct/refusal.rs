//! How a call was refused: its gRPC code, and words of its message.

use anyhow::ensure;
use tonic::{Code, Status};

/// The code of an outcome and its message. An error without a gRPC status is UNKNOWN.
pub(super) fn code(outcome: anyhow::Result<()>) -> (Code, String) {
    match outcome.map_err(|error| error.downcast::<Status>()) {
        Ok(()) => (Code::Ok, String::new()),
        Err(Ok(status)) => (status.code(), status.message().to_owned()),
        Err(Err(other)) => (Code::Unknown, other.to_string()),
    }
}

/// Fails unless a call was refused with this code and all these words.
///
/// # Errors
/// It was not; the error says how it ended.
pub(super) fn is_refused(
    outcome: anyhow::Result<()>,
    with: Code,
    words: &[&str],
) -> anyhow::Result<()> {
    let (code, why) = code(outcome);
    ensure!(code == with && words.iter().all(|word| why.contains(word)), "{code:?} {why}");
    Ok(())
}

/// Panics unless a call was refused with this code and all these words.
#[track_caller]
pub(super) fn assert_refused(outcome: anyhow::Result<()>, with: Code, words: &[&str]) {
    let refused = is_refused(outcome, with, words);
    assert!(refused.is_ok(), "expected {with:?} {words:?}, got {refused:?}");
}
