//! The certificate authority of a small installation: makes the certificates of both ends.
//!
//! A certificate names one node or one relay, and nothing that its holder asked for. May use: state.

pub mod ca;
