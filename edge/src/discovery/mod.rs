//! Finds drivers by the kubelet's registration of plugins, in two kinds of directories.
//!
//! In a directory of ours csi-edge plays the kubelet, and tells each registrar what became of its
//! driver. In the kubelet's it asks and tells nothing. Promises: a driver that is not allowed is
//! not used; a front of ours is never taken for a driver. What was found is kept over a restart. It
//! may use `edge-calls`.

mod announcement;
mod client;
mod file;
mod keep;
mod scan;
pub mod settings;
pub mod table;

pub use keep::Discovery;

#[cfg(test)]
mod tests;
