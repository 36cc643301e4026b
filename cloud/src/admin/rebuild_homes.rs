//! `csi-cloud homes rebuild`: learns where volumes live, from the operator or from the nodes.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::done::{Done, done};
use crate::admin::refused::CommandError;
use crate::state::ingest;
use crate::state::node_names::names;

/// The path of the command.
pub(crate) const PATH: &str = "/homes/rebuild";

/// Homes that are recorded at the same time, so that they share a commit.
const AT_ONCE: usize = 256;
/// The most silent nodes that the answer names.
const FEW: usize = 10;

/// Learns where volumes live.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RebuildHomes {
    /// Of this driver only; of all if there is none.
    pub driver: Option<DriverName>,
    /// These homes; none asks the nodes.
    pub homes: Option<Vec<GivenHome>>,
}

/// A volume's home, as the operator gives it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenHome {
    /// Its driver.
    pub driver: DriverName,
    /// Its node.
    pub node: NodeName,
    /// Its id.
    pub id: String,
}

impl AdminState {
    /// Learns where volumes live.
    ///
    /// # Errors
    /// A given home is not durable, or no front has the driver whose nodes are to be asked.
    pub(super) async fn rebuild_homes(&self, request: RebuildHomes) -> Result<Done, CommandError> {
        match request.homes {
            Some(homes) => self.record_homes(request.driver, homes).await,
            None => self.ask_nodes(request.driver).await,
        }
    }

    async fn record_homes(
        &self,
        driver: Option<DriverName>,
        mut homes: Vec<GivenHome>,
    ) -> Result<Done, CommandError> {
        homes.retain(|home| driver.as_ref().is_none_or(|driver| home.driver == *driver));
        let unknown = self.unknown_nodes(&homes);
        let count = homes.len();
        let recording = stream::iter(homes).map(|GivenHome { driver, node, id }| async move {
            ingest::discovered(&self.store, &driver, &Id::Volume(id), &node, Bytes::new()).await
        });
        let recorded: Vec<_> = recording.buffer_unordered(AT_ONCE).collect().await;
        recorded.into_iter().collect::<Result<(), _>>()?;
        let mut text = format!(
            "{count} homes were taken over; those that had another home keep it, see `csi-cloud \
             volumes`"
        );
        if !unknown.is_empty() {
            text += &format!("; never linked so far: {}", names(&unknown));
        }
        Ok(done(text))
    }

    /// The nodes of these homes that never linked.
    fn unknown_nodes(&self, homes: &[GivenHome]) -> Vec<NodeName> {
        let mut unknown: Vec<_> = self.store.read(|state| {
            let nodes = homes.iter().map(|home| &home.node);
            nodes.filter(|node| state.node(node).is_none()).cloned().collect()
        });
        unknown.sort();
        unknown.dedup();
        unknown
    }

    /// Asks the nodes for all that they have.
    async fn ask_nodes(&self, driver: Option<DriverName>) -> Result<Done, CommandError> {
        let mut lines = Vec::new();
        for (name, front) in &self.fronts {
            if driver.as_ref().is_none_or(|driver| name == driver) {
                let rebuilt = front.lists().rebuild().await;
                lines.push(format!("{name}: {}", summary(rebuilt)));
            }
        }
        if lines.is_empty() {
            return Err(CommandError::unknown(
                "there is no front of that driver; `csi-cloud drivers` shows them",
            ));
        }
        Ok(done(lines.join("\n")))
    }
}

/// A summary: the nodes that answered, their entries, and the nodes without an answer.
fn summary(rebuilt: Vec<(NodeName, Result<usize, String>)>) -> String {
    let mut answered = 0;
    let mut things = 0;
    let mut silent = Vec::new();
    for (node, outcome) in rebuilt {
        match outcome {
            Ok(count) => {
                answered += 1;
                things += count;
            }
            Err(reason) => silent.push(format!("{node} ({reason})")),
        }
    }
    let text = format!("{answered} nodes have {things} volumes and snapshots");
    if silent.is_empty() {
        return text;
    }
    let named = silent.get(..FEW).unwrap_or(&silent).join(", ");
    format!("{text}; {} did not say: {named}", silent.len())
}
