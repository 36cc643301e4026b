//! Gathers the facts to route a call, and elects a shared driver's node.

use std::time::Duration;

use proto::csi::{DirectCall, Key, Method};
use proto::names::{DriverName, NodeName};
use tracing::info;

use super::request::IncomingCall;
use super::route::{Facts, Plan, Unclear, route};
use crate::error::Error;
use crate::nodes::in_doubt::InDoubt;
use crate::nodes::links::Links;
use crate::state::clock::now;
use crate::state::election::elect;
use crate::state::known::State;
use crate::state::node_names::names;
use crate::state::policy::{Policy, Scope};
use crate::state::store::writer::Store;

/// Plans the calls of one front.
pub(crate) struct Planner {
    pub(crate) driver: DriverName,
    /// The node of a node's own front.
    pub(crate) only: Option<NodeName>,
    pub(crate) policy: Policy,
}

impl Planner {
    /// The driver's scope: as configured, or else as the driver reports.
    pub(crate) fn scope(&self, store: &Store) -> Scope {
        if let Some(scope) = self.policy.scope {
            return scope;
        }
        let reported = store.read(|state| Some(state.driver(&self.driver)?.info().scope()));
        reported.unwrap_or(Scope::Node)
    }

    /// The plan for a call.
    ///
    /// # Errors
    /// No node is certain, or an election is not durable.
    pub(crate) async fn plan(
        &self,
        call: &IncomingCall,
        store: &Store,
        links: &Links,
        in_doubt: &InDoubt,
    ) -> Result<Plan, Error> {
        let scope = self.scope(store);
        let is_elected = scope == Scope::Shared && self.only.is_none();
        if is_elected && !matches!(call.key, Key::Local | Key::Node(_)) {
            self.elect(store, links, in_doubt).await?;
        }
        let decided = store.read(|state| {
            let facts = Facts {
                driver: state.driver(&self.driver),
                linked: &|node| links.now(node).is_some(),
                removed: &|node| state.is_removed(node),
                only: self.only.as_ref(),
                scope,
                policy: &self.policy,
                now: now(),
            };
            route(call.method, &call.key, &facts)
        });
        decided.map_err(|unclear| self.error(call.method, unclear))
    }

    fn error(&self, method: Method, unclear: Unclear) -> Error {
        let driver = self.driver.clone();
        match unclear {
            Unclear::Yet(why) => Error::NoRoute { driver, why },
            Unclear::Nowhere(why) => Error::Nowhere { driver, why },
            Unclear::NotBesideSource { node, made_from, topology } => {
                Error::NotBesideSource { driver, node, made_from, topology }
            }
            Unclear::Removed(node) => Error::Removed { node },
            Unclear::Away(node)
                if self.policy.reschedule && method.direct() == Some(DirectCall::Create) =>
            {
                Error::Reschedule { node }
            }
            Unclear::Away(node) => Error::NotLinked { node, driver },
            Unclear::SeveralHomes(nodes) => {
                Error::SeveralHomes { method: method.name(), nodes: names(&nodes) }
            }
        }
    }

    /// Elects another node after the elected one had no link for the grace.
    async fn elect(&self, store: &Store, links: &Links, in_doubt: &InDoubt) -> Result<(), Error> {
        in_doubt.forget(|node| store.read(|state| state.is_removed(node)));
        let Some(next) = store.read(|state| self.candidate(state, links)) else { return Ok(()) };
        info!(driver = %self.driver, node = %next, "elected for a shared driver");
        let driver = self.driver.clone();
        let written = store.write(move |txn| txn.elect(&driver, Some(next)));
        written.await.map_err(|source| Error::NotDurable { source: source.into() })
    }

    fn candidate(&self, state: &State, links: &Links) -> Option<NodeName> {
        let driver = state.driver(&self.driver)?;
        let away = |node: &NodeName| away(state, links, node);
        elect(driver.elected(), driver.nodes().keys(), away, self.policy.grace).cloned()
    }
}

/// How long a node has had no link; for ever if it was removed.
fn away(state: &State, links: &Links, node: &NodeName) -> Option<Duration> {
    if state.is_removed(node) { Some(Duration::MAX) } else { links.away(node) }
}
