//! Executes CSI calls against the drivers of one node.
//!
//! Promises: an identical call in flight shares its run; calls that exclude each other are never at
//! a driver together before the first one's deadline, and creates never. It also holds what the
//! cloud told this node (scopes, metadata), what drivers said last (introductions), and how this
//! node asks for leases. It may use `proto` only.

mod bodies;
mod connection;
pub mod denied_methods;
mod driver_calls;
pub mod driver_check;
pub mod drivers;
pub mod ended_calls;
pub mod error;
pub mod executor;
pub mod expansions;
pub mod fence;
pub mod health;
pub mod introductions;
mod kept_answers;
pub mod lease_client;
mod many_deletes;
pub mod metadata;
mod missing_volumes;
pub mod node_volumes;
mod operation;
mod rewrite;
mod runs;
pub mod scopes;
pub mod state_format;
mod validity;

pub use error::Error;
pub mod watermark;
