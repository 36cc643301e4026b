//! Finds the node of something without a home: older volumes, volumes of others, or a lost store.
//!
//! All nodes are asked, without secrets. What one of them has is recorded, so that it is asked for
//! once. A node's claim alone is not enough: see [`crate::state::home_claims`].

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::status::ToStatus;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use proto::csi::{Id, List, Method};
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::http2::call_id;
use proto::http2::call_id::CallId;
use proto::http2::forward::{Answer, Call};
use proto::names::NodeName;
use tokio::time::Instant;
use tonic::Code;
use tracing::field::display;

use crate::error::Error;
use crate::nodes::connections::Lane;
use crate::nodes::query::{NodeQueries, QueryError};
use crate::state::affinity::{Age, NodesOf, VolumeAnswer};
use crate::state::home_claims::{Answers, ClaimVerdict, is_known_without};
use crate::state::ingest;
use crate::state::ingest::FindOutcome;
use crate::state::node_names::names;
use crate::state::store::writer::Store;

/// Nodes asked at the same time.
const AT_ONCE: usize = 64;
/// The time limit of one node's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the nodes of a driver.
pub struct Discovery<'a> {
    /// The way to ask them.
    pub queries: &'a NodeQueries,
    /// The records of them.
    pub store: &'a Store,
    /// The caller's deadline.
    pub deadline: Option<Instant>,
    /// The caller's unframed request.
    pub request: &'a Bytes,
}

/// The result of asking all nodes for an id.
enum Found {
    /// It has a home now.
    Recorded,
    /// No node claims it.
    Nowhere {
        /// The nodes that did not answer.
        silent: Vec<NodeName>,
        /// The nodes whose driver cannot be asked.
        unable: Vec<NodeName>,
    },
}

enum Has {
    It(Bytes),
    NotIt,
    NotSaid,
    /// The driver does not implement the question.
    CannotSay,
}

impl Discovery<'_> {
    /// Asks all nodes for an id, and records its home.
    ///
    /// # Errors
    /// No node has it, several claim it, some nodes could not be asked or are not known, or the
    /// record is not durable.
    pub async fn discover(&self, id: &Id) -> Result<(), Error> {
        if id.text().is_empty() {
            return Err(self.not_found(id));
        }
        match self.find(id).await? {
            Found::Recorded => Ok(()),
            Found::Nowhere { silent, .. } if !silent.is_empty() => Err(self.not_asked(id, &silent)),
            Found::Nowhere { unable, .. } if !unable.is_empty() => Err(Error::NobodyCanSay {
                driver: self.queries.driver.clone(),
                id: id.text().into(),
                kind: id.word(),
                nodes: names(&unable),
            }),
            Found::Nowhere { .. } => Err(self.not_found(id)),
        }
    }

    /// Asks all nodes for an id that is to be deleted, and records its home. Returns false if no
    /// node claims it.
    ///
    /// # Errors
    /// Several claim it, some nodes could not be asked or are not known, or the record is not
    /// durable.
    pub async fn discover_deleted(&self, id: &Id) -> Result<bool, Error> {
        // The driver refuses an empty id.
        let is_asked = !id.text().is_empty();
        Ok(is_asked && matches!(self.find(id).await?, Found::Recorded))
    }

    /// Asks all nodes for an id. A claim is recorded if no other node can have the id.
    async fn find(&self, id: &Id) -> Result<Found, Error> {
        let driver = &self.queries.driver;
        let since =
            self.store.read(|state| state.driver(driver).map_or(0, |driver| driver.changes()));
        let asked: Vec<_> = stream::iter(self.nodes()?)
            .map(|node| async { (self.has(&node, id).await, node) })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut answers = Answers::default();
        let mut entries = HashMap::new();
        for (has, node) in asked {
            match has {
                Has::It(entry) => {
                    answers.claimants.push(node.clone());
                    entries.insert(node, entry);
                }
                Has::NotIt => answers.deniers.push(node),
                Has::NotSaid => answers.silent.push(node),
                Has::CannotSay => answers.unable.push(node),
            }
        }
        let (verdict, is_in_kubernetes) = self.verdict(answers, id).await;
        match verdict {
            ClaimVerdict::At(node) => {
                let found = ingest::FoundEntry {
                    entry: entries.remove(&node).unwrap_or_default(),
                    since,
                    adopted: is_in_kubernetes,
                };
                self.record(id, node, found).await
            }
            ClaimVerdict::Unclaimed { silent, unable } => Ok(Found::Nowhere { silent, unable }),
            ClaimVerdict::Disputed(nodes) => Err(self.disputed(id, &nodes)),
            ClaimVerdict::Unconfirmed { claimant, silent } => Err(Error::Unconfirmed {
                driver: driver.clone(),
                id: id.text().into(),
                node: claimant,
                nodes: names(&silent),
            }),
        }
    }

    /// Records the home of an id, unless the node's word is older than a delete, or has no room.
    async fn record(
        &self,
        id: &Id,
        node: NodeName,
        found: ingest::FoundEntry,
    ) -> Result<Found, Error> {
        let recorded = ingest::found(self.store, &self.queries.driver, id, &node, found).await;
        match recorded.map_err(|source| Error::NotDurable { source: source.into() })? {
            FindOutcome::Home => Ok(Found::Recorded),
            FindOutcome::Nothing => Ok(Found::Nowhere { silent: vec![node], unable: Vec::new() }),
            FindOutcome::EndedElsewhere(ended) => Err(self.disputed(id, &[ended, node])),
        }
    }

    /// Decides which node owns an id, and whether Kubernetes says so too. If the nodes' answers do
    /// not decide it, the volume's node affinity in Kubernetes does, but not against the word of
    /// the node that it names.
    async fn verdict(&self, answers: Answers, id: &Id) -> (ClaimVerdict, bool) {
        let deniers = answers.deniers.clone();
        let verdict = answers.verdict(|node| self.is_not_there(node, id));
        let Id::Volume(volume) = id else { return (verdict, false) };
        let links = self.queries.links();
        let driver = &self.queries.driver;
        let VolumeAnswer::Known(volumes) =
            links.ask_of_volume(driver, volume, Age::MinuteIfKnown, self.deadline).await
        else {
            return (verdict, false);
        };
        let named = self.store.read(|state| {
            let nodes =
                NodesOf { driver: state.driver(driver)?, policy: links.authority().policy(driver) };
            verdict.named(&volumes, nodes)
        });
        match named.filter(|node| !deniers.contains(node)) {
            Some(node) => (ClaimVerdict::At(node), true),
            None => (verdict, false),
        }
    }

    /// Sends a delete to every node, without secrets if there are several. The answer is OK if all
    /// nodes said so. The driver's refusal is returned if there is one node only: one of several
    /// nodes decides nothing.
    ///
    /// # Errors
    /// A node could not be reached or its outcome is unknown, and it may have the volume; one of
    /// several nodes refused; or the nodes that may have it are not known.
    pub async fn delete(&self, method: Method, id: &Id, call: &Call) -> Result<Answer, Error> {
        let nodes = self.nodes()?;
        let is_only_one = nodes.len() == 1;
        if id.text().is_empty() && !is_only_one {
            return Err(Error::Missing(method.name(), "an id"));
        }
        let lane = if is_only_one { Lane::Call } else { Lane::FanOut };
        let call = self.without_secrets(nodes.len(), method, call)?;
        let (nodes, mut silent): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| self.queries.links().now(node).is_some());
        silent.retain(|node| !self.is_not_there(node, id));
        let answers: Vec<_> = stream::iter(nodes)
            .map(|node| async { (self.send(&node, method, lane, call.clone()).await, node) })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut deleted = None;
        let mut refused = None;
        for (answer, node) in answers {
            match answer {
                Ok(answer) if answer.ok().is_some() => deleted = Some(answer),
                Ok(answer) => refused = Some((answer, node)),
                Err(error) => {
                    let id = CallId::of(&call.headers, call_id::ours(&call.headers));
                    let id = id.map(display);
                    let rpc = method.name();
                    peer_warn!(
                        LogPeer::Node(&node), call = id, %node, rpc, error = error.chain(),
                        "could not be told"
                    );
                    silent.push(node);
                }
            }
        }
        match refused {
            Some((answer, _)) if is_only_one => Ok(answer),
            Some((answer, node)) => Err(self.refused(method, id, node, &answer)),
            None if !silent.is_empty() => {
                silent.sort();
                Err(self.not_asked(id, &silent))
            }
            // Without an answer no node was told, because no node can have it.
            None => Ok(deleted.unwrap_or_else(|| Answer::of(frame::frame(&[])))),
        }
    }

    fn refused(&self, method: Method, id: &Id, node: NodeName, answer: &Answer) -> Error {
        Error::RefusedByOne {
            driver: self.queries.driver.clone(),
            method: method.name(),
            id: id.text().into(),
            node,
            why: answer.failure().map(|status| status.to_string()).unwrap_or_default(),
        }
    }

    fn without_secrets(&self, nodes: usize, method: Method, call: &Call) -> Result<Call, Error> {
        let message = frame::message(&call.body)
            .map_err(|error| Error::BadRequest { method: method.name(), source: error.into() })?;
        let body = frame::frame(&self.queries.for_nodes(nodes, method, &message)?);
        Ok(Call { body, ..call.clone() })
    }

    /// The nodes that may have an id without a home.
    fn nodes(&self) -> Result<Vec<NodeName>, Error> {
        let driver = &self.queries.driver;
        self.store.read(|state| match state.why_uncounted(driver) {
            Some(why) => Err(Error::NoRoute { driver: driver.clone(), why: why.into() }),
            None => Ok(state.candidates(driver).cloned().collect()),
        })
    }

    /// True if a node is known not to have an id.
    fn is_not_there(&self, node: &NodeName, id: &Id) -> bool {
        let driver = &self.queries.driver;
        self.store.read(|state| {
            state.driver(driver).is_some_and(|driver| is_known_without(driver, node, id))
        })
    }

    async fn send(
        &self,
        node: &NodeName,
        method: Method,
        lane: Lane,
        mut call: Call,
    ) -> Result<Answer, Error> {
        self.queries.node_call(node, method, lane, self.deadline).unary(&mut call).await
    }

    async fn has(&self, node: &NodeName, id: &Id) -> Has {
        let deadline = Instant::now() + PATIENCE;
        let deadline = self.deadline.map_or(deadline, |callers| callers.min(deadline));
        let answer = match id {
            Id::Volume(id) => self.validate(node, id, deadline).await,
            Id::Snapshot(id) => self.listed(node, id, deadline).await,
            Id::Group(id) => {
                let request = csi::GetVolumeGroupSnapshotRequest {
                    group_snapshot_id: id.clone(),
                    snapshot_ids: self.snapshot_ids(),
                    ..Default::default()
                };
                self.queries.ask(node, Method::GetVolumeGroupSnapshot, &request, deadline).await
            }
            // A name cannot be asked for.
            Id::Name(..) => return Has::NotIt,
        };
        match answer {
            Ok(entry) => Has::It(entry),
            Err(error) if error.code() == Code::NotFound => Has::NotIt,
            Err(QueryError::Driver { status, .. }) if status.code() == Code::Unimplemented => {
                Has::CannotSay
            }
            Err(error) => {
                let driver = &self.queries.driver;
                let error = chain(&error);
                peer_warn!(
                    LogPeer::Node(node), %node, %driver, error, "a node does not say what it has"
                );
                Has::NotSaid
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
        let gone = || QueryError::Call(self.not_found(&Id::Snapshot(id.into())));
        entry.map(|entry| entry.encode_to_vec().into()).ok_or_else(gone)
    }

    /// The snapshots that the caller names of a group. CSI: they "MUST match" the group's, so a
    /// driver may refuse a question without them.
    fn snapshot_ids(&self) -> Vec<String> {
        // A delete names them in the same field.
        let request = csi::GetVolumeGroupSnapshotRequest::decode(self.request.clone());
        request.unwrap_or_default().snapshot_ids
    }

    fn disputed(&self, id: &Id, nodes: &[NodeName]) -> Error {
        Error::Disputed {
            driver: self.queries.driver.clone(),
            id: id.text().into(),
            nodes: names(nodes),
        }
    }

    fn not_found(&self, id: &Id) -> Error {
        Error::NoSuchThing { driver: self.queries.driver.clone(), id: id.text().into() }
    }

    fn not_asked(&self, id: &Id, nodes: &[NodeName]) -> Error {
        Error::NotAsked {
            driver: self.queries.driver.clone(),
            id: id.text().into(),
            nodes: names(nodes),
        }
    }
}
