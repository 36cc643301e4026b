//! What routing needs to know, gathered for one call; and the election of a shared driver's node.

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
use crate::state::known::{DriverState, State};
use crate::state::node_names::names;
use crate::state::policy::{Policy, Scope};
use crate::state::store::writer::Store;

/// Plans the calls of one front.
pub(crate) struct Planner {
    pub(crate) driver: DriverName,
    /// The node that all calls are for, if it is a node's own front.
    pub(crate) only: Option<NodeName>,
    pub(crate) policy: Policy,
}

impl Planner {
    /// How far the driver's volumes reach: the operator's word, else what the driver says.
    pub(crate) fn scope(&self, store: &Store) -> Scope {
        let inferred =
            || store.read(|state| state.driver(&self.driver).map(|driver| driver.info().scope()));
        self.policy.scope.or_else(inferred).unwrap_or(Scope::Node)
    }

    /// Where a call goes now.
    ///
    /// # Errors
    /// Why no node is certain; or an election could not be made durable.
    pub(crate) async fn plan(
        &self,
        call: &IncomingCall,
        store: &Store,
        links: &Links,
        in_doubt: &InDoubt,
    ) -> Result<Plan, Error> {
        let scope = self.scope(store);
        if scope == Scope::Shared
            && self.only.is_none()
            && !matches!(call.key, Key::Local | Key::Node(_))
        {
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

    /// Elects another node if the one of now has been away for too long.
    async fn elect(&self, store: &Store, links: &Links, in_doubt: &InDoubt) -> Result<(), Error> {
        in_doubt.forget(|node| store.read(|state| state.is_removed(node)));
        let Some(next) = store.read(|state| self.candidate(state, links)) else { return Ok(()) };
        info!(driver = %self.driver, node = %next, "elected for a shared driver");
        let driver = self.driver.clone();
        let written = store.write(move |txn| txn.elect(&driver, Some(next)));
        written.await.map_err(|source| Error::NotDurable { source: source.into() })
    }

    fn candidate(&self, state: &State, links: &Links) -> Option<NodeName> {
        let driver: &DriverState = state.driver(&self.driver)?;
        let away = |node: &NodeName| {
            if state.is_removed(node) { Some(Duration::MAX) } else { links.away(node) }
        };
        elect(driver.elected(), driver.nodes().keys(), away, self.policy.grace).cloned()
    }
}
