//! csi-sanity against a driver, and against the same driver through a link.
//!
//! What a driver answers is the driver's affair. What the link must show is that every spec of the suite ends as it
//! does without the link, so the direct run is the measure of the others.

mod report;
mod run;
mod tidy;

pub use report::{Counts, Report, Spec, State};
pub use run::{Between, Driver, Way, run};
