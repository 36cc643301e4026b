//! `csi-cloud node revoke`: the certificates of a node, or of a socket relay, count no more.

use proto::names::certificate::Subject;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::done::{Done, done};
use crate::admin::refused::CommandError;
use crate::nodes::links::REVOKED;
use crate::state::clock::now;
use crate::state::trust::{Revocation, TrustChange};
use crate::state::txn::Txn;

/// The path of the command.
pub(crate) const PATH: &str = "/node/revoke";

/// Revokes all certificates that a name has now.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// The node, or the socket relay.
    pub name: Subject,
}

impl AdminState {
    /// Revokes all certificates of a name, and ends its link.
    ///
    /// # Errors
    /// The change is not durable.
    pub(super) async fn revoke(&self, request: Revoke) -> Result<Done, CommandError> {
        let Revoke { name } = request;
        let of = name.clone();
        let revoke = move |txn: &mut Txn<'_>| {
            let before = txn.revocation(&of).map_or(0, |revocation| revocation.since);
            let revocation = Some(Revocation::at(now().max(before + 1)));
            txn.set_trust(TrustChange::Revocation(of, revocation));
        };
        self.store.write(revoke).await?;
        Ok(done(match &name {
            // The handshake, and each link after its welcome, ask the store: none is missed.
            Subject::Node(node) => {
                let had_link = self.links.now(node).is_some();
                self.links.end(node, REVOKED);
                let link = if had_link { "its link is ended" } else { "it has no link" };
                format!(
                    "all certificates that {node} has now are revoked, and {link}; it joins again \
                     only with a token that is made from now on: `csi-cloud token create {node}`"
                )
            }
            Subject::Front(front) => format!(
                "all certificates that the front {front} has now are revoked, and its connections \
                 end; give it another name: `csi-cloud ca issue --front NAME`"
            ),
        }))
    }
}
