//! What the cloud knows of volumes, nodes and drivers, and what it makes of it.
//!
//! The store makes a change durable before anybody sees it. All else here is pure: records in, decisions out.
//! The store's backends are the only I/O. May use: telemetry.

pub mod capabilities;
pub mod check;
pub mod clock;
pub mod create_journal;
pub mod driver_info;
pub mod election;
pub mod ingest;
mod json;
pub mod known;
pub mod line;
pub mod list_entry;
pub mod node_names;
pub mod policy;
pub mod recent;
pub mod record;
pub mod segment_index;
pub mod store;
pub mod txn;
