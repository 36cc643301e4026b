//! Direct volumes: what csi-edge publishes, what runtimes and their shims make of it, and which
//! node owns a volume. Tests that format and mount are ignored unless asked for: they need root.

mod attached;
mod contest;
mod handover;
mod not_taken;
mod nri;
mod own;
mod ownership;
mod refusal;
mod runtime;
mod shim;
mod volumes;
