//! Carries out plans: the one place where a plan meets the nodes.

use std::sync::Arc;

use http::Response;
use proto::csi::frame;
use proto::csi::{DirectCall, Id, Key};
use proto::http2::forward::{Answer, Body};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::capacity::Capacities;
use super::create::{Target, create};
use super::identity::FrontIdentity;
use super::lists::merged::Lists;
use super::plan::Planner;
use super::request::IncomingCall;
use super::route::Plan;
use super::volume_call::{Sender, message_of};
use crate::error::Error;
use crate::lease::attach;
use crate::nodes::discover::Discovery;
use crate::nodes::in_doubt::InDoubt;
use crate::nodes::query::NodeQueries;
use crate::state::create_journal::CreateJournal;
use crate::state::store::writer::Store;

/// Calls of one driver in flight. More are refused, since each holds its request and its answer.
pub(crate) const MAX_CALLS: usize = 1024;

/// Carries out the calls of one front.
pub(crate) struct Dispatcher {
    pub(crate) planner: Planner,
    pub(crate) store: Store,
    pub(crate) queries: NodeQueries,
    pub(crate) journal: Arc<CreateJournal>,
    pub(crate) lists: Lists,
    pub(crate) capacities: Capacities,
    pub(crate) in_doubt: InDoubt,
    pub(crate) permits: Semaphore,
}

/// The result of a discovery.
enum Discovered {
    /// All ids have a home now.
    All,
    /// No id needed a home, or no node claims the one that is to be deleted.
    Nowhere,
    /// The answer is a list without entries.
    EmptyList,
}

impl Dispatcher {
    /// Answers a call.
    ///
    /// # Errors
    /// It was not carried out, or its outcome is unknown.
    pub(crate) async fn dispatch(&self, call: &mut IncomingCall) -> Result<Response<Body>, Error> {
        let Some(plan) = self.plan_with_homes(call).await? else { return Ok(empty()) };
        let sender = self.sender();
        match plan {
            Plan::Local => FrontIdentity::of(&self.planner, &self.store).answer(call.method),
            Plan::NodeOnly => Err(Error::NodeOnly(call.method.name())),
            Plan::Done => Ok(empty()),
            Plan::Discover(ids) => {
                let id = ids.first().map(Id::text).unwrap_or_default().into();
                Err(Error::NoSuchThing { driver: self.planner.driver.clone(), id })
            }
            Plan::Node(node) => {
                let _permit = self.admit()?;
                sender.check_settled(call, &node)?;
                self.check_delete(call)?;
                sender.call_node(&node, call).await
            }
            Plan::Stream(node) => {
                let _permit = self.admit()?;
                sender.check_settled(call, &node)?;
                sender.stream(&node, call).await
            }
            Plan::Create(name, nodes) => {
                let _permit = self.admit()?;
                if let Some(node) = nodes.first() {
                    sender.check_settled(call, node)?;
                }
                create(&sender, &self.journal, &name, Target::OneOf(nodes), call).await
            }
            Plan::CreateAgain(name, node) => {
                let _permit = self.admit()?;
                sender.check_settled(call, &node)?;
                create(&sender, &self.journal, &name, Target::SentTo(node), call).await
            }
            Plan::Everywhere(id) => {
                let _permit = self.admit()?;
                self.check_delete(call)?;
                sender.delete_everywhere(&id, call).await
            }
            Plan::All => {
                let _permit = self.admit()?;
                self.list(&sender, call).await
            }
            Plan::Capacity(nodes) => {
                let _permit = self.admit()?;
                self.capacities.sum(nodes, call).await
            }
        }
    }

    async fn plan(&self, call: &IncomingCall) -> Result<Plan, Error> {
        self.planner.plan(call, &self.store, self.queries.links(), &self.in_doubt).await
    }

    /// The plan, after the nodes were asked for the ids that it needs. None for an empty list.
    async fn plan_with_homes(&self, call: &IncomingCall) -> Result<Option<Plan>, Error> {
        let plan = self.plan(call).await?;
        let discovered = if let Plan::Discover(ids) = &plan {
            self.discover(ids, call).await?
        } else if let Plan::Everywhere(id) = &plan {
            let _permit = self.admit()?;
            let is_found = self.discovery(call).discover_deleted(id).await?;
            if is_found { Discovered::All } else { Discovered::Nowhere }
        } else {
            Discovered::Nowhere
        };
        match discovered {
            Discovered::All => self.plan(call).await.map(Some),
            Discovered::Nowhere => Ok(Some(plan)),
            Discovered::EmptyList => Ok(None),
        }
    }

    fn discovery<'a>(&'a self, call: &IncomingCall) -> Discovery<'a> {
        Discovery { queries: &self.queries, store: &self.store, deadline: call.deadline }
    }

    /// Asks the nodes for ids without a home, and records the homes.
    async fn discover(&self, ids: &[Id], call: &IncomingCall) -> Result<Discovered, Error> {
        let discovery = self.discovery(call);
        let _permit = self.admit()?;
        for id in ids {
            match discovery.discover(id).await {
                Ok(()) => {}
                // CSI: the list of a snapshot that does not exist is empty.
                Err(Error::NoSuchThing { .. }) if call.method.bulk() => {
                    return Ok(Discovered::EmptyList);
                }
                // A missing required field is reported first, whether or not the id exists.
                Err(error @ Error::NoSuchThing { .. }) => {
                    return Err(match call.method.incomplete(&call.message) {
                        Some(field) => Error::Missing(call.method.name(), field),
                        None => error,
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Discovered::All)
    }

    fn sender(&self) -> Sender<'_> {
        Sender {
            driver: &self.planner.driver,
            queries: &self.queries,
            store: &self.store,
            in_doubt: &self.in_doubt,
            scope: self.planner.scope(&self.store),
        }
    }

    fn admit(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.permits.try_acquire().map_err(|_| Error::Full(MAX_CALLS))
    }

    /// Refuses to delete a volume while a guest holds its lease.
    fn check_delete(&self, call: &IncomingCall) -> Result<(), Error> {
        match &call.key {
            Key::Delete(id) if call.method.direct() == Some(DirectCall::Delete) => {
                attach::check_delete(&self.store, self.queries.links(), &self.planner.driver, id)
            }
            _ => Ok(()),
        }
    }

    /// Lists all nodes. The driver's only node answers directly, byte for byte.
    async fn list(
        &self,
        sender: &Sender<'_>,
        call: &mut IncomingCall,
    ) -> Result<Response<Body>, Error> {
        let Some(single) = self.lists.single_node(call) else {
            return self.lists.list(call).await;
        };
        let answer = sender.node_call(&single.node, call).unary(&mut call.call).await?;
        if let Some(message) = message_of(&answer) {
            self.lists.record(single, &message).await;
        }
        Ok(answer.response())
    }
}

/// An answer of OK whose message has no fields.
fn empty() -> Response<Body> {
    Answer::of(frame::frame(&[])).response()
}
