//! An etcd of its kind, in memory: linearizable, with faults on request.
//!
//! `keys` has the keys and their history, `core` the leases, the members and the faults, `services`
//! the API, and `serve` the connections. A request does what real etcd does, or is refused with its
//! code and words.

mod api;
mod core;
mod fate;
mod keys;
mod leases;
mod serve;
mod services;
#[cfg(test)]
mod tests;
mod transactions;
mod watchers;

pub use self::core::Etcd;
pub use self::fate::{Fate, Kind};
pub use self::serve::channel;
