//! csi-cloud and csi-edge as programs, over both transports, against drivers that break as they are
//! told. One binary, as each takes seconds to link: no test may touch what belongs to the process.

mod drain;
mod faults;
mod forwarding;
mod isolation;
mod lists;
mod parameters;
mod surviving;
mod waiting;
