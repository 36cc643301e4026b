//! Drivers, harness, conformance and measurements for Edge CSI.
