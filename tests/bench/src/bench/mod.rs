//! Measures a call through Edge CSI against the same call made to the driver directly, in one run; and what it costs
//! to know much, and to forget nothing.

pub mod durable;
pub mod figures;
pub mod grown;
pub mod guest;
pub mod load;
pub mod report;
pub mod routing;
pub mod usage;
