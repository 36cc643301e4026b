//! `csi-cloud volume adopt`: the operator says at which node a volume, snapshot or group lives.

use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::done::{Done, done};
use crate::admin::page::id;
use crate::admin::refused::CommandError;
use crate::state::ingest;

/// The path of the command.
pub(crate) const PATH: &str = "/volume/adopt";

/// Records a home.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptVolume {
    /// Its driver.
    pub driver: DriverName,
    /// `volume`, `snapshot` or `group`.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// The node where it lives.
    pub node: NodeName,
}

impl AdminState {
    /// Records a home. The other claims to the id are dropped.
    ///
    /// # Errors
    /// The id is none of a volume, snapshot or group, or the node never had the driver or was
    /// removed. It also fails if the home is at another node, or the change is not durable.
    pub(super) async fn adopt_volume(&self, request: AdoptVolume) -> Result<Done, CommandError> {
        let AdoptVolume { driver, kind, id: name, node } = request;
        let key = id(&kind, &name).filter(|id| !matches!(id, Id::Name(..)) && !name.is_empty());
        let key = key.ok_or_else(|| {
            CommandError::bad(format!(
                "{kind:?} with the id {name:?} is no volume, snapshot or group"
            ))
        })?;
        self.check_adopting(&driver, &node)?;
        let home = ingest::adopted(&self.store, &driver, &key, &node).await?;
        if home != node {
            return Err(CommandError::conflict(format!(
                "the {kind} {name} of {driver} lives at {home}, which made or listed it; if that \
                 is wrong, `csi-cloud volume forget {driver} ID --force` first"
            )));
        }
        Ok(done(format!(
            "the {kind} {name} of {driver} lives at {node}; its calls go there from now on"
        )))
    }

    /// Refuses nodes that cannot have anything of the driver.
    fn check_adopting(&self, driver: &DriverName, node: &NodeName) -> Result<(), CommandError> {
        let has_driver =
            self.store.read(|state| state.driver(driver).is_some_and(|of| of.at(node).is_some()));
        if !has_driver {
            return Err(CommandError::unknown(format!(
                "node {node} never had driver {driver}; `csi-cloud nodes` shows what it has"
            )));
        }
        if self.store.read(|state| state.is_removed(node)) {
            return Err(CommandError::conflict(format!(
                "node {node} was removed for good; `csi-cloud node admit {node}` lets it in again"
            )));
        }
        Ok(())
    }
}
