//! HTTP/2 over any byte stream: serving, calling, and copying an exchange from one to the other.
//!
//! A copied exchange keeps each byte of message, metadata and trailers. May use: host, csi.

pub mod body;
pub mod busy_poll;
pub mod call_id;
pub mod deadline;
pub mod forward;
pub mod limits;
pub mod paced;
pub mod serve;

mod batch;
mod compressed;
mod unanswered;
