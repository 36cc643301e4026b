//! `make scale`: the cost of many idle edges for csi-cloud, and the time until they link again
//! after a crash.
//!
//! csi-cloud is the real program in a process of its own. The edges are light: the product's link
//! and hello, and an HTTP/2 server with one answer for every call.

pub mod cases;
pub mod command;
pub mod edges;
pub mod kind;
pub mod machine;
pub mod report;
