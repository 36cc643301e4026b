//! `csi-cloud intent resolve`: the operator states the outcome of a create that nobody knows.

use proto::csi::Id;
use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::done::{Done, done};
use crate::admin::page::id;
use crate::admin::refused::CommandError;
use crate::state::clock::now;
use crate::state::record::{Home, Intent};
use crate::state::txn::Txn;

/// The path of the command.
pub(crate) const PATH: &str = "/intent/resolve";

/// States the outcome of a create.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveIntent {
    /// Its driver.
    pub driver: DriverName,
    /// Its RPC method.
    pub method: String,
    /// The name.
    pub name: String,
    /// The id of what it created; none if it created nothing.
    pub made: Option<String>,
}

impl AdminState {
    /// Records the outcome that the operator states.
    ///
    /// # Errors
    /// The method makes nothing with a name, a call for the name is in flight, or no open create of
    /// it is known. It also fails if the stated id lives elsewhere, or the change is not durable.
    pub(super) async fn resolve_intent(
        &self,
        request: ResolveIntent,
    ) -> Result<Done, CommandError> {
        let ResolveIntent { driver, method, name, made } = request;
        let key = id(&method, &name).filter(|id| matches!(id, Id::Name(..)));
        let key = key
            .ok_or_else(|| CommandError::bad(format!("{method} makes nothing that has a name")))?;
        if self.is_in_flight(&driver, &key) {
            return Err(CommandError::conflict(format!(
                "a call for {name} is in flight and may still come to an end; see `csi-cloud calls`"
            )));
        }
        let written = self.store.write(move |txn| match made {
            None => set_failed(txn, &driver, &key),
            Some(made) => set_created(txn, &driver, &key, made),
        });
        written.await?.map(done)
    }

    fn is_in_flight(&self, driver: &DriverName, name: &Id) -> bool {
        let running = self.calls.running();
        let mut calls = running.iter().filter(|(_, call)| call.driver == *driver);
        calls.any(|(_, call)| call.progress().is_about(name.text()))
    }
}

fn open_intent(txn: &Txn<'_>, driver: &DriverName, name: &Id) -> Result<Intent, CommandError> {
    let intent = txn.intent(driver, name).cloned().ok_or_else(|| {
        let name = name.text();
        CommandError::unknown(format!("{driver} has no create of the name {name} that is known"))
    })?;
    match &intent.made {
        Some(made) => Err(CommandError::conflict(format!(
            "it is known what came of it: it made {made} at {}; delete that, and the name is free",
            intent.node
        ))),
        None => Ok(intent),
    }
}

/// The create made nothing.
fn set_failed(txn: &mut Txn<'_>, driver: &DriverName, name: &Id) -> Result<String, CommandError> {
    let node = open_intent(txn, driver, name)?.node;
    txn.set_intent(driver, name, None);
    let name = name.text();
    Ok(format!(
        "the create of {name} at {node} is taken for not carried out; the next one may go to \
         another node, and if {node} has made it nevertheless, that is left behind"
    ))
}

/// The create made this.
fn set_created(
    txn: &mut Txn<'_>,
    driver: &DriverName,
    name: &Id,
    made: String,
) -> Result<String, CommandError> {
    let intent = open_intent(txn, driver, name)?;
    let Id::Name(method, text) = name else { return Err(CommandError::bad("that is no name")) };
    let kind = method.creates().ok_or_else(|| CommandError::bad("nothing is made by this"))?;
    let id = kind.id(made.clone());
    let node = intent.node.clone();
    let home = txn.home(driver, &id).cloned().unwrap_or_else(|| Home::at(node.clone(), now()));
    if home.node != node {
        let home = home.node;
        return Err(CommandError::conflict(format!(
            "{made} lives on {home}, and the create was sent to {node}"
        )));
    }
    let claim = home.claim.clone().or_else(|| intent.claim.clone());
    let home = Home { name: Some(text.as_str().into()), claim, ..home };
    txn.set_home(driver, &id, Some(home));
    let intent = Intent { made: Some(made.as_str().into()), ..intent };
    txn.set_intent(driver, name, Some(intent));
    Ok(format!("the create of {text} made {made} at {node}"))
}
