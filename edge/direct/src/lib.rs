//! Volumes that a node hands to VM runtimes as devices instead of mounting them:
//! `docs/design/direct-volumes.md`.
//!
//! Promises: `edge-calls` knows direct volumes through closures only, `DeleteGuard` and
//! `IsDirect`, which [`Direct`] makes. It may use `proto` and `edge-calls`.

pub mod admin;
pub mod cdi;
pub mod device;
pub mod error;
pub mod format;
pub mod lease;
pub mod nri;
pub mod records;
pub mod runtimes;
mod service;
mod volume;

pub use device::vfio::Nvme;
pub use error::Error;
pub use service::direct::{Cloud, Direct, Settings};
pub use volume::target::climbs;
