//! The command line and the configuration file of csi-cloud.
//!
//! Each room has its own settings. This room reads the file, puts the flags over it and reports
//! every mistake at once. Only here are clap's structs. May use: all rooms to its left in
//! docs/architecture.md.

pub mod admin_arguments;
pub mod arguments;
pub mod doctor_arguments;
mod duration;
pub mod explain_arguments;
pub mod file;
pub mod replica_arguments;
pub mod serve_arguments;
pub mod show_arguments;

#[cfg(test)]
mod tests;

pub use self::file::Config;
