//! The store: changes are made one after another, many per commit, and are visible once durable.
//!
//! Each backend is one file: `file` is redb, `memory` forgets. `replicated` is etcd, for several
//! csi-clouds. `url` lists the kinds. All records are in memory too, so that routing never waits.

pub mod backend;
mod codec;
pub mod etcd_at;
pub(crate) mod examine;
mod existing;
mod failed_commit;
pub mod file;
mod format;
pub mod leadership;
pub mod measured;
pub mod memory;
pub mod replica;
pub mod replicated;
mod table;
pub mod transfer;
pub mod url;
mod write_loop;
pub mod writer;

#[cfg(test)]
pub(crate) mod tests;
