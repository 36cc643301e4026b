//! csi-sanity against a driver, and against the same driver through a link, or at one of several linked nodes.
//!
//! What a driver answers is the driver's affair. What the link must show is that every spec of the suite ends as it
//! does without the link, so the direct run is the measure of the others.

mod kept;
mod nodes;
mod report;
mod run;
mod started;
mod suite;
mod tidy;
mod tied;

pub use nodes::{Case, run_nodes};
pub use report::{Counts, Report, Spec, State};
pub use run::{Between, Driver, Way, run};
pub use suite::Part;
pub use tied::{TIED, spread_differences};
