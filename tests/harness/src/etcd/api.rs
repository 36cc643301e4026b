//! The messages of etcd as csi-cloud has them, and the servers, generated from the same file.
#![allow(missing_docs, unreachable_pub, unused_qualifications, reason = "generated")]
#![allow(elided_lifetimes_in_paths, reason = "generated")]
#![allow(clippy::all, clippy::pedantic, clippy::use_self, reason = "generated")]
#![allow(clippy::too_many_lines, clippy::excessive_nesting, reason = "generated")]
#![allow(clippy::allow_attributes_without_reason, reason = "generated")]

pub use cloud::etcd::api::*;

include!("gen/etcdserverpb.rs");
