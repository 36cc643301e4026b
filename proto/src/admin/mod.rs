//! The admin sockets of both programs: serving HTTP/1, asking it, tables of the answers, and what
//! their doctors find.
//!
//! What is served and shown is each program's own. May use: names, host.

pub mod cells;
pub mod client;
pub mod command;
pub mod command_line;
pub mod doctor;
pub mod http1;
pub mod input;
pub mod output;
pub mod table;
pub mod view;
