//! A plugin of the container runtime's Node Resource Interface, which knows a pod's handler and
//! mounts.
//!
//! Promises: VFIO and SPDK volumes get their typed mount; no container gets the host's directory
//! instead of its volume. It runs only as a program of its own (`csi-edge direct nri`), because it
//! may change any container of the node. It may use `records` and `runtimes`.

pub mod api;
pub mod connection;
pub mod guard;
pub mod mux;
pub mod plugin;
pub mod session;
pub mod ttrpc;
pub mod uses;

pub use connection::is_connected;

/// The socket on which container runtimes listen for plugins.
pub const SOCKET: &str = "/var/run/nri/nri.sock";
