//! What is kept on disk of the direct volumes of this node, below its state directory.
//!
//! Promises: a record appears and goes whole and is durable before it counts; a damaged record
//! hinders its own volume only. It uses no other room.

pub mod journal;
pub mod lock;
pub mod published;
pub mod staged;
