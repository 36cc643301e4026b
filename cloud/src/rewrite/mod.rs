//! The part of a CSI message that is for csi-cloud: parameters, our topology segment, the access
//! type of a direct volume.
//!
//! Pure: bytes in, bytes out. All other fields pass unchanged, also fields newer than this version.
//! May use: error, state.

pub mod class;
pub mod colocate;
pub mod created;
pub mod direct;
pub mod message;
pub mod parameters;
pub mod placed;
