//! VM runtimes: the contract by which they find direct volumes, and what their shims are asked.
//!
//! Promises: an entry appears and goes whole; a socket that answers identifies the runtime, never a
//! name; no number comes from the host. A new runtime is a file with a [`backend::Runtime`] and a
//! line in [`Runtimes::new`]. It may use `error`, `records`, `device` and
//! `format`.

pub mod backend;
pub mod entry;
pub mod error;
pub mod http;
mod installed;
pub mod kata_go;
pub mod kata_rs;
pub mod mount_info;
pub mod prerequisites;
pub mod reference;
pub mod registry;
pub mod sandbox;
pub mod stats;

pub use error::Error;
pub use registry::{PATIENCE, Roots, Runtimes, VolumeSandbox};
