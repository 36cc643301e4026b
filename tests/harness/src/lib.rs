//! Shared parts of several test crates: real programs as processes, the world in which they run,
//! and clients that see bytes. Networks can be cut or made bad.
//!
//! It may use the `drivers`, and of `cloud` the API of etcd. It knows nothing of Kubernetes.

pub mod answers;
pub mod clock;
pub mod etcd;
pub mod etcd_server;
pub mod filled;
pub mod flood;
pub mod ginkgo;
pub mod hostile_cloud;
pub mod http;
pub mod leftovers;
pub mod net;
pub mod no_credit;
pub mod port;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod raw;
pub mod relay;
pub mod replicas;
pub mod requests;
pub mod stand;
pub mod tier;
pub mod twin;
pub mod wait;
pub mod world;
