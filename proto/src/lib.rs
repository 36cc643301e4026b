//! The protocol between csi-cloud and csi-edge, and what both programs share. No policy lives here.

pub mod admin;
pub mod config;
pub mod control;
pub mod csi;
pub mod host;
pub mod http2;
pub mod link;
pub mod names;
pub mod registration;
