//! The admin sockets of both programs: serving HTTP/1, asking it, and tables of the answers.
//!
//! What is served and shown is each program's own. May use: host.

pub mod cells;
pub mod client;
pub mod http1;
pub mod output;
pub mod table;
