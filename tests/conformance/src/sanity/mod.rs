//! csi-sanity against a driver, and against the same driver through a link, or at one of several
//! linked nodes.
//!
//! What a driver answers is the driver's affair. What the link must show is that every spec of the
//! suite ends as it does without the link, so the direct run is the measure of the others.

pub mod command;
mod kept;
pub mod nodes;
pub mod report;
pub mod run;
mod started;
pub mod suite;
mod tidy;
pub mod tied;
