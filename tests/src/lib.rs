//! Drivers, harness, conformance and measurements for Edge CSI.

pub mod bench;
pub mod process;
pub mod stand;
pub mod testdriver;
