//! The admin socket: what csi-cloud knows, and the changes that only an operator may make.
//!
//! Each command is one file, with its arguments, its work and its table, and one line in `server`.
//! Field names are a promise to scripts (`docs/reference/commands.md`): they do not change.
//! `health` serves `/livez`, `/readyz` and `/metrics`.
//! May use: error, telemetry, state, pki, nodes, lease, csi, kubernetes, explain.

pub mod accept_store;
pub mod admin_state;
pub mod adopt_volume;
pub mod ca_rotation;
pub mod calls;
mod cells;
pub mod doctor;
pub mod driver_profile;
pub mod drivers;
pub mod ended_calls;
pub mod explain;
pub mod forget_volume;
pub mod health;
pub mod intents;
pub mod leases;
pub mod metrics;
pub mod node_machine;
pub mod node_purge;
pub mod node_readmit;
pub mod node_removal;
pub mod nodes;
pub mod page;
pub mod rebuild_homes;
pub mod release_volume;
pub mod replicas;
pub mod resolve_intent;
pub mod revocation;
pub mod server;
pub mod tokens;
pub mod volumes;

#[cfg(test)]
pub(crate) mod tests;
