//! A whole Kubernetes on this machine ([`stand`]), and what must work in it ([`e2e`]).

pub mod e2e;
pub mod stand;
