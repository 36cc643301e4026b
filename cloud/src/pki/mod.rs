//! The certificate authority of a small installation: it issues the certificates of both ends.
//!
//! A certificate names one node or one relay. The CA chooses every field; a request cannot add
//! rights. May use: no other room.

pub mod ca;
