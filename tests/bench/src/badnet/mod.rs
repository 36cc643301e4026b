//! Calls over a far and lossy network: the load, the table and the targets.

pub mod command;
pub mod load;
pub mod report;
