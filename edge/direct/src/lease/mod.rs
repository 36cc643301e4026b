//! Exclusive use of a direct volume between nodes: this node's side of a lease.
//!
//! Promises: a volume is handed over only with a lease of the cloud's, which is durable before it
//! counts; a fenced volume is hidden from guests that start later. It may use `error`, `records`
//! and `volume`.

mod cache;
pub(crate) mod exclusive;
mod fence;
pub mod record;
