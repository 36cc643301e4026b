//! Contracts with other files: the official csi.proto, the manifests, rules and dashboards in
//! `deploy/`, and the page of errors.

mod deploy;
mod descriptor;
mod documents;
mod errors;
mod log;
mod units;
