//! `csi-cloud node readmit`: a node comes back whose certificate ended too long ago.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use proto::names::NodeName;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;

/// Renew the certificate of a node that was away for so long that it is not renewed any more.
///
/// The node asks with its old one within 7 days, and before csi-cloud is started again or another
/// csi-cloud leads; nobody has to go there. One that was revoked, or is older than another one that
/// has linked, stays refused.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadmitNode {
    /// Its name
    pub node: NodeName,
}

impl Command<AdminState> for ReadmitNode {
    const NAME: &'static str = "node readmit";
    const PATH: &'static str = "/node/readmit";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { node } = self;
        if admin.known_node(&node)?.removed.is_some() {
            return Err(Refusal::conflict(format!(
                "{node} was removed; `csi-cloud node admit {node}` lets it in again"
            )));
        }
        if admin.links.enrolment().issuers().is_none() {
            return Err(Refusal::conflict(
                "this csi-cloud issues no certificates: its configuration has no section [ca]",
            ));
        }
        admin.links.enrolment().readmit(&node);
        Ok(Done::logged(format!(
            "{node} gets a new certificate when it asks with its old one, for 7 days from now on, \
             unless csi-cloud is started again or another one leads before"
        )))
    }
}
