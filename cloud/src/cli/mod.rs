//! The commands of csi-cloud beside `serve`: tables for people, JSON for scripts.
//!
//! Each command is one arm in `run`, and one file if it prints more than a sentence.
//! May use: all rooms to its left in docs/architecture.md.

pub mod ca;
pub mod calls;
pub mod cells;
mod doctor;
pub mod drivers;
mod explain;
pub mod homes;
pub mod intents;
pub mod leases;
pub mod nodes;
pub mod output;
mod replicas;
mod rotation;
pub mod run;
pub mod store;
pub mod tokens;
mod top;
pub mod volumes;
