//! csi-cloud and csi-edge as programs, over both transports, against drivers that break as they are
//! told. One binary, as each takes seconds to link: no test may touch what belongs to the process.

mod admin;
mod drain;
mod edge_topology;
mod faults;
mod forwarding;
mod holder;
mod isolation;
mod kube;
mod limits;
mod links;
mod lists;
mod net;
mod restart;
mod routing;
mod secrets;
mod start;
mod surviving;
mod ways;
