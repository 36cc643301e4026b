//! Direct volumes and the runtimes that mount them: stand-ins that read the contract, and shims
//! that answer as the real ones. Real guests run in QEMU, and an OCI runtime serves the pods of a
//! real kubelet.
//!
//! It may use `harness`. It knows nothing of Kubernetes.

pub mod agent;
pub mod contract;
pub mod pair;
pub mod scene;
pub mod shim;
pub mod stand_in;
pub mod vm;
pub mod wrapper;
