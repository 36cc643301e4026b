//! Direct volumes and those who mount them: stand-ins that read the contract as runtimes do, shims
//! that answer as theirs do, real guests in QEMU, and an OCI runtime for a real kubelet's pods.
//!
//! It may use `harness`. It knows nothing of Kubernetes.

pub mod contract;
pub mod pair;
pub mod scene;
pub mod shim;
pub mod stand_in;
pub mod vm;
pub mod wrapper;
