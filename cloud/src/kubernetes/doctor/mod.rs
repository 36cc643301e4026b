//! `csi-cloud doctor`: looks for what keeps an installation from working.
//!
//! It reads and changes nothing. What a fact means is decided by pure functions; `examine` and
//! `installation` alone ask. What our role does not let it read is a finding of its own.

mod attachments;
mod cluster;
mod daemon_set;
pub mod examine;
mod expansion;
pub mod installation;
mod lookup;
mod nodes;
mod rights;
mod sidecars;
mod snapshots;
