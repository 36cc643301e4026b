//! What the tests of direct volumes need: guests that read the contract as runtimes do, shims that answer as theirs
//! do, a scene of real programs with a driver of block volumes, and an OCI runtime for a real kubelet's pods.

pub mod contract;
pub mod guest;
pub mod pair;
pub mod scene;
pub mod shim;
#[cfg(test)]
mod test_own;
pub mod wrapper;
