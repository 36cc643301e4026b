//! The example of a CSI driver: it implements all of CSI 1.13 for one node, with real data.
//!
//! A volume is a directory or a sparse image file below one state directory. Conformance, the demo
//! and the tests of direct volumes use it, since no other driver implements all of CSI.
//!
//! It promises three things:
//!
//! - Every RPC is idempotent, as CSI demands: a repeated call has the same result.
//! - A SIGKILL at any moment leaves an object whole or absent. `store` has how.
//! - A cancelled call does not leave an operation half done: blocking work runs to its end on a
//!   thread of its own.
//!
//! Two things are simpler than in a product. The capacity of a directory is promised and not
//! enforced, and access modes for several nodes are accepted although there is one node.
//!
//! Read it in this order. `identity`, `controller` and `node` are the services, one line for each
//! RPC. `volumes`, `snapshots`, `group` and `stage` do the work, and `check` validates requests.
//! `record` and `store` keep what must survive; `mounts`, `loops` and `remote` talk to the
//! kernel. `shares` is another driver, whose volumes are directories that several nodes have.

mod check;
mod controller;
mod core;
mod data;
mod driver;
mod extents;
mod fail;
mod group;
mod identity;
mod keys;
mod locks;
mod loops;
mod metadata;
mod mounts;
mod node;
pub mod private;
mod record;
pub mod remote;
mod room;
mod serve;
mod shares;
mod snapshots;
mod stage;
mod store;
#[cfg(test)]
mod test_core;
#[cfg(test)]
mod test_node;
#[cfg(test)]
mod test_shared;
mod usage;
mod volumes;

pub use self::core::Settings;
pub use self::driver::HostDir;
pub use self::keys::{ATTACH_WAITS, MUTABLE_KEY, PUBLISH_WAITS, TOPOLOGY_KEY};
pub use self::shares::Shares;
