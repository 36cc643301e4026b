//! Measures a call through Edge CSI against the same call made to the driver directly, in one run.

pub mod load;
pub mod report;
pub mod usage;
