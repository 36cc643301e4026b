//! What csi-cloud counts and shows of itself: calls in flight and metrics.
//!
//! Every room may report here, so this one knows no other. Nothing that serves calls waits for it.
//! May use: proto.

pub mod calls;
pub mod metrics;
