//! Brings a device to a whole file system: probes it, formats what is blank, and grows it.
//!
//! Promises: nothing but a blank device is formatted; after a crash at any step the next attempt
//! goes on from there. It may use `records` and `device`.

pub mod grow;
pub(crate) mod mmp;
pub mod prepare;
pub mod probe;
pub mod superblock;
mod tool;
