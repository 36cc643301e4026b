//! The CSI sockets in the cloud: a call is read, routed, dispatched and answered here.
//!
//! A request is parsed once, at the door. A code is a promise to the sidecars (`docs/errors.md`).
//! May use: telemetry, state, rewrite, nodes, lease.

pub mod capacity;
pub mod dispatch;
pub mod front;
pub mod identity;
pub mod lists;
pub mod node_fronts;
pub mod route;
