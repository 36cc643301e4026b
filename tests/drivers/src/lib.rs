//! Two CSI drivers for tests: [`hostdir`] stores real data and is the example of a driver, and
//! [`testdriver`] answers from memory and injects faults.

pub mod grpc;
pub mod hostdir;
pub mod testdriver;
