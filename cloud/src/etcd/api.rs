//! The messages and clients of etcd, generated from `etcd/rpc.proto`.
//!
//! The messages have no `Debug`, so a password or a secret key cannot be printed.
#![allow(missing_docs, unreachable_pub, unused_qualifications, reason = "generated")]
#![allow(elided_lifetimes_in_paths, reason = "generated")]
#![allow(clippy::all, clippy::pedantic, clippy::use_self, reason = "generated")]
#![allow(clippy::too_many_lines, clippy::excessive_nesting, reason = "generated")]
#![allow(clippy::allow_attributes_without_reason, reason = "generated")]

include!("gen/etcdserverpb.rs");
