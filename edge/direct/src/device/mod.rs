//! Devices of this host: block devices, PCI controllers (VFIO) and vhost-user sockets (SPDK).
//!
//! Promises: a device that anybody else uses is refused, and so is one whose users are not known.
//! It uses no other room.

pub(crate) mod block;
pub mod host;
mod loops;
pub(crate) mod spdk;
pub(crate) mod vfio;
