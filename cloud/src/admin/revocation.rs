//! `csi-cloud node revoke`: the certificates of a node, or of a socket relay, count no more.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal, ask};
use proto::admin::command_line::Asked;
use proto::names::certificate::Subject;
use proto::names::{FrontName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::nodes::links::REVOKED;
use crate::state::clock::now;
use crate::state::trust::{Revocation, TrustChange};
use crate::state::txn::Txn;

/// Revoke all certificates that a node has now, for example as its key was stolen.
///
/// Its link ends at once, and its calls fail until it joins again. It joins only with a token
/// that is made after this (`csi-cloud token create`). `node admit` does not undo it. Its
/// volumes keep their home.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// Its name
    #[arg(required_unless_present = "relay")]
    #[serde(skip)]
    node: Option<NodeName>,
    /// Instead of a node's: those of the socket relay (`csi-cloud relay`) of this name
    #[arg(long, value_name = "NAME", conflicts_with = "node", alias = "front")]
    #[serde(skip)]
    relay: Option<FrontName>,
    /// The one of the two that was given.
    #[arg(skip)]
    name: Option<Subject>,
}

impl Command<AdminState> for Revoke {
    const NAME: &'static str = "node revoke";
    const PATH: &'static str = "/node/revoke";
    type Answer = Done;

    async fn run(self, asked: Asked) -> anyhow::Result<()> {
        let relay = self.relay.map(Subject::Front);
        let name = relay.or_else(|| self.node.map(Subject::Node));
        ask(Self { node: None, relay: None, name }, asked).await
    }

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let name = self.name.ok_or_else(|| Refusal::bad("name a node or a relay"))?;
        let of = name.clone();
        let revoke = move |txn: &mut Txn<'_>| {
            let before = txn.revocation(&of).map_or(0, |revocation| revocation.since);
            let revocation = Some(Revocation::at(now().max(before + 1)));
            txn.set_trust(TrustChange::Revocation(of, revocation));
        };
        admin.store.write(revoke).await?;
        Ok(Done::logged(match &name {
            // The handshake, and each link after its welcome, ask the store: none is missed.
            Subject::Node(node) => {
                let had_link = admin.links.now(node).is_some();
                admin.links.end(node, REVOKED);
                let link = if had_link { "its link is ended" } else { "it has no link" };
                format!(
                    "all certificates that {node} has now are revoked, and {link}; it joins again \
                     only with a token that is made from now on: `csi-cloud token create {node}`"
                )
            }
            Subject::Front(front) => format!(
                "all certificates that the relay {front} has now are revoked, and its connections \
                 end; give it another name: `csi-cloud ca issue --relay NAME`"
            ),
        }))
    }
}
