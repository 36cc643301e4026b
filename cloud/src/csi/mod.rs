//! The CSI sockets in the cloud: calls are read, routed, dispatched and answered here.
//!
//! `request` parses each request once. The codes of answers are promises to the sidecars
//! (`docs/reference/errors.md`). May use: error, telemetry, state, rewrite, nodes, lease.

mod after_start;
pub mod capacity;
pub mod create;
pub mod create_journal;
mod decide_direct;
pub mod dispatch;
mod ending;
mod exhausted;
pub mod facts;
mod failure_log;
pub mod front;
pub mod identity;
pub mod lists;
pub mod node_fronts;
mod remembered;
pub mod request;
pub mod route;
pub mod single_flight;
mod source_text;
mod unclear;
mod unconfirmed;
pub mod volume_call;
