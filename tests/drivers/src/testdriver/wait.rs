//! The time that tests wait for calls, and the error when too few arrived.

use std::time::Duration;

/// How long the driver waits for what a test expects.
pub(super) const WAIT: Duration = Duration::from_secs(10);

/// A test waited for calls that did not arrive.
#[derive(Debug, thiserror::Error)]
#[error("waited {WAIT:?} for {wanted} {method}; came: {came}")]
pub struct WaitError {
    pub(super) wanted: usize,
    pub(super) method: String,
    pub(super) came: String,
}
