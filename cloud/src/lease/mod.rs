//! Exclusive use of direct volumes: which node has one is durable before that node may use it.
//!
//! The store's own task decides, one step after another, so of two nodes that ask at once one is refused.
//! `docs/direct-volumes.md` proves that no two nodes have a volume at a time. May use: state, nodes.

pub mod answer;
pub mod decide;
pub mod hear;
pub mod standing;
pub mod step;
