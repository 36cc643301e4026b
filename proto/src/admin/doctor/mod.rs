//! What the doctors of both programs say: a finding for each thing that was looked at, and a table.
//!
//! Looking changes nothing. Deciding what a fact means is pure; `place` alone asks the system.

pub mod certificate;
pub mod finding;
pub mod place;
pub mod show;

pub use finding::{Finding, Verdict};
