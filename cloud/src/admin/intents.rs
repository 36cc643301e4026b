//! `csi-cloud intents`: creates that were sent to a node.

use clap::Args;
use proto::admin::command::{Command, Page, Refusal, Row};
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::cells::{claim, short, since};
use crate::admin::page::{Cursor, Records, Walk, ids_after, not_empty};
use crate::state::record::Intent;

/// Show creates with an unknown outcome.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IntentsQuery {
    /// Of this driver only
    #[arg(long, value_name = "NAME")]
    pub driver: Option<DriverName>,
    /// Creates with a known outcome as well
    #[arg(long)]
    pub all: bool,
    /// The end of the page before.
    #[arg(skip)]
    pub after: Option<Cursor>,
}

impl Command<AdminState> for IntentsQuery {
    const NAME: &'static str = "intents";
    const PATH: &'static str = "/intents";
    const READS: bool = true;
    type Answer = Page<IntentView, Cursor>;

    async fn carry_out(self, admin: &AdminState) -> Result<Page<IntentView, Cursor>, Refusal> {
        Ok(admin.intents(&self))
    }
}

/// A create that was sent to a node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentView {
    /// Its RPC method.
    pub method: String,
    /// The name.
    pub name: String,
    /// The driver.
    pub driver: DriverName,
    /// The node to which it was sent.
    pub node: NodeName,
    /// The claim's namespace, if the provisioner sent it.
    pub claim_namespace: Option<String>,
    /// The claim's name.
    pub claim_name: Option<String>,
    /// The time at which it was first sent, in ms since 1970.
    pub since_ms: u64,
    /// The id of what it created; none while the outcome is unknown.
    pub made: Option<String>,
}

impl Row for IntentView {
    const HEADERS: &'static [&'static str] =
        &["NAME", "RPC", "DRIVER", "NODE", "CLAIM", "AGE", "MADE"];

    fn row(&self) -> Vec<String> {
        vec![
            short(&self.name),
            self.method.clone(),
            self.driver.to_string(),
            self.node.to_string(),
            claim(self.claim_namespace.as_deref(), self.claim_name.as_deref()),
            since(self.since_ms),
            self.made.as_deref().map_or_else(|| "open".into(), short),
        ]
    }
}

impl AdminState {
    /// Creates by driver, method and name; those with a known outcome only if the query wants them.
    pub(super) fn intents(&self, query: &IntentsQuery) -> Page<IntentView, Cursor> {
        let walk = Walk { driver: query.driver.as_ref(), after: query.after.as_ref() };
        let mut items = Vec::new();
        let next = self.store.read(|state| {
            walk.visit(
                state,
                |of, after| -> Records<'_, Intent> {
                    Box::new(of.intents().range(ids_after(after)))
                },
                |driver, name, intent| {
                    if query.all || intent.made.is_none() {
                        items.push(view(driver, name, intent));
                    }
                },
            )
        });
        Page { items, next }
    }
}

fn view(driver: &DriverName, name: &Id, intent: &Intent) -> IntentView {
    let claim = intent.claim.as_ref();
    IntentView {
        method: name.word().into(),
        name: name.text().into(),
        driver: driver.clone(),
        node: intent.node.clone(),
        claim_namespace: claim.and_then(|claim| not_empty(&claim.namespace)),
        claim_name: claim.and_then(|claim| not_empty(&claim.name)),
        since_ms: intent.since,
        made: intent.made.as_deref().map(str::to_owned),
    }
}
