//! Knowledge about volumes, nodes and drivers, and pure decisions made from it.
//!
//! The store makes each change durable before anybody sees it. Its backends do the only I/O; all
//! other files map records to decisions. May use: etcd.

pub mod affinity;
pub mod authority;
pub mod capabilities;
pub mod check;
pub mod claims;
pub mod colocated;
pub mod condition;
mod contest;
pub mod default_name;
pub mod driver_info;
pub mod driver_state;
pub mod election;
pub mod ended_homes;
mod field;
pub mod home_claims;
pub mod ingest;
mod json;
mod key;
pub mod known;
pub(crate) mod leader_epoch;
pub mod line;
pub mod list_entry;
pub mod listed;
mod lost_segments;
pub mod node_labels;
pub mod node_names;
pub mod node_set;
pub mod not_taken;
pub mod older_store;
pub mod policy;
pub mod profile;
pub mod quotas;
pub mod recent;
pub mod record;
pub mod report;
pub mod segment_index;
pub mod set_apart;
pub mod starts;
pub mod store;
pub mod trust;
pub mod txn;
pub mod usage;

pub use proto::host::clock;
