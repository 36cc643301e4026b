//! Findings of the doctors of both programs: a verdict for each check, and the table that shows
//! them.
//!
//! Looking changes nothing. Judging a fact is pure; `place` alone asks the system.

pub mod certificate;
pub mod finding;
pub mod place;
pub mod show;

pub use finding::{Finding, Verdict};
