//! csi-cloud and csi-edge as programs, over both transports, against drivers that break on demand.
//! It is one binary, because each takes seconds to link. So no test may change the state of the
//! process.

mod authority;
mod drain;
mod faults;
mod forwarding;
mod isolation;
mod lists;
mod parameters;
mod surviving;
mod waiting;
