//! The commands of csi-cloud that ask a running one, or look after its store, and what they print.
//!
//! Tables for people, JSON for programs. May use: all rooms.

pub mod client;
pub mod show;
pub mod table;
pub mod top;
