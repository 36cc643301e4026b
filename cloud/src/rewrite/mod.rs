//! What of a message is ours: parameters, our topology segment, the access type of a direct volume.
//!
//! Pure: bytes in, bytes out. All other fields pass byte for byte, also those that are newer than we are.
//! May use: state.

pub mod colocate;
pub mod created;
pub mod direct;
pub mod message;
pub mod parameters;
