//! The socket `view`: what csi-page shows. It only reads, and serves no secret.
//!
//! A look at the fleet is made once for all who watch, at most once a second, and not at all
//! without watchers. The paths and the JSON are `proto::admin::view`.
//! May use: telemetry, state, nodes, explain, admin.

mod answers;
mod find;
mod hub;
mod look;
pub mod server;
mod sweep;
mod timeline;
mod trouble;

#[cfg(test)]
mod tests;
