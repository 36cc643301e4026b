//! A plugin of the container runtime's Node Resource Interface, which knows a pod's handler and
//! mounts.
//!
//! Promises: VFIO and SPDK volumes get their typed mount; no container gets the host's directory
//! instead of its volume; runtime-rs gets no device that another may have. It is a program of its
//! own (`csi-edge direct nri`). It may use `records`, `device` and `runtimes`.

pub mod api;
pub mod connection;
pub mod guard;
pub mod mux;
pub mod plugin;
mod sandboxes;
pub mod session;
pub mod ttrpc;
pub mod uses;

pub use connection::is_connected;

/// The socket on which container runtimes listen for plugins.
pub const SOCKET: &str = "/var/run/nri/nri.sock";
