//! The nodes: admission of their edges, the links, and calls to one node.
//!
//! A call survives the loss of its link. No edge is served before it is admitted and authenticated.
//! May use: error, telemetry, state, pki, metadata.

pub mod accept;
mod brief;
mod broadcast;
mod budgets;
pub mod connections;
pub(crate) mod cordon;
pub mod discover;
pub mod driver_health;
mod greetings;
pub mod handle;
pub mod in_doubt;
pub mod inquiry;
mod join;
pub mod labelled_report;
pub(crate) mod leading;
pub mod lease_queue;
pub(crate) mod link_history;
pub mod link_task;
pub mod links;
pub(crate) mod machine;
pub mod node_call;
pub mod node_status;
mod overload;
pub(crate) mod published_topology;
pub mod query;
mod question;
mod refusal;
pub mod scopes;
