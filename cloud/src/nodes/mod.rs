//! The edges: who may link, the links themselves, and one call to one node.
//!
//! A call survives its link. No node is asked before it is admitted. May use: telemetry, state, pki, rewrite.

pub mod accept;
pub mod admission;
pub mod discover;
pub mod in_doubt;
pub mod lease_queue;
pub mod link_task;
pub mod links;
pub mod node_call;
pub mod query;
pub mod scopes;
