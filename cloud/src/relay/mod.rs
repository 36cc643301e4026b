//! The socket relay, `csi-cloud relay`: a small process that keeps the sidecars' sockets open.
//!
//! It copies each exchange and knows nothing of nodes. Calls wait while no csi-cloud serves. A call
//! whose connection broke is sent again with the same id, so nothing runs twice. `listen` is the
//! other end, in the csi-cloud that serves. May use: error, state, nodes, csi.

pub mod address;
pub mod connection;
pub mod front;
pub mod last_answers;
pub mod listen;
pub mod run;
pub mod server;
