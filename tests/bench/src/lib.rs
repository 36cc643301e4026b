//! Measurements with targets: calls, routing, durable creates, several csi-clouds and guests, very
//! many idle edges ([`scale`]) and a single one ([`idle`]), far and lossy networks ([`badnet`]).
//!
//! Hostile peers ([`hostile`]) and the page in a browser ([`page`]) have targets too.
//!
//! The products are the release build in every profile of the measuring program.

pub mod badnet;
pub mod calls;
pub mod command;
mod control_group;
pub mod durable;
pub mod figures;
pub mod grown;
pub mod guest_io;
pub mod hostile;
pub mod idle;
pub mod lives;
pub mod load;
pub mod page;
mod repeats;
pub mod replicas;
pub mod report;
pub mod routing;
pub mod scale;
pub mod usage;
