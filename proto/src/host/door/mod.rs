//! The door of a listener: limits by address for connections that have shown nothing yet.

mod admission;
mod source;
mod turns;
mod waiting_slots;

pub use admission::{Admission, AtDoor, Full, Limits, Pending, Slot};
pub use source::Source;
