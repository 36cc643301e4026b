//! `csi-cloud store accept`: goes on with a store that is an older copy.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::state::known::State;
use crate::state::node_names::{first_few, names};
use crate::state::older_store;

/// Go on with a store that is an older copy, or was imported: creates and leases begin again.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptStore {
    /// Also while nodes have not linked, whose volumes the store may lack
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

impl Command<AdminState> for AcceptStore {
    const NAME: &'static str = "store accept";
    const PATH: &'static str = "/store/accept";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Some(lack) = admin.store.read(|state| state.starts().lack()) else {
            let text = "the store was not imported, and no node has shown that it is an older \
                        copy; nothing to accept";
            return Ok(Done { done: true, text: text.into() });
        };
        let nodes: Vec<_> = admin.store.read(|state| {
            let nodes = state.nodes().keys().filter(|node| !state.is_removed(node));
            nodes.cloned().collect()
        });
        let away = nodes.into_iter().filter(|node| admin.links.now(node).is_none());
        let away: Vec<_> = away.collect();
        if !self.yes && !away.is_empty() {
            return Ok(Done {
                done: false,
                text: format!(
                    "{lack}. Not every node has linked: {}. `csi-cloud store accept --yes` does \
                     not wait for them",
                    names(&away)
                ),
            });
        }
        let placed = admin.store.read(names_placed_since_start);
        older_store::accept(&admin.store).await?;
        let placed = match placed.is_empty() {
            true => String::new(),
            false => format!(
                " These were created since csi-cloud started, and another node may have one of the \
                 same name: {}.",
                first_few(placed.into_iter())
            ),
        };
        Ok(Done::logged(format!(
            "the store is accepted without the creates and leases that it lacks; creates and \
             leases go on.{placed}"
        )))
    }
}

/// The names of creates that were sent since this csi-cloud started.
fn names_placed_since_start(state: &State) -> Vec<String> {
    let since = state.starts().began();
    let drivers = state.drivers().iter();
    let sent = drivers.flat_map(|(driver, of)| {
        let sent = of.intents().iter().filter(|(_, intent)| intent.since >= since);
        sent.map(move |(name, intent)| format!("{} of {driver} at {}", name.text(), intent.node))
    });
    sent.collect()
}
