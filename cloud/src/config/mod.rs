//! The command line and the configuration file of csi-cloud.
//!
//! Each room has its own settings. This room reads the file, puts the flags over it and reports
//! every mistake at once. Only here are clap's structs. May use: all rooms to its left in
//! docs/design/code-map.md.

pub mod file;
pub mod serve_arguments;

#[cfg(test)]
mod tests;

pub use self::file::Config;
