//! `csi-cloud volume forget`: forgets the home of a volume, snapshot or group. Nothing is deleted.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use proto::csi::Id;
use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::page::{KINDS, id};
use crate::state::ingest;

/// Forget where a lost or absent volume lives. Nothing is deleted.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetVolume {
    /// Its driver
    pub driver: DriverName,
    /// Its id
    pub id: String,
    /// Its kind
    #[arg(long, value_parser = KINDS, default_value = "volume")]
    pub kind: String,
    /// Also if it is neither lost nor absent
    #[arg(long)]
    #[serde(default)]
    pub force: bool,
}

impl Command<AdminState> for ForgetVolume {
    const NAME: &'static str = "volume forget";
    const PATH: &'static str = "/volume/forget";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { driver, kind, id: name, force } = self;
        let key = id(&kind, &name).filter(|id| !matches!(id, Id::Name(..)));
        let key = key.ok_or_else(|| {
            Refusal::bad(format!("{kind:?} is none of volume, snapshot and group"))
        })?;
        let known = admin.store.read(|state| {
            let home = state.driver(&driver)?.home(&key)?;
            let is_gone = home.lost || home.absent || state.is_removed(&home.node);
            Some((home.node.clone(), is_gone))
        });
        let (node, is_gone) = known.ok_or_else(|| {
            Refusal::unknown(format!("{driver} has no {kind} {name} that is known"))
        })?;
        if !is_gone && !force {
            return Err(Refusal::conflict(format!(
                "the {kind} {name} is neither lost nor absent: it lives on {node}, and if it is \
                 forgotten a delete will look for it everywhere. Give --force if you are sure"
            )));
        }
        ingest::forget(&admin.store, &driver, &key).await?;
        Ok(Done::logged(format!(
            "the {kind} {name} of {driver} at {node} is forgotten; nothing was deleted there"
        )))
    }
}
