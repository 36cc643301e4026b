//! A real guest: QEMU with Debian's kernel, KVM or emulated, whose process 1 is ours. Only here a
//! direct volume meets a second kernel. It is plugged in while the guest runs, as a VM runtime
//! does, and never mounted on the host.
//!
//! `machine` and `sandbox` stand for the runtime, and read only csi-edge's published entry.

pub mod command;
pub mod conditions;
pub mod initramfs;
pub mod inside;
pub mod kernel;
pub mod load;
pub mod machine;
pub mod protocol;
pub mod qmp;
pub mod sandbox;
pub mod turns;
