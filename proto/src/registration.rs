//! Messages of the kubelet's plugin registration (`pluginregistration/v1/api.proto`).
//!
//! A registrar serves a socket there and names the driver and the driver's own socket. All of it is
//! generated: this room has no policy and does no I/O. May use: no other room.
#![allow(missing_docs, unreachable_pub, unused_qualifications, reason = "generated")]
#![allow(elided_lifetimes_in_paths, reason = "generated")]
#![allow(clippy::all, clippy::pedantic, clippy::use_self, reason = "generated")]
#![allow(clippy::too_many_lines, clippy::excessive_nesting, reason = "generated")]
#![allow(clippy::allow_attributes_without_reason, reason = "generated")]

include!("csi/gen/pluginregistration.rs");
