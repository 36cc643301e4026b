//! The messages that both ends exchange beside calls. They are about drivers, leases of volumes,
//! direct volumes that were not taken, certificates, and which csi-cloud leads.
//!
//! Pure codecs: bytes from the other end are parsed once, within bounds, and never panic. May use:
//! names, host, csi.

pub mod base64;
pub mod certificate;
pub mod health;
pub mod hello;
pub mod join;
pub mod leader;
pub mod lease;
pub mod machine;
pub mod metadata;
pub mod not_taken;
pub mod run;
pub mod watermark;
