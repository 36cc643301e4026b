//! Stand-ins for the runtimes of direct volumes: what the tests of `edge::direct` talk to.

pub mod shim;
