//! The store in etcd, which several csi-clouds share: one leads and writes, the others follow.
//!
//! `commit` writes, `load` and `follow` read, `lease` says that a replica is alive, `lead` is what
//! a leader does, `orders` are what operators want. `join` makes a store of all that.

mod cluster;
pub(super) mod commit;
mod follow;
mod join;
mod keys;
mod lead;
mod lease;
mod load;
mod member;
pub(super) mod offline;
mod orders;
mod position;
mod reading;
mod replicas;

#[cfg(test)]
mod tests;

pub use cluster::{Cluster, OrderError};
pub use join::Joining;
pub use reading::RecordReader;
pub use replicas::{Replica, Replicas};
