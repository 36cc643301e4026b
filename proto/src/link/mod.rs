//! A link: one authenticated connection, dialed by the edge, on which the cloud calls.
//!
//! A transport carries control messages and two kinds of byte streams, which the cloud opens when
//! it has a first call for them. Above this room, three files of csi-cloud know the transports:
//! `accept.rs`, `join.rs` and `udp_buffer.rs`. A new one is a file here, its lines in
//! `endpoint.rs`, and its arms in `transport.rs` and `accept.rs`. May use: names, host, control.

pub mod addresses;
pub mod check;
pub mod end;
pub mod endpoint;
pub mod error;
pub mod keep_alive;
pub mod network;
pub mod proxy;
pub mod quic;
pub mod routes;
pub mod steps;
pub mod tls;
pub mod transport;
pub mod ws;

pub use end::{ByteStream, Connect, End, Event, Io, Opening, StreamKind};
pub use error::{ASKING, GREETING, HANDSHAKE, LinkError, WRITE};
pub use keep_alive::KeepAlive;
pub use network::NodeNetwork;
pub use transport::{Link, dial};
pub use ws::join;
