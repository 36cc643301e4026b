//! Scenarios of the field with the driver called directly, and behind us: what is worse behind us
//! than a scenario allows is a fault.
//!
//! The driver is `fielddriver`, on the server that most vendors have (grpc-go).

pub mod command;
mod habits;
mod places;
mod raw;
mod scenarios;
mod scene;
