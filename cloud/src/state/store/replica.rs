//! A replica: one of several csi-clouds with one store, with its name and its endpoints for edges.

use std::str::FromStr;

use proto::link::endpoint::Endpoint;
use proto::names::NodeName;

/// One of several csi-clouds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its name; no other one has it.
    pub name: String,
    /// Its endpoints for edges.
    pub endpoints: Vec<Endpoint>,
}

/// A name of a replica, which has the form of a node's name.
///
/// # Errors
/// It has another form.
pub fn replica_name(text: &str) -> Result<String, String> {
    let is_name = NodeName::from_str(text).is_ok();
    let wrong = || format!("{text:?} is no name of a replica; use lower case, digits, - and .");
    is_name.then(|| text.to_owned()).ok_or_else(wrong)
}

/// The name of this host, in lower case.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    replica_name(&name).unwrap_or_else(|_| "csi-cloud".to_owned())
}
