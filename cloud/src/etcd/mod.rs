//! etcd: a client of its API, without policy. What is stored there is the business of `state`.
//!
//! `api` is generated from `cloud/etcd/rpc.proto`; its servers are for tests.

pub mod api;
