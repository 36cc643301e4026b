//! `csi-cloud intent resolve`: the operator states the outcome of a create that nobody knows.

use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args};
use proto::admin::command::{Command, Done, Refusal};
use proto::csi::{Id, Method, Resource};
use proto::names::DriverName;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::page::id;
use crate::state::clock::now;
use crate::state::record::{Home, Intent};
use crate::state::txn::Txn;

/// State the outcome of a create, after a look at its node.
#[derive(Debug, Args, Serialize, Deserialize)]
#[command(group = ArgGroup::new("outcome").required(true))]
#[serde(deny_unknown_fields)]
pub struct ResolveIntent {
    /// Its driver
    pub driver: DriverName,
    /// The name that was to be created
    pub name: String,
    /// Its RPC
    #[arg(long, value_name = "RPC", default_value = Method::creating(Resource::Volume).name())]
    #[arg(value_parser = creating_methods())]
    pub method: String,
    /// It created nothing, so another node may create the name
    #[arg(long, group = "outcome")]
    #[serde(skip)]
    pub not_made: bool,
    /// It created this
    #[arg(long, group = "outcome", value_name = "ID")]
    pub made: Option<String>,
}

impl Command<AdminState> for ResolveIntent {
    const NAME: &'static str = "intent resolve";
    const PATH: &'static str = "/intent/resolve";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { driver, method, name, made, .. } = self;
        let key = id(&method, &name).filter(|id| matches!(id, Id::Name(..)));
        let key =
            key.ok_or_else(|| Refusal::bad(format!("{method} makes nothing that has a name")))?;
        if is_in_flight(admin, &driver, &key) {
            return Err(Refusal::conflict(format!(
                "a call for {name} is in flight and may still come to an end; see `csi-cloud calls`"
            )));
        }
        let written = admin.store.write(move |txn| match made {
            None => set_failed(txn, &driver, &key),
            Some(made) => set_created(txn, &driver, &key, made),
        });
        written.await?.map(Done::logged)
    }
}

fn is_in_flight(admin: &AdminState, driver: &DriverName, name: &Id) -> bool {
    let running = admin.calls.running();
    let mut calls = running.iter().filter(|(_, call)| call.driver == *driver);
    calls.any(|(_, call)| call.progress().is_about(name.text()))
}

fn open_intent(txn: &Txn<'_>, driver: &DriverName, name: &Id) -> Result<Intent, Refusal> {
    let intent = txn.intent(driver, name).cloned().ok_or_else(|| {
        let name = name.text();
        Refusal::unknown(format!("{driver} has no create of the name {name} that is known"))
    })?;
    match &intent.made {
        Some(made) => Err(Refusal::conflict(format!(
            "it is known what came of it: it made {made} at {}; delete that, and the name is free",
            intent.node
        ))),
        None => Ok(intent),
    }
}

/// The create made nothing.
fn set_failed(txn: &mut Txn<'_>, driver: &DriverName, name: &Id) -> Result<String, Refusal> {
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
) -> Result<String, Refusal> {
    let intent = open_intent(txn, driver, name)?;
    let Id::Name(method, text) = name else { return Err(Refusal::bad("that is no name")) };
    let kind = method.creates().ok_or_else(|| Refusal::bad("nothing is made by this"))?;
    let id = kind.id(made.clone());
    let node = intent.node.clone();
    let home = txn.home(driver, &id).cloned().unwrap_or_else(|| Home::at(node.clone(), now()));
    if home.node != node {
        let home = home.node;
        return Err(Refusal::conflict(format!(
            "{made} lives on {home}, and the create was sent to {node}"
        )));
    }
    let claim = home.claim.clone().or_else(|| intent.claim.clone());
    let home = Home { name: Some(text.as_str().into()), claim, ..home };
    txn.set_home(driver, &id, Some(home));
    let intent = Intent { made: Some(made.as_str().into()), machine: None, ..intent };
    txn.set_intent(driver, name, Some(intent));
    Ok(format!("the create of {text} made {made} at {node}"))
}

/// The names of the methods that create something.
fn creating_methods() -> PossibleValuesParser {
    PossibleValuesParser::new(Resource::ALL.map(|kind| Method::creating(kind).name()))
}
