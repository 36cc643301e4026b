//! The messages that both ends exchange beside calls: the hello, news of drivers, leases of
//! volumes, and direct volumes that were not taken.
//!
//! Pure codecs: bytes from the other end are parsed once, within bounds, and never panic. May use:
//! names, csi.

pub mod hello;
pub mod lease;
pub mod not_taken;
