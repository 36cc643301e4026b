//! The bound of each check.

use std::time::Duration;

/// How long a check may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
