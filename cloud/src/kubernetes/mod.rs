//! Publishes in Kubernetes: CSIDriver objects, CSINode entries and labels of nodes, Events; and
//! what other pods need to trust csi-cloud.
//!
//! No call waits for it, and without Kubernetes everything else works. It changes only fields that
//! it applied itself. Watches keep a copy of the API's objects, pure functions decide, and one task
//! sends the requests. May use: telemetry, state, pki, rewrite, metadata, nodes.

pub mod api;
pub mod apply_csidrivers;
pub mod apply_nodes;
pub mod claims;
pub mod csidriver;
pub mod doctor;
pub mod events;
mod front_topology;
pub mod keeper;
pub mod labels;
pub mod managed_fields;
mod metadata;
pub mod mirror;
pub mod node;
mod node_metadata;
mod notice_limiter;
pub mod object_facts;
pub mod objects;
pub mod published;
pub mod report;
pub mod retry;
pub mod run;
pub mod settings;
pub mod snapshot_facts;
pub mod token_review;
pub mod trust;
pub mod volumes;
mod waiting_calls;
pub mod watch;
