//! etcd: a client of its API, without policy. What is stored there is the business of `state`.
//!
//! A request goes to one member at a time, has a deadline, and is not sent again here. `api` is
//! generated from `cloud/etcd/rpc.proto`. May use: no other room.

pub mod api;
pub mod client;
pub mod error;
pub mod login;
mod members;
pub mod request;
pub mod settings;
#[cfg(test)]
pub(crate) mod test_servers;
pub mod watch;
