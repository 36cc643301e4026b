//! A link: one authenticated connection, dialed by the edge, on which the cloud calls.
//!
//! A transport carries control messages and two kinds of byte streams, which the cloud opens when
//! it has a first call for them. No room above knows the transports. A new one is a file here, its
//! scheme in `endpoint.rs` and an arm of `dial` in `transport.rs`. May use: names, host, control.

pub mod budget;
pub mod check;
pub mod end;
pub mod endpoint;
pub mod error;
pub mod keep_alive;
pub mod proxy;
pub mod quic;
pub mod steps;
pub mod tls;
pub mod transport;
pub mod ws;

pub use budget::{Budget, MessageRate};
pub use end::{ByteStream, Connect, End, Event, Io, Opening, StreamKind};
pub use error::{ASKING, GREETING, HANDSHAKE, LinkError, WRITE};
pub use keep_alive::KeepAlive;
pub use transport::{Link, dial};
pub use ws::join;
