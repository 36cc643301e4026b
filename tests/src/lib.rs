//! Drivers, harness, conformance and measurements for Edge CSI.

pub mod badnet;
pub mod bench;
pub mod cluster;
pub mod e2e;
pub mod scale;
