//! The admin socket of csi-edge: what this node knows, for its operator.
//!
//! Each command is one file with its path, its JSON and its work, and one line in `server`'s table.
//! Field names are a promise to scripts (`docs/reference/commands.md`): they do not change.
//! It may use `edge-calls`, `edge-direct`, `discovery`, `link` and `state`.

pub mod calls;
pub mod drivers;
pub mod ended_calls;
mod metrics;
mod ordinary;
pub mod server;
pub mod state;
pub mod status;
pub mod volumes;

#[cfg(test)]
mod tests;
