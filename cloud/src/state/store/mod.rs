//! The store: changes are made one after another, many to a commit, and seen when they are durable.
//!
//! A backend is one file: `file` is redb, `memory` forgets. `url` names the kinds. Everything is in memory too, so that
//! routing never waits.

pub mod backend;
pub mod codec;
pub mod file;
pub mod measured;
pub mod memory;
pub mod transfer;
pub mod url;
pub mod writer;

#[cfg(test)]
mod tests;
