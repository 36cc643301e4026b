//! `csi-cloud doctor`: looks for what keeps an installation with KubeEdge from working.
//!
//! It reads and changes nothing. What a fact means is decided by pure functions; `examine` alone
//! asks. What our role does not let it read is a finding of its own.

mod attachments;
mod cluster;
mod daemon_set;
pub mod examine;
mod expansion;
pub mod finding;
mod nodes;
