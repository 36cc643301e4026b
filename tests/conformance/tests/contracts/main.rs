//! What other files promise: the official csi.proto, and the manifests, rules and dashboards in
//! `deploy/`.

mod deploy;
mod descriptor;
