//! `csi-cloud volume forget`: forgets the home of a volume, snapshot or group. Nothing is deleted.

use proto::csi::Id;
use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::done::{Done, done};
use crate::admin::page::id;
use crate::admin::refused::CommandError;
use crate::state::ingest;

/// The path of the command.
pub(crate) const PATH: &str = "/volume/forget";

/// Forgets a home.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetVolume {
    /// Its driver.
    pub driver: DriverName,
    /// `volume`, `snapshot` or `group`.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// Also if it is neither lost nor absent.
    #[serde(default)]
    pub force: bool,
}

impl AdminState {
    /// Forgets a home.
    ///
    /// # Errors
    /// The kind or the id is not known, or the change is not durable. Without `force` also if it is
    /// neither lost, nor absent, nor at a removed node.
    pub(super) async fn forget_volume(&self, request: ForgetVolume) -> Result<Done, CommandError> {
        let ForgetVolume { driver, kind, id: name, force } = request;
        let key = id(&kind, &name).filter(|id| !matches!(id, Id::Name(..)));
        let key = key.ok_or_else(|| {
            CommandError::bad(format!("{kind:?} is none of volume, snapshot and group"))
        })?;
        let known = self.store.read(|state| {
            let home = state.driver(&driver)?.home(&key)?;
            let is_gone = home.lost || home.absent || state.is_removed(&home.node);
            Some((home.node.clone(), is_gone))
        });
        let (node, is_gone) = known.ok_or_else(|| {
            CommandError::unknown(format!("{driver} has no {kind} {name} that is known"))
        })?;
        if !is_gone && !force {
            return Err(CommandError::conflict(format!(
                "the {kind} {name} is neither lost nor absent: it lives on {node}, and if it is \
                 forgotten a delete will look for it everywhere. Give --force if you are sure"
            )));
        }
        ingest::forget(&self.store, &driver, &key).await?;
        Ok(done(format!(
            "the {kind} {name} of {driver} at {node} is forgotten; nothing was deleted there"
        )))
    }
}
