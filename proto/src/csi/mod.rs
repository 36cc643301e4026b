//! CSI as it stands on the wire: messages, the table of methods, framing, edits on bytes, statuses.
//!
//! Everything here is pure: bytes and values go in, bytes and values come out. Whatever treats one
//! RPC differently from another is a column of the table in `table.rs`. May use: names, host.

pub mod column;
pub mod direct;
pub mod frame;
pub mod key;
pub mod learn;
pub mod locks;
pub mod method;
pub mod status;
pub mod topology;
pub mod types;
pub mod wire;

mod required;
mod table;

pub use column::{Capabilities, Class, DirectCall, List, Local, NodeStep, Resource, Rewrite};
pub use key::{Id, Key, Segments};
pub use learn::{Learn, Made};
pub use locks::{Lock, LockPart};
pub use method::Method;
pub use types::*;
