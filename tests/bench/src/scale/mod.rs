//! `make scale`: what many idle edges cost csi-cloud, and how fast they come back when it was
//! killed.
//!
//! csi-cloud is the real program in a process of its own; the edges are light: the link and the
//! hello of the product, and an HTTP/2 server that answers every call alike.

pub mod cases;
pub mod command;
pub mod edges;
pub mod machine;
pub mod report;
