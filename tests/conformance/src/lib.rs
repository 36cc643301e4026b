//! Tests of what callers and drivers can rely on, with real programs: a volume's whole life, and
//! csi-sanity through the link. Records must stay whole while everything is killed and cut.

pub mod chaos;
pub mod demo;
pub mod powercut;
pub mod sanity;
pub mod twin;
