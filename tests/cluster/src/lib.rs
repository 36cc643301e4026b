//! A whole Kubernetes on this machine ([`stand`]), and the end-to-end tests in it ([`e2e`]).
//!
//! Nothing of Kubernetes is mocked, because sidecars and kubelets decide what we must answer.

pub mod e2e;
pub mod stand;
