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
                apart: &|node| why_apart(state, node, &self.driver),
                only: self.only.as_ref(),
                scope,
                policy: &self.policy,
                awaits: &|| state.awaited(&self.driver).next().is_some(),
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
            Unclear::Apart { node, why, was_sent: false }
                if self.policy.reschedule && method.direct() == Some(DirectCall::Create) =>
            {
                Error::RescheduleApart { node, why }
            }
            Unclear::Apart { node, why, .. } => Error::SetApart { node, driver, why },
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
        let away = |node: &NodeName| self.away(state, links, node);
        let members = driver.members().map(|(node, _)| node);
        elect(driver.elected(), members, away, self.policy.grace).cloned()
    }

    /// How long a node has had no link or has been set apart; for ever if it does not count.
    fn away(&self, state: &State, links: &Links, node: &NodeName) -> Option<Duration> {
        let driver = state.driver(&self.driver)?;
        if !driver.is_member(node) || !self.policy.may_elect(node) {
            return Some(Duration::MAX);
        }
        let apart = state.apart().why(node, &self.driver);
        let apart = apart.map(|apart| Duration::from_millis(now().saturating_sub(apart.since)));
        links.away(node).max(apart)
    }
}

fn why_apart(state: &State, node: &NodeName, driver: &DriverName) -> Option<String> {
    state.apart().why(node, driver).map(|apart| apart.reason.to_string())
}
