//! Direct volumes: the entries that csi-edge publishes, the runtimes and shims that read them, and
//! the lease. Tests that format and mount are ignored by default, because they need root.

mod attached;
mod contest;
mod handover;
mod lease;
mod not_taken;
mod nri;
mod ownership;
mod publication_time;
mod refusal;
mod runtime;
mod second_mount;
mod shim;
mod volumes;
