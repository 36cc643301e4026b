//! CSI as it stands on the wire: messages, the table of methods, framing, edits on bytes.
//!
//! Everything here is pure: bytes and values go in, bytes and values come out. What one RPC needs and another does not
//! is a column of the table in [`rpc`]. May use: names.

pub mod direct;
pub mod frame;
pub mod rpc;
pub mod topology;
pub mod types;
pub mod wire;

pub use types::*;
