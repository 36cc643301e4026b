//! Direct volumes and the runtimes that mount them: stand-ins that read the contract, shims that
//! answer as the real ones, and a kubelet's calls with what it does after each code. Real guests
//! run in QEMU, and an OCI runtime serves the pods of a real kubelet.
//!
//! It may use `harness`. It talks to no API server.

pub mod agent;
pub mod contract;
pub mod kubelet;
pub mod pair;
pub mod scene;
pub mod shim;
pub mod stand_in;
pub mod vm;
pub mod wrapper;
