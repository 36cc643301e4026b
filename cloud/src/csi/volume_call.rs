//! Calls on what exists: sends each to its node, or to all, and records its effect. The effect is
//! durable before the caller is answered.

use bytes::Bytes;
use http::Response;
use proto::csi::frame;
use proto::csi::{DirectCall, Id, Key, Learn};
use proto::host::chain;
use proto::http2::body::Body;
use proto::http2::forward::Answer;
use proto::names::NodeName;
use tracing::warn;

use super::request::CallRequest;
use crate::error::Error;
use crate::lease::attach;
use crate::nodes::discover::Discovery;
use crate::nodes::inquiry::Inquiries;
use crate::nodes::node_call::Sender;
use crate::nodes::query::NodeQueries;
use crate::rewrite::direct;
use crate::state::affinity::{Age, VolumeAnswer};
use crate::state::ingest::Deleted;
use crate::state::policy::Scope;
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::{ingest, list_entry};

/// Carries out the calls of one front on existing things.
pub(crate) struct VolumeCalls<'a> {
    pub(crate) sender: Sender<'a>,
    pub(crate) queries: &'a NodeQueries,
    pub(crate) inquiries: &'a Inquiries,
    pub(crate) store: &'a Store,
}

impl VolumeCalls<'_> {
    /// Carries out a call at one node, with this unframed message.
    ///
    /// # Errors
    /// It was not carried out, its outcome is unknown, or its outcome is not durable.
    pub(crate) async fn call_node(
        &self,
        node: &NodeName,
        call: &CallRequest,
        message: &Bytes,
    ) -> Result<Response<Body>, Error> {
        self.check_node_id(call)?;
        self.attach_to_holder(call).await?;
        self.check_expansion(node, call).await?;
        let mut answer = call.at(node, self.sender).unary(&mut call.outbound(message)).await?;
        if let Some(message) = answer.message()
            && call.is_direct
            && call.method.direct() == Some(DirectCall::Validate)
        {
            let shown = direct::validated(call.method, &call.message, &message)?;
            answer = answer.with(frame::frame(&shown));
        }
        self.record(call, &answer, self.deleted_at(node)).await?;
        Ok(answer.response())
    }

    /// Sends a delete to every node, since the id has no home.
    ///
    /// # Errors
    /// A node did not confirm it, or the outcome is not durable.
    pub(crate) async fn delete_everywhere(
        &self,
        id: &Id,
        call: &CallRequest,
    ) -> Result<Response<Body>, Error> {
        let discovery = Discovery {
            queries: self.queries,
            inquiries: self.inquiries,
            store: self.store,
            deadline: call.deadline,
            request: &call.message,
        };
        let answer = discovery.delete(call.method, id, &call.outbound(&call.for_driver)).await?;
        self.record(call, &answer, Deleted::Everywhere).await?;
        Ok(answer.response())
    }

    /// Whose word it is that something is deleted, if this node says so. A shared driver's volumes
    /// belong to no node.
    fn deleted_at(&self, node: &NodeName) -> Deleted {
        match self.queries.links().scope(self.sender.driver) {
            Some(Scope::Shared) => Deleted::Everywhere,
            Some(Scope::Node) | None => Deleted::At(node.clone()),
        }
    }

    /// Refuses an attach to a node by an id that it had before: its kubelet has not learned the
    /// present one, and the former may be another machine's by now. An id that no node ever had is
    /// the driver's to judge.
    fn check_node_id(&self, call: &CallRequest) -> Result<(), Error> {
        let is_attach = matches!(call.method.learn(), Learn::Attached(_));
        let Some(node_id) = call.node_id.as_deref().filter(|_| is_attach) else { return Ok(()) };
        let driver = self.sender.driver;
        let former = self.store.read(|state| {
            let former = state.driver(driver)?.formerly(node_id);
            former.first().map(|node| (*node).clone())
        });
        former.map_or(Ok(()), |node| {
            let node_id = node_id.to_owned();
            Err(Error::FormerNodeId { driver: driver.clone(), node, node_id })
        })
    }

    /// Reserves the lease of a volume for the node of an attach call. This applies to direct
    /// volumes, and to any volume whose lease is held.
    async fn attach_to_holder(&self, call: &CallRequest) -> Result<(), Error> {
        match call.method.learn() {
            Learn::Attached(_) => {}
            Learn::Nothing
            | Learn::Made(_)
            | Learn::Gone
            | Learn::Detached(_)
            | Learn::Resized(_) => return Ok(()),
        }
        let Key::Home(id) = &call.key else { return Ok(()) };
        if !call.is_direct && !attach::is_in_use(self.store, self.sender.driver, id) {
            return Ok(());
        }
        let node_id = call.node_id.as_deref().unwrap_or_default();
        let volume = (self.sender.driver, id);
        attach::reserve(self.store, self.queries.links(), volume, node_id, call.is_direct).await
    }

    /// Refuses an expansion if csi-edge expands on the node and that step takes a secret.
    /// Kubernetes gives the secret to kubelets only. An unknown volume has no secret.
    async fn check_expansion(&self, node: &NodeName, call: &CallRequest) -> Result<(), Error> {
        match call.method.learn() {
            Learn::Resized(_) => {}
            Learn::Nothing
            | Learn::Made(_)
            | Learn::Gone
            | Learn::Attached(_)
            | Learn::Detached(_) => return Ok(()),
        }
        let Key::Home(id) = &call.key else { return Ok(()) };
        let links = self.queries.links();
        let driver = self.sender.driver;
        let is_expanded = links.now(node).is_some_and(|link| link.peer.expands);
        if !is_expanded || links.scope(driver) == Some(Scope::Shared) {
            return Ok(());
        }
        match links.ask_of_volume(driver, id.text(), Age::MinuteIfKnown, call.deadline).await {
            VolumeAnswer::Known(facts) if facts.iter().any(|of| of.expands_with_secret) => {
                Err(Error::NodeSecret {
                    driver: driver.clone(),
                    node: node.clone(),
                    volume: id.text().into(),
                })
            }
            VolumeAnswer::Known(_) | VolumeAnswer::Unknown => Ok(()),
            VolumeAnswer::Silent => {
                let volume = id.text().into();
                Err(Error::NodeSecretUnknown { node: node.clone(), volume })
            }
        }
    }

    /// Records the effect of a call that was answered OK.
    async fn record(
        &self,
        call: &CallRequest,
        answer: &Answer,
        deleted: Deleted,
    ) -> Result<(), Error> {
        let Some(answer) = answer.message() else { return Ok(()) };
        let (Key::Home(id) | Key::Delete(id)) = &call.key else { return Ok(()) };
        let store = self.store;
        let driver = self.sender.driver;
        let node_id = call.node_id.clone().unwrap_or_default();
        let recorded = match call.method.learn() {
            Learn::Nothing | Learn::Made(_) => Ok(()),
            Learn::Gone => self.record_gone(id, call, deleted).await,
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

    /// Removes a home. A store that takes the next commit takes the next delete too. Any other
    /// failure is only logged: a home that stays costs one more delete.
    async fn record_gone(
        &self,
        id: &Id,
        call: &CallRequest,
        deleted: Deleted,
    ) -> Result<(), StoreError> {
        let error = match ingest::deleted(self.store, self.sender.driver, id, deleted).await {
            Err(error @ StoreError::Refused(_)) => return Err(error),
            Err(error) => error,
            Ok(()) => return Ok(()),
        };
        let driver = self.sender.driver;
        let call = call.running.id;
        warn!(%call, %driver, error = chain(&error), "cannot remove the home of a deleted id");
        Ok(())
    }
}

fn not_durable(source: StoreError) -> Error {
    Error::NotDurable { source: source.into() }
}
