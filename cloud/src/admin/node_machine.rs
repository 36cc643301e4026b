//! `csi-cloud node accept`: which machine, or which of two csi-edges, a node is from now on.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use proto::control::hello::Run;
use proto::control::machine::MachineId;
use proto::names::NodeName;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::nodes::cordon;
use crate::nodes::machine::OTHER_MACHINE;
use crate::state::record::Node;

/// Say which machine, or which of two csi-edges, a node is; any other one is refused from then on.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptNode {
    /// Its name
    pub node: NodeName,
    /// The id of the machine to which it has moved, as its refusal has it: `csi-cloud explain node
    /// NODE`
    #[arg(long, required_unless_present = "run", conflicts_with = "run")]
    pub machine: Option<MachineId>,
    /// The run of csi-edge that is the node, if two are alive with its certificate: `csi-edge
    /// status` there shows it
    #[arg(long)]
    pub run: Option<Run>,
}

impl Command<AdminState> for AcceptNode {
    const NAME: &'static str = "node accept";
    const PATH: &'static str = "/node/accept";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let known = admin.known_node(&self.node)?;
        match (self.machine, self.run) {
            (Some(machine), None) => accept_machine(admin, self.node, &known, machine).await,
            (None, Some(run)) => accept_run(admin, self.node, &known, run).await,
            _ => Err(Refusal::bad("either a machine or a run is accepted")),
        }
    }
}

async fn accept_machine(
    admin: &AdminState,
    node: NodeName,
    known: &Node,
    machine: MachineId,
) -> Result<Done, Refusal> {
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
    let open = admin.store.read(|state| state.open_intents_at(&node).count());
    let before = known.machine.map_or_else(
        || "any other one is refused".into(),
        |before| format!("machine {before} is refused"),
    );
    Ok(Done::logged(format!(
        "{node} is machine {machine} from now on, and {before}; {open} creates there are open \
         (`csi-cloud intents`)"
    )))
}

async fn accept_run(
    admin: &AdminState,
    node: NodeName,
    known: &Node,
    run: Run,
) -> Result<Done, Refusal> {
    if known.cordoned().is_empty() {
        return Err(Refusal::conflict(format!(
            "{node} needs no accepted run: no two csi-edges are known that are alive with its \
             certificate"
        )));
    }
    let at = node.clone();
    admin.store.write(move |txn| cordon::accept(txn, &at, run)).await?;
    admin.links.history.forget_runs(&node);
    let open = admin.store.read(|state| state.open_intents_at(&node).count());
    Ok(Done::logged(format!(
        "run {run} is {node} from now on, and the other one is refused; {open} creates there are \
         open and not sent again (`csi-cloud intents`): either of them may have made those"
    )))
}
