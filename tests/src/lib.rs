//! Drivers, harness, conformance and measurements for Edge CSI.

pub mod cluster;
pub mod e2e;
