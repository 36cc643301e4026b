//! Drivers, harness, conformance and measurements for Edge CSI.

pub mod badnet;
pub mod bench;
pub mod chaos;
pub mod cluster;
pub mod demo;
pub mod e2e;
pub mod sanity;
pub mod scale;
pub mod sim;
