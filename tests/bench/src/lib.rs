//! Measurements with targets: calls, routing, durable creates and guests, very many idle edges
//! ([`scale`]), and far and lossy networks ([`badnet`]).
//!
//! The products are the release build in every profile of the measuring program.

pub mod badnet;
pub mod calls;
pub mod command;
pub mod durable;
pub mod figures;
pub mod grown;
pub mod guest_io;
pub mod lives;
pub mod load;
pub mod report;
pub mod routing;
pub mod scale;
pub mod usage;
