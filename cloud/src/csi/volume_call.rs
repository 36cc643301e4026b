//! A call on something that exists: sent to its node, and what it did is durable before the caller is
//! answered.

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

/// Sends a front's calls to nodes.
pub(crate) struct Sender<'a> {
    pub(crate) driver: &'a DriverName,
    pub(crate) asker: &'a NodeQueries,
    pub(crate) store: &'a Store,
    pub(crate) in_doubt: &'a InDoubt,
    pub(crate) scope: Scope,
}

impl Sender<'_> {
    /// A call of a shared driver waits until one that was sent elsewhere, and not answered, cannot
    /// begin there any more.
    ///
    /// # Errors
    /// Where such a call may begin, and for how long.
    pub(crate) fn is_settled(&self, call: &IncomingCall, node: &NodeName) -> Result<(), Error> {
        if self.scope == Scope::Node {
            return Ok(());
        }
        let elsewhere = self.in_doubt.elsewhere(&call.method.subjects(&call.key), node);
        elsewhere.map_or(Ok(()), |(at, time)| {
            let seconds = time.as_secs() + 1;
            let why = format!(
                "another one about the same was sent to {at} and may begin there for {seconds} s more"
            );
            Err(Error::NoRoute { driver: self.driver.clone(), why })
        })
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
            links: self.asker.links(),
            driver: self.driver,
            authority: self.asker.authority(),
            node,
            method: call.method,
            deadline: call.deadline,
            call: Some(call.running.clone()),
        }
    }

    /// What is known of the driver at a node.
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
    /// It was not carried out, its outcome is not known, or it could not be made durable.
    pub(crate) async fn at(
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

    /// Ends something that has no home: every node is told.
    ///
    /// # Errors
    /// Not every node said that it is gone; or it could not be made durable.
    pub(crate) async fn everywhere(
        &self,
        id: &Id,
        call: &IncomingCall,
    ) -> Result<Response<Body>, Error> {
        let discovery =
            Discovery { queries: self.asker, store: self.store, deadline: call.deadline };
        let answer = discovery.delete(call.method, id, &call.call).await?;
        self.record(call, &answer).await?;
        Ok(answer.response())
    }

    /// A direct volume is attached only to the node that holds its lease, or gets it now; so is any
    /// volume while a node holds its lease.
    async fn attach_to_holder(&self, call: &IncomingCall) -> Result<(), Error> {
        let (Learn::Attached(_), Key::Home(id)) = (call.method.learn(), &call.key) else {
            return Ok(());
        };
        if !call.is_direct && !attach::is_in_use(self.store, self.driver, id) {
            return Ok(());
        }
        let node_id = call.node_id.as_deref().unwrap_or_default();
        let volume = (self.driver, id);
        attach::reserve(self.store, self.asker.links(), volume, node_id, call.is_direct).await
    }

    /// Records what an answer of OK says.
    async fn record(&self, call: &IncomingCall, answer: &Answer) -> Result<(), Error> {
        let Some(answer) = message_of(answer) else { return Ok(()) };
        let (Key::Home(id) | Key::Delete(id)) = &call.key else { return Ok(()) };
        let (store, driver) = (self.store, self.driver);
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

    /// A home that stays costs no more than another delete, so a failure is only logged.
    async fn record_gone(&self, id: &Id) {
        if let Err(error) = ingest::deleted(self.store, self.driver, id).await {
            let driver = self.driver;
            warn!(%driver, error = chain(&error), "what is gone is not forgotten");
        }
    }
}

/// The (unframed) message of an answer of OK.
pub(crate) fn message_of(answer: &Answer) -> Option<Bytes> {
    frame::message(answer.ok()?).ok()
}

fn not_durable(source: StoreError) -> Error {
    Error::NotDurable { source: source.into() }
}
