//! Sends calls to nodes and records their effects; creates are sent here too. The effect of a call
//! is durable before the caller is answered.

use bytes::Bytes;
use http::Response;
use proto::csi::frame;
use proto::csi::{DirectCall, Id, Key, Learn, Method};
use proto::host::chain;
use proto::http2::forward::{Answer, Body};
use proto::names::{DriverName, NodeName};
use tracing::warn;

use super::request::IncomingCall;
use crate::error::Error;
use crate::lease::attach;
use crate::nodes::discover::Discovery;
use crate::nodes::in_doubt::InDoubt;
use crate::nodes::node_call::NodeCall;
use crate::nodes::query::NodeQueries;
use crate::rewrite::direct;
use crate::state::policy::Scope;
use crate::state::record::NodeDriver;
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::{ingest, list_entry};

/// Sends the calls of one front to nodes.
pub(crate) struct Sender<'a> {
    pub(crate) driver: &'a DriverName,
    pub(crate) queries: &'a NodeQueries,
    pub(crate) store: &'a Store,
    pub(crate) in_doubt: &'a InDoubt,
    pub(crate) scope: Scope,
}

impl Sender<'_> {
    /// Refuses a shared driver's call while an earlier one about the same is in doubt elsewhere.
    ///
    /// # Errors
    /// The node where the earlier call may still begin, and for how long.
    pub(crate) fn check_settled(&self, call: &IncomingCall, node: &NodeName) -> Result<(), Error> {
        if self.scope == Scope::Node {
            return Ok(());
        }
        let subjects = call.method.subjects(&call.key);
        let Some((at, time)) = self.in_doubt.elsewhere(&subjects, node) else { return Ok(()) };
        let seconds = time.as_secs() + 1;
        let why = format!(
            "another one about the same was sent to {at} and may begin there for {seconds} s more"
        );
        Err(Error::NoRoute { driver: self.driver.clone(), why })
    }

    /// Sends a call and waits for its answer.
    ///
    /// # Errors
    /// The node has no link, or did not answer in time.
    pub(crate) async fn send(
        &self,
        node: &NodeName,
        call: &mut IncomingCall,
    ) -> Result<Answer, Error> {
        let subjects = match self.scope {
            Scope::Shared => call.method.subjects(&call.key),
            Scope::Node => Vec::new(),
        };
        let sent = self.in_doubt.send(subjects, node.clone(), call.deadline);
        let answer = self.node_call(node, call).unary(&mut call.call).await?;
        sent.answered();
        Ok(answer)
    }

    /// Sends a call whose answer is a stream.
    ///
    /// # Errors
    /// The node has no link, or lost it.
    pub(crate) async fn stream(
        &self,
        node: &NodeName,
        call: &IncomingCall,
    ) -> Result<Response<Body>, Error> {
        self.node_call(node, call).stream(&call.call).await
    }

    pub(crate) fn node_call<'a>(&'a self, node: &'a NodeName, call: &IncomingCall) -> NodeCall<'a> {
        NodeCall {
            links: self.queries.links(),
            driver: self.driver,
            authority: self.queries.authority(),
            node,
            method: call.method,
            deadline: call.deadline,
            call: Some(call.running.clone()),
        }
    }

    /// The record of the driver at a node.
    pub(crate) fn node_driver(&self, node: &NodeName) -> Option<NodeDriver> {
        self.store.read(|state| state.driver(self.driver)?.at(node).cloned())
    }

    pub(crate) fn bad_answer(&self, node: &NodeName, method: Method, why: &'static str) -> Error {
        Error::BadAnswer {
            driver: self.driver.clone(),
            node: node.clone(),
            method: method.name(),
            why,
        }
    }

    /// Carries out a call at one node.
    ///
    /// # Errors
    /// It was not carried out, its outcome is unknown, or its outcome is not durable.
    pub(crate) async fn call_node(
        &self,
        node: &NodeName,
        call: &mut IncomingCall,
    ) -> Result<Response<Body>, Error> {
        self.attach_to_holder(call).await?;
        let mut answer = self.send(node, call).await?;
        if let Some(message) = message_of(&answer)
            && call.is_direct
            && call.method.direct() == Some(DirectCall::Validate)
        {
            let shown = direct::validated(call.method, &call.message, &message)?;
            answer = answer.with(frame::frame(&shown));
        }
        self.record(call, &answer).await?;
        Ok(answer.response())
    }

    /// Sends a delete to every node, since the id has no home.
    ///
    /// # Errors
    /// A node did not confirm it, or the outcome is not durable.
    pub(crate) async fn delete_everywhere(
        &self,
        id: &Id,
        call: &IncomingCall,
    ) -> Result<Response<Body>, Error> {
        let discovery =
            Discovery { queries: self.queries, store: self.store, deadline: call.deadline };
        let answer = discovery.delete(call.method, id, &call.call).await?;
        self.record(call, &answer).await?;
        Ok(answer.response())
    }

    /// Reserves the lease of a volume for the node of an attach call. This applies to direct
    /// volumes, and to any volume whose lease is held.
    async fn attach_to_holder(&self, call: &IncomingCall) -> Result<(), Error> {
        let Learn::Attached(_) = call.method.learn() else { return Ok(()) };
        let Key::Home(id) = &call.key else { return Ok(()) };
        if !call.is_direct && !attach::is_in_use(self.store, self.driver, id) {
            return Ok(());
        }
        let node_id = call.node_id.as_deref().unwrap_or_default();
        let volume = (self.driver, id);
        attach::reserve(self.store, self.queries.links(), volume, node_id, call.is_direct).await
    }

    /// Records the effect of a call that was answered OK.
    async fn record(&self, call: &IncomingCall, answer: &Answer) -> Result<(), Error> {
        let Some(answer) = message_of(answer) else { return Ok(()) };
        let (Key::Home(id) | Key::Delete(id)) = &call.key else { return Ok(()) };
        let store = self.store;
        let driver = self.driver;
        let node_id = call.node_id.clone().unwrap_or_default();
        let recorded = match call.method.learn() {
            Learn::Nothing | Learn::Made(_) => Ok(()),
            Learn::Gone => {
                self.record_gone(id).await;
                Ok(())
            }
            Learn::Attached(_) => {
                ingest::update(store, driver, id, move |old| list_entry::attach(old, &node_id))
                    .await
            }
            Learn::Detached(_) => {
                attach::detached(store, driver, id, node_id.clone()).await.map_err(not_durable)?;
                ingest::update(store, driver, id, move |old| list_entry::detach(old, &node_id))
                    .await
            }
            Learn::Resized(read) => match read(&answer) {
                Ok(size) => {
                    ingest::update(store, driver, id, move |old| list_entry::resize(old, size))
                        .await
                }
                Err(_) => Ok(()),
            },
        };
        recorded.map_err(not_durable)
    }

    /// Removes a home. A failure is only logged: a home that stays costs one more delete.
    async fn record_gone(&self, id: &Id) {
        if let Err(error) = ingest::deleted(self.store, self.driver, id).await {
            let driver = self.driver;
            warn!(%driver, error = chain(&error), "what is gone is not forgotten");
        }
    }
}

/// The unframed message of an answer of OK.
pub(crate) fn message_of(answer: &Answer) -> Option<Bytes> {
    frame::message(answer.ok()?).ok()
}

fn not_durable(source: StoreError) -> Error {
    Error::NotDurable { source: source.into() }
}
