//! `make scale`: what many idle edges cost csi-cloud, and how fast they come back when it was
//! killed.
//!
//! csi-cloud is the real program in a process of its own. The edges are light: the product's link
//! and hello, and an HTTP/2 server with one answer for every call.

pub mod cases;
pub mod command;
pub mod edges;
pub mod machine;
pub mod report;
