//! What an operator sees of this node's direct volumes, and does about them.
//!
//! It reads records and entries from the disk, so it works whether csi-edge runs or not. It may use
//! every room.

pub mod reconcile;
pub mod show;
pub mod volumes;
