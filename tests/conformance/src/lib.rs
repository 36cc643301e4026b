//! What callers and drivers can rely on, shown with real programs: a volume's whole life,
//! csi-sanity through the link, and records that stay whole while everything is killed and cut.

pub mod chaos;
pub mod demo;
pub mod sanity;
