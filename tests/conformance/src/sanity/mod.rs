//! csi-sanity against a driver, and against the same driver through a link, or at one of several
//! linked nodes.
//!
//! Specs that fail without the link are the driver's faults. Every spec must end through the link
//! as it does without it, so the direct run is the reference.

pub mod command;
mod kept;
pub mod nodes;
pub mod report;
pub mod run;
mod started;
pub mod suite;
mod tidy;
pub mod tied;
