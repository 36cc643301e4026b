//! Records of this node's direct volumes on disk, below its state directory.
//!
//! Promises: a record appears and goes whole and is durable before it counts; a damaged record
//! hinders its own volume only. It uses no other room.

pub mod admitted;
pub mod journal;
pub mod lock;
pub mod published;
pub mod staged;
