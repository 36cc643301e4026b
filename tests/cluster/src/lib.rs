//! A whole Kubernetes on this machine ([`stand`]), the end-to-end tests in it ([`e2e`]), and
//! Kubernetes' own tests of storage ([`conformance`]). Claims with us and without us are compared
//! at a control plane alone ([`twin`]). Procedures of the documents are followed in [`documents`].
//!
//! Nothing of Kubernetes is mocked, because sidecars and kubelets decide what we must answer.

pub mod conformance;
pub mod documents;
pub mod e2e;
pub mod stand;
pub mod twin;
