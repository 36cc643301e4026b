//! The clients and servers of CSI's services, generated from `csi/v1/csi.proto` of the crate
//! `proto`.
//!
//! The products copy messages and have no use for them.
#![allow(missing_docs, unreachable_pub, unused_qualifications, reason = "generated")]
#![allow(elided_lifetimes_in_paths, reason = "generated")]
#![allow(clippy::all, clippy::pedantic, clippy::use_self, reason = "generated")]
#![allow(clippy::too_many_lines, clippy::excessive_nesting, reason = "generated")]
#![allow(clippy::allow_attributes_without_reason, reason = "generated")]

include!("gen/csi.v1.rs");
