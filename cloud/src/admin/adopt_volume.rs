//! `csi-cloud volume adopt`: the operator says at which node a volume, snapshot or group lives.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::page::{KINDS, id};
use crate::state::ingest;

/// Say at which node a volume lives that several nodes claim, or that cannot be asked for.
///
/// Look at the node first: all calls for the volume go there from now on, with their secrets.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptVolume {
    /// Its driver
    pub driver: DriverName,
    /// Its id
    pub id: String,
    /// The node that has it
    #[arg(long, value_name = "NODE")]
    pub node: NodeName,
    /// Its kind
    #[arg(long, value_parser = KINDS, default_value = "volume")]
    pub kind: String,
}

impl Command<AdminState> for AdoptVolume {
    const NAME: &'static str = "volume adopt";
    const PATH: &'static str = "/volume/adopt";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { driver, kind, id: name, node } = self;
        let key = id(&kind, &name).filter(|id| !matches!(id, Id::Name(..)) && !name.is_empty());
        let key = key.ok_or_else(|| {
            Refusal::bad(format!("{kind:?} with the id {name:?} is no volume, snapshot or group"))
        })?;
        admin.check_adopting(&driver, &node)?;
        let home = ingest::adopted(&admin.store, &driver, &key, &node).await?;
        if home != node {
            return Err(Refusal::conflict(format!(
                "the {kind} {name} of {driver} lives at {home}, which made or listed it; if that \
                 is wrong, `csi-cloud volume forget {driver} ID --force` first"
            )));
        }
        Ok(Done::logged(format!(
            "the {kind} {name} of {driver} lives at {node}; its calls go there from now on"
        )))
    }
}

impl AdminState {
    /// Refuses nodes that cannot have anything of the driver.
    fn check_adopting(&self, driver: &DriverName, node: &NodeName) -> Result<(), Refusal> {
        let has_driver =
            self.store.read(|state| state.driver(driver).is_some_and(|of| of.at(node).is_some()));
        if !has_driver {
            return Err(Refusal::unknown(format!(
                "node {node} never had driver {driver}; `csi-cloud nodes` shows what it has"
            )));
        }
        if self.store.read(|state| state.is_removed(node)) {
            return Err(Refusal::conflict(format!(
                "node {node} was removed for good; `csi-cloud node admit {node}` lets it in again"
            )));
        }
        Ok(())
    }
}
