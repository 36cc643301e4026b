//! The project's own test drivers and harness. Nothing of it ships.

pub mod testdriver;
