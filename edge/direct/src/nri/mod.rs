//! A plugin of the container runtime's Node Resource Interface, for what only the container runtime
//! knows: a pod's handler, sandbox and mounts.
//!
//! Promises: volumes of the VFIO and SPDK kinds get their typed mount; a container that would get
//! the host's empty directory is not made. It runs as a program of its own (`csi-edge direct nri`),
//! off unless started: whoever may connect to that socket may change any container of the node. It
//! may use `records` and `runtimes`.

pub mod api;
pub mod connection;
pub mod guard;
pub mod mux;
pub mod plugin;
pub mod session;
pub mod ttrpc;

/// Where container runtimes listen for plugins.
pub const SOCKET: &str = "/var/run/nri/nri.sock";
