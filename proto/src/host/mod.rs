//! The process and its machine: tracked tasks, unix sockets, files that appear whole, text that is
//! safe to show, start and end; limits and delays.
//!
//! Every task has a name and an owner, and every wait for one ends. May use: names.

pub mod accept;
pub mod backoff;
pub mod bind;
pub mod chain;
pub mod clock;
pub mod door;
pub mod files;
pub mod limit;
pub mod line_queue;
pub mod mountinfo;
pub mod peer_log;
pub mod plain;
pub mod private;
pub mod program;
pub mod publish;
pub mod socket;
pub mod tasks;

pub use chain::chain;
pub use plain::plain;
