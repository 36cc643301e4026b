//! Measurements: calls, routing, durable creates and guests (`bench`), very many idle edges
//! (`scale`), and far and lossy networks (`badnet`).

pub mod badnet;
pub mod bench;
pub mod scale;
