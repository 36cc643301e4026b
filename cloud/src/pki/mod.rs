//! The CA: makes certificates by command, and issues them to nodes that join or renew.
//!
//! Whom a certificate names comes from a token or from an older certificate, never from the
//! request. May use: state.

pub mod ca;
pub mod enrolment;
pub mod first_start;
pub mod install;
mod issue_number;
pub mod issuer;
pub mod issuers;
pub mod own;
mod pace;
pub mod request;
pub mod rotation;
