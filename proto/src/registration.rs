//! The kubelet's registration of plugins, generated from `pluginregistration/v1/api.proto`.
//!
//! A registrar serves it at a socket, and says which driver is at which other socket.
#![allow(missing_docs, unreachable_pub, unused_qualifications, reason = "generated")]
#![allow(elided_lifetimes_in_paths, reason = "generated")]
#![allow(clippy::all, clippy::pedantic, clippy::use_self, reason = "generated")]
#![allow(clippy::too_many_lines, clippy::excessive_nesting, reason = "generated")]
#![allow(clippy::allow_attributes_without_reason, reason = "generated")]

include!("csi/gen/pluginregistration.rs");
