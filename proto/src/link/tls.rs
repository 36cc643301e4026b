//! TLS 1.3 of links, with certificates of one CA on both sides.
//!
//! Files are checked at start-up, so a wrong one is reported before a handshake fails far away. The
//! cloud's certificate is for servers and a node's for clients, so neither can play the other. An
//! edge that joins has no certificate yet, and knows the cloud's CA by its hash.

pub mod admit;
pub mod config;
pub mod credentials;
pub mod explain;
pub mod files;
pub mod pin;
mod provider;

pub use admit::{Admit, Denied};
pub use config::{
    Seen, checking_config, client_config, join_config, joining_config, server_config,
};
pub use credentials::{Credentials, trust_of};
pub use explain::{explain_close, explain_io, explain_quic, is_tls};
pub use files::{Files, Pem, Role, TlsError};
pub use pin::Pin;
