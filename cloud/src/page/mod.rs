//! The page: csi-cloud in a browser. It shows the fleet, what is wrong, and why something waits.
//!
//! It only reads, and shows what the admin commands and `explain` show. Nobody sees any of it
//! without a token or a client certificate. A look at everything is made once for all who watch,
//! and at most once a second.
//! May use: telemetry, state, nodes, relay, explain, admin.

mod answer;
mod asset;
mod attempts;
mod connection;
mod events;
mod find;
mod group;
mod guard;
mod hub;
pub(crate) mod listen;
mod look;
mod node_state;
mod problem;
mod replicas;
mod router;
mod screens;
mod sessions;
pub mod settings;
mod snapshot;
mod sweep;
mod timeline;
mod tokens;
mod trouble;
mod trust;
mod views;

#[cfg(test)]
mod tests;
