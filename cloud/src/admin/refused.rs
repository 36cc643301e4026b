//! Refusals of admin commands, each with its HTTP status.

use proto::host::chain;

use crate::state::store::backend::StoreError;

/// The reason why a command had no effect.
#[derive(Debug)]
pub(crate) struct CommandError {
    /// The HTTP status code.
    pub(super) status: u16,
    /// For an operator.
    pub(super) text: String,
}

impl CommandError {
    /// The command is wrong.
    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self { status: 400, text: text.into() }
    }

    /// There is no such thing.
    pub(super) fn unknown(text: impl Into<String>) -> Self {
        Self { status: 404, text: text.into() }
    }

    /// The change would be wrong in the present state.
    pub(super) fn conflict(text: impl Into<String>) -> Self {
        Self { status: 409, text: text.into() }
    }

    /// csi-cloud itself failed.
    pub(super) fn failed(text: impl Into<String>) -> Self {
        Self { status: 500, text: text.into() }
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        Self::failed(chain(&error))
    }
}
