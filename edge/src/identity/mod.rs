//! The identity of this node: its key, made here, and the certificate that csi-cloud issues for it;
//! and the machine's.
//!
//! Promises: the key never leaves the node; certificate and key are one file, replaced in one step;
//! an identity that is valid is replaced only by a renewal or by an operator's word. It uses no
//! other room.

pub mod directory;
pub mod expiry;
pub mod join;
pub mod machine;
pub mod request;
pub mod schedule;
pub mod source;
#[cfg(test)]
pub(crate) mod test_ca;
