//! Shows this node's direct volumes to an operator, and carries out the operator's commands on
//! them.
//!
//! It reads records and entries from the disk, so it works whether csi-edge runs or not. It may use
//! `records`, `device`, `runtimes`, `volume`, `lease` and `service`.

pub mod reconcile;
pub mod show;
pub mod volumes;
