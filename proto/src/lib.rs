//! What the two ends of an Edge CSI link agree on. No policy lives here.

/// The CSI messages and services, generated from `csi/v1/csi.proto`.
///
/// The messages have no `Debug`, so that a request with secrets in it cannot be printed.
#[allow(missing_docs, unreachable_pub, unused_qualifications, elided_lifetimes_in_paths, reason = "generated")]
#[allow(clippy::allow_attributes_without_reason, clippy::all, clippy::pedantic, clippy::use_self, clippy::too_many_lines, clippy::excessive_nesting, reason = "generated")]
#[rustfmt::skip]
pub mod csi {
    include!("gen/csi.v1.rs");
}

pub mod awake;
mod batch;
pub mod config;
pub mod direct;
pub mod error;
pub mod forward;
pub mod frame;
pub mod hello;
pub mod holder;
pub mod http2;
pub mod identity;
pub mod link;
pub mod own;
pub mod program;
pub mod publish;
pub mod rpc;
pub mod socket;
pub mod stop;
pub mod topology;
pub mod upstream;
pub mod wire;
