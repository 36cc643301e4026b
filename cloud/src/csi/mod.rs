//! The CSI sockets in the cloud: a call is read, routed, dispatched and answered here.
//!
//! A request is parsed once, at the door (`request`). A code is a promise to the sidecars
//! (`docs/errors.md`). May use: error, telemetry, state, rewrite, nodes, lease.

pub mod capacity;
pub mod create;
pub mod dispatch;
pub mod front;
pub mod identity;
pub mod lists;
pub mod node_fronts;
pub mod plan;
pub mod questions;
pub mod request;
pub mod route;
pub mod volume_call;
