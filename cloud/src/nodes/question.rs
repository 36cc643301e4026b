//! One question of csi-cloud to each node that may have an id without a home: whether it has it, or
//! to delete it. Nodes are asked without secrets if there are several.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::status::ToStatus;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use proto::csi::{Id, List, Method};
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::http2::call_id;
use proto::http2::call_id::CallId;
use proto::http2::forward::{Answer, Call, until};
use proto::names::NodeName;
use tokio::time::Instant;
use tonic::Code;
use tracing::field::display;

use crate::error::Error;
use crate::nodes::connections::Lane;
use crate::nodes::query::{NodeQueries, QueryError};
use crate::state::store::writer::Store;

/// The time limit of one node's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time limit of one node's delete. Its caller may have less, and ask again.
const DELETE_PATIENCE: Duration = Duration::from_secs(60);

/// A question to the nodes of a driver.
#[derive(Clone)]
pub(super) struct NodeQuestion {
    pub(super) queries: NodeQueries,
    pub(super) store: Store,
    pub(super) id: Id,
    pub(super) wish: NodeWish,
}

/// The request that each node gets.
#[derive(Clone)]
pub(super) enum NodeWish {
    /// Whether it has the id. CSI: the snapshots that a caller names of a group "MUST match" it, so
    /// a driver may refuse a question without them.
    Has { snapshot_ids: Vec<String> },
    /// To delete it, by the first caller's deadline or within [`DELETE_PATIENCE`].
    Delete { method: Method, call: Call, deadline: Option<Instant> },
}

/// A question as far as two are the same.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct InquirySubject {
    id: Id,
    snapshot_ids: Vec<String>,
    delete: Option<(&'static str, Bytes)>,
}

/// A node's answer.
pub(super) enum Said {
    /// It has it. The answer is as old as this number of changes of the driver's records.
    Has { entry: Bytes, since: u64 },
    /// It does not have it.
    Lacks,
    /// The driver does not implement the question, or refuses it, as for an id of another form.
    CannotSay,
    /// It deleted it, or never had it.
    Deleted(Answer),
    /// It does not delete it.
    Refused(Answer),
}

impl NodeQuestion {
    pub(super) fn subject(&self) -> InquirySubject {
        let id = self.id.clone();
        match &self.wish {
            NodeWish::Has { snapshot_ids } => {
                InquirySubject { id, snapshot_ids: snapshot_ids.clone(), delete: None }
            }
            NodeWish::Delete { method, call, .. } => {
                let delete = Some((method.name(), call.body.clone()));
                InquirySubject { id, snapshot_ids: Vec::new(), delete }
            }
        }
    }

    /// The nodes that may have an id without a home.
    ///
    /// # Errors
    /// They are not known.
    pub(super) fn candidates(&self) -> Result<Vec<NodeName>, Error> {
        candidates(&self.queries, &self.store)
    }

    /// Asks one node. `None` if it does not say.
    pub(super) async fn put(&self, node: &NodeName) -> Option<Said> {
        match &self.wish {
            NodeWish::Has { snapshot_ids } => self.has(node, snapshot_ids).await,
            NodeWish::Delete { method, call, deadline } => {
                self.delete(node, *method, call.clone(), *deadline).await
            }
        }
    }

    async fn delete(
        &self,
        node: &NodeName,
        method: Method,
        mut call: Call,
        callers: Option<Instant>,
    ) -> Option<Said> {
        let deadline = callers.max(Some(Instant::now() + DELETE_PATIENCE));
        let told = self.queries.node_call(node, method, Lane::FanOut, deadline);
        let answer: Result<_, Error> = until(deadline, told.unary(&mut call)).await;
        match answer {
            Ok(answer) if answer.ok().is_some() => Some(Said::Deleted(answer)),
            Ok(answer) => Some(Said::Refused(answer)),
            Err(error) => {
                log_untold(node, method, &call, &error);
                None
            }
        }
    }

    async fn has(&self, node: &NodeName, snapshot_ids: &[String]) -> Option<Said> {
        let driver = &self.queries.driver;
        let since =
            self.store.read(|state| state.driver(driver).map_or(0, |driver| driver.changes()));
        let deadline = Instant::now() + PATIENCE;
        let answer = match &self.id {
            Id::Volume(id) => self.validate(node, id, deadline).await,
            Id::Snapshot(id) => self.listed(node, id, deadline).await,
            Id::Group(id) => {
                let request = csi::GetVolumeGroupSnapshotRequest {
                    group_snapshot_id: id.clone(),
                    snapshot_ids: snapshot_ids.to_vec(),
                    ..Default::default()
                };
                self.queries.ask(node, Method::GetVolumeGroupSnapshot, &request, deadline).await
            }
            // A name cannot be asked for.
            Id::Name(..) => return Some(Said::Lacks),
        };
        match answer {
            Ok(entry) => Some(Said::Has { entry, since }),
            Err(error) if error.code() == Code::NotFound => Some(Said::Lacks),
            // Some take ids of their own form alone. That denies nothing: the question has more.
            Err(QueryError::Driver { status, .. })
                if matches!(status.code(), Code::Unimplemented | Code::InvalidArgument) =>
            {
                Some(Said::CannotSay)
            }
            Err(error) => {
                let error = chain(&error);
                peer_warn!(
                    LogPeer::Node(node), %node, %driver, error, "a node does not say what it has"
                );
                None
            }
        }
    }

    /// Every driver answers this query about a volume, and it changes nothing.
    async fn validate(
        &self,
        node: &NodeName,
        id: &str,
        deadline: Instant,
    ) -> Result<Bytes, QueryError> {
        let capability = csi::VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        };
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.into(),
            volume_capabilities: vec![capability],
            ..Default::default()
        };
        let method = Method::ValidateVolumeCapabilities;
        // The answer does not describe the volume.
        self.queries.ask(node, method, &request, deadline).await.map(|_| Bytes::new())
    }

    async fn listed(
        &self,
        node: &NodeName,
        id: &str,
        deadline: Instant,
    ) -> Result<Bytes, QueryError> {
        let method = Method::listing(List::Snapshots);
        let request = csi::ListSnapshotsRequest { snapshot_id: id.into(), ..Default::default() };
        let answer = self.queries.ask(node, method, &request, deadline).await?;
        let unreadable = || QueryError::Unreadable { node: node.clone(), method: method.name() };
        let list = csi::ListSnapshotsResponse::decode(answer).map_err(|_| unreadable())?;
        let entry = list.entries.into_iter().find(|entry| {
            entry.snapshot.as_ref().is_some_and(|snapshot| snapshot.snapshot_id == id)
        });
        let driver = self.queries.driver.clone();
        let gone = || QueryError::Call(Error::NoSuchThing { driver, id: id.into() });
        entry.map(|entry| entry.encode_to_vec().into()).ok_or_else(gone)
    }
}

/// The nodes that may have an id without a home.
///
/// # Errors
/// They are not known.
pub(super) fn candidates(queries: &NodeQueries, store: &Store) -> Result<Vec<NodeName>, Error> {
    let driver = &queries.driver;
    store.read(|state| match state.why_uncounted(driver) {
        Some(why) => Err(Error::NoRoute { driver: driver.clone(), why: why.into() }),
        None => Ok(state.candidates(driver).cloned().collect()),
    })
}

/// Logs that a node could not be told of a delete.
pub(super) fn log_untold(node: &NodeName, method: Method, call: &Call, error: &Error) {
    let id = CallId::of(&call.headers, call_id::ours(&call.headers)).map(display);
    let rpc = method.name();
    peer_warn!(
        LogPeer::Node(node), call = id, %node, rpc, error = error.chain(), "could not be told"
    );
}
