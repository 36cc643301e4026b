//! `csi-cloud node accept`: a node is another machine from now on.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use proto::control::machine::MachineId;
use proto::names::NodeName;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::node_removal::open_intents_at;
use crate::nodes::machine::OTHER_MACHINE;
use crate::state::record::Node;

/// Move a node to the machine that has its disk now; the one before is refused from then on.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptMachine {
    /// Its name
    pub node: NodeName,
    /// The machine's id, as its refusal has it: `csi-cloud explain node NODE`
    #[arg(long)]
    pub machine: MachineId,
}

impl Command<AdminState> for AcceptMachine {
    const NAME: &'static str = "node accept";
    const PATH: &'static str = "/node/accept";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { node, machine } = self;
        let known = admin.known_node(&node)?;
        if known.machine == Some(machine) {
            return Ok(Done { done: true, text: format!("{node} is machine {machine} already") });
        }
        let at = node.clone();
        let written = admin.store.write(move |txn| {
            // Another command may have changed it since.
            if let Some(known) = txn.node(&at).cloned() {
                txn.set_node(&at, Some(Node { machine: Some(machine), ..known }));
            }
        });
        written.await?;
        admin.links.end(&node, OTHER_MACHINE);
        let open = admin.store.read(|state| open_intents_at(state, &node));
        let before = known.machine.map_or_else(
            || "any other one is refused".into(),
            |before| format!("machine {before} is refused"),
        );
        Ok(Done::logged(format!(
            "{node} is machine {machine} from now on, and {before}; {open} creates there are open \
             (`csi-cloud intents`)"
        )))
    }
}
