//! Telemetry of csi-cloud: calls in flight, calls that ended, metrics.
//!
//! Every room may report here, so this room imports almost no other. No call ever waits for it. May
//! use: error.

pub mod calls;
pub mod ended;
pub mod metrics;
