//! The certificate authority of a small installation: it issues the certificates of both ends.
//!
//! A certificate names one node or one relay. It grants nothing that its holder asked for. May use:
//! state.

pub mod ca;
