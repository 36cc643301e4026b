//! Carries a plan out: the one place where a plan meets the nodes.

use http::Response;
use proto::csi::frame;
use proto::csi::{DirectCall, Id, Key};
use proto::http2::forward::{Answer, Body};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::capacity::Capacities;
use super::create::{Target, create};
use super::identity::Identity;
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
use std::sync::Arc;

/// Calls of one driver in flight; more are refused, since each holds its request and its answer.
pub(crate) const MAX_CALLS: usize = 1024;

/// Carries out the calls of one front.
pub(crate) struct Dispatcher {
    pub(crate) planner: Planner,
    pub(crate) store: Store,
    pub(crate) asker: NodeQueries,
    pub(crate) journal: Arc<CreateJournal>,
    pub(crate) lists: Lists,
    pub(crate) capacities: Capacities,
    pub(crate) in_doubt: InDoubt,
    pub(crate) room: Semaphore,
}

impl Dispatcher {
    /// Answers a call.
    ///
    /// # Errors
    /// It was not carried out, or its outcome is not known.
    pub(crate) async fn dispatch(&self, call: &mut IncomingCall) -> Result<Response<Body>, Error> {
        let mut plan = self.plan(call).await?;
        if let Plan::Discover(ids) = &plan {
            if self.discover(ids, call).await? == Found::EmptyList {
                return Ok(empty());
            }
            plan = self.plan(call).await?;
        }
        let sender = self.sender();
        match plan {
            Plan::Local => Identity::of(&self.planner, &self.store).answer(call.method),
            Plan::NodeOnly => Err(Error::NodeOnly(call.method.name())),
            Plan::Done => Ok(empty()),
            Plan::Discover(ids) => {
                let id = ids.first().map(Id::text).unwrap_or_default().into();
                Err(Error::NoSuchThing { driver: self.planner.driver.clone(), id })
            }
            Plan::Node(node) => {
                let _room = self.room()?;
                sender.is_settled(call, &node)?;
                self.may_be_deleted(call)?;
                sender.at(&node, call).await
            }
            Plan::Stream(node) => {
                let _room = self.room()?;
                sender.is_settled(call, &node)?;
                sender.stream(&node, call).await
            }
            Plan::Create(name, nodes) => {
                let _room = self.room()?;
                if let Some(node) = nodes.first() {
                    sender.is_settled(call, node)?;
                }
                create(&sender, &self.journal, &name, Target::OneOf(nodes), call).await
            }
            Plan::CreateAgain(name, node) => {
                let _room = self.room()?;
                sender.is_settled(call, &node)?;
                create(&sender, &self.journal, &name, Target::SentTo(node), call).await
            }
            Plan::Everywhere(id) => {
                let _room = self.room()?;
                self.may_be_deleted(call)?;
                sender.everywhere(&id, call).await
            }
            Plan::All => {
                let _room = self.room()?;
                self.list(&sender, call).await
            }
            Plan::Capacity(nodes) => {
                let _room = self.room()?;
                self.capacities.sum(nodes, call).await
            }
        }
    }

    async fn plan(&self, call: &IncomingCall) -> Result<Plan, Error> {
        self.planner.plan(call, &self.store, self.asker.links(), &self.in_doubt).await
    }

    /// Asks the nodes for things without a home, and keeps where they live.
    async fn discover(&self, ids: &[Id], call: &IncomingCall) -> Result<Found, Error> {
        let discovery =
            Discovery { queries: &self.asker, store: &self.store, deadline: call.deadline };
        let _room = self.room()?;
        for id in ids {
            match discovery.discover(id).await {
                Ok(()) => {}
                // CSI: a list of a snapshot that is not there is empty.
                Err(Error::NoSuchThing { .. }) if call.method.bulk() => {
                    return Ok(Found::EmptyList);
                }
                // A request without a required field is wrong whatever it is about.
                Err(error @ Error::NoSuchThing { .. }) => {
                    let incomplete = call.method.incomplete(&call.message);
                    return Err(
                        incomplete.map_or(error, |field| Error::Missing(call.method.name(), field))
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Found::All)
    }

    fn sender(&self) -> Sender<'_> {
        Sender {
            driver: &self.planner.driver,
            asker: &self.asker,
            store: &self.store,
            in_doubt: &self.in_doubt,
            scope: self.planner.scope(&self.store),
        }
    }

    fn room(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.room.try_acquire().map_err(|_| Error::Full(MAX_CALLS))
    }

    /// A volume whose lease a guest holds is not deleted.
    fn may_be_deleted(&self, call: &IncomingCall) -> Result<(), Error> {
        match &call.key {
            Key::Delete(id) if call.method.direct() == Some(DirectCall::Delete) => {
                attach::check_delete(&self.store, self.asker.links(), &self.planner.driver, id)
            }
            _ => Ok(()),
        }
    }

    /// A list of all nodes. The driver's only node answers by itself, byte for byte.
    async fn list(
        &self,
        sender: &Sender<'_>,
        call: &mut IncomingCall,
    ) -> Result<Response<Body>, Error> {
        let Some(only) = self.lists.only(call) else { return self.lists.list(call).await };
        let answer = sender.node_call(&only.node, call).unary(&mut call.call).await?;
        if let Some(message) = message_of(&answer) {
            self.lists.heard(only, &message).await;
        }
        Ok(answer.response())
    }
}

/// What came of a discovery.
#[derive(PartialEq, Eq)]
enum Found {
    /// All that was asked for has a home now.
    All,
    /// The answer is a list without entries.
    EmptyList,
}

/// The answer of OK with a message that has no fields set.
fn empty() -> Response<Body> {
    Answer::of(frame::frame(&[])).response()
}
