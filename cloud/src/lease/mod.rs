//! Exclusive leases of direct volumes: a lease is durable before its node may use the volume.
//!
//! The store's task decides one step after another, so of two concurrent requests one is refused.
//! `docs/design/direct-volumes.md` proves that no two nodes hold a volume at a time.
//! May use: error, state, nodes.

pub mod answer;
pub mod attach;
pub mod decide;
pub mod holder_link;
pub(crate) mod mac;
pub mod request;
pub mod step;

#[cfg(test)]
mod tests;
