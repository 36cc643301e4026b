//! Finds the node of something without a home: older volumes, volumes of others, or a lost store.
//!
//! All nodes are asked, without secrets. What one of them has is recorded, so that it is asked for
//! once. A node's claim alone is not enough: see [`crate::state::home_claims`].

use std::collections::HashMap;

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use prost::Message;
use proto::csi;
use proto::csi::frame;
use proto::csi::{Id, Method};
use proto::http2::forward::{Answer, Call};
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;

use crate::error::Error;
use crate::nodes::connections::Lane;
use crate::nodes::inquiry::{Inquiries, Round};
use crate::nodes::query::NodeQueries;
use crate::nodes::question::{NodeQuestion, NodeWish, Said, candidates, log_untold};
use crate::state::affinity::{Age, NodesOf, VolumeAnswer, used_at};
use crate::state::clock::now;
use crate::state::home_claims::{Answers, ClaimVerdict, is_known_without};
use crate::state::ingest;
use crate::state::ingest::FindOutcome;
use crate::state::node_names::names;
use crate::state::store::writer::Store;

/// Among so few nodes, all are asked again for each caller, and even if the outcome is certain
/// before: so an error names all that is known.
const FEW: usize = 64;
/// How often nodes that came meanwhile are asked for one caller.
const MAX_ROUNDS: usize = 5;

/// Asks the nodes of a driver.
pub struct Discovery<'a> {
    /// The way to ask them.
    pub queries: &'a NodeQueries,
    /// The inquiries, which outlive their callers.
    pub inquiries: &'a Inquiries,
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
            Found::Nowhere { unable, .. } if !unable.is_empty() && self.adopts_from().is_some() => {
                Err(self.too_early(id, &unable))
            }
            Found::Nowhere { unable, .. } if !unable.is_empty() => Err(Error::NobodyCanSay {
                driver: self.queries.driver.clone(),
                id: id.text().into(),
                kind: id.word(),
                nodes: names(&unable),
            }),
            Found::Nowhere { .. } => {
                self.inquiries.forget(&self.question(id, self.wish(id)).subject());
                Err(self.not_found(id))
            }
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
        let since = self.changes();
        let question = self.question(id, self.wish(id));
        let mut rounds = 0;
        let ((verdict, is_in_kubernetes), mut entries, asked) = loop {
            let round = self.inquiries.run(question.clone()).await?;
            let nodes = self.nodes()?;
            let (answers, entries) = answers(&round.lock(), &nodes);
            let decided = self.verdict(answers, id).await;
            if self.are_all_asked(id, &round, &mut rounds)? {
                break (decided, entries, nodes.len());
            }
        };
        // A delete comes here again while all nodes are told.
        let is_final = !matches!(verdict, ClaimVerdict::Unclaimed { .. });
        if is_final || asked <= FEW {
            self.inquiries.forget(&question.subject());
        }
        match verdict {
            ClaimVerdict::At(node) if !is_in_kubernetes && self.adopts_from().is_some() => {
                Err(self.too_early(id, &[node]))
            }
            ClaimVerdict::At(node) => {
                let (entry, since) = entries.remove(&node).unwrap_or((Bytes::new(), since));
                let found = ingest::FoundEntry { entry, since, is_in_kubernetes };
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

    fn question(&self, id: &Id, wish: NodeWish) -> NodeQuestion {
        let (queries, store) = (self.queries.clone(), self.store.clone());
        NodeQuestion { queries, store, id: id.clone(), wish }
    }

    /// The question whether a node has an id.
    fn wish(&self, id: &Id) -> NodeWish {
        let snapshot_ids = match id {
            Id::Group(_) => self.snapshot_ids(),
            Id::Volume(_) | Id::Snapshot(_) | Id::Name(..) => Vec::new(),
        };
        NodeWish::Has { snapshot_ids }
    }

    /// True if each node that may have an id now was asked, by one reading of the store. `rounds`
    /// counts how often it is not so.
    ///
    /// # Errors
    /// Nodes come and go all the time; or those that may have it are not known.
    fn are_all_asked(
        &self,
        id: &Id,
        round: &Mutex<Round>,
        rounds: &mut usize,
    ) -> Result<bool, Error> {
        let links = self.queries.links();
        let mut nodes = self.nodes()?;
        nodes.retain(|node| !round.lock().was_asked(node, links));
        *rounds += 1;
        match nodes.is_empty() {
            true => Ok(true),
            false if *rounds < MAX_ROUNDS => Ok(false),
            false => Err(self.not_asked(id, &nodes)),
        }
    }

    fn changes(&self) -> u64 {
        let driver = &self.queries.driver;
        self.store.read(|state| state.driver(driver).map_or(0, |driver| driver.changes()))
    }

    /// Refuses at once to look for an id among many nodes if one of them is away that may have it:
    /// nothing that the others say makes it certain.
    ///
    /// # Errors
    /// [`Error::NotAsked`]; or the nodes that may have it are not known.
    pub async fn check_away(&self, id: &Id) -> Result<(), Error> {
        let nodes = self.nodes()?;
        if nodes.len() <= FEW {
            return Ok(());
        }
        let mut away = self.away(&nodes, id);
        if away.is_empty() || self.may_be_named(id).await {
            return Ok(());
        }
        away.sort();
        Err(self.not_asked(id, &away))
    }

    /// The nodes without a link that may have an id.
    fn away(&self, nodes: &[NodeName], id: &Id) -> Vec<NodeName> {
        let links = self.queries.links();
        let away = nodes.iter().filter(|node| links.now(node).is_none());
        away.filter(|node| !self.is_not_there(node, id)).cloned().collect()
    }

    /// True if Kubernetes may say where a volume is.
    async fn may_be_named(&self, id: &Id) -> bool {
        let Id::Volume(volume) = id else { return false };
        let asking = self.queries.links().ask_of_volume(
            &self.queries.driver,
            volume,
            Age::MinuteIfKnown,
            self.deadline,
        );
        matches!(asking.await, VolumeAnswer::Known(_))
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
        let is_new = self.adopts_from().is_some();
        let named = self.store.read(|state| {
            let nodes =
                NodesOf { driver: state.driver(driver)?, policy: links.authority().policy(driver) };
            let named = verdict.named(&volumes, nodes)?;
            // What only the nodes known so far report tells no node apart from later ones.
            (!is_new || used_at(&volumes, nodes).as_ref() == Some(&named)).then_some(named)
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
        if is_only_one && let Some(node) = nodes.first() {
            return self.delete_at(node, method, id, call).await;
        }
        let away = if nodes.len() > FEW { self.away(&nodes, id) } else { Vec::new() };
        if !away.is_empty() {
            return Err(self.not_asked(id, &away));
        }
        let call = self.without_secrets(nodes.len(), method, call)?;
        let question =
            self.question(id, NodeWish::Delete { method, call, deadline: self.deadline });
        let subject = question.subject();
        let mut rounds = 0;
        let round = loop {
            let round = self.inquiries.run(question.clone()).await?;
            if self.are_all_asked(id, &round, &mut rounds)? {
                break round;
            }
        };
        let nodes = self.nodes()?;
        let outcome = self.deleted(method, id, &nodes, &round.lock());
        if outcome.is_ok() {
            self.inquiries.forget(&self.question(id, self.wish(id)).subject());
        }
        if outcome.is_ok() || nodes.len() <= FEW {
            self.inquiries.forget(&subject);
        }
        outcome
    }

    /// The outcome of a delete that all of these nodes were told.
    fn deleted(
        &self,
        method: Method,
        id: &Id,
        nodes: &[NodeName],
        round: &Round,
    ) -> Result<Answer, Error> {
        let mut silent = Vec::new();
        for node in nodes {
            match round.said(node) {
                Some(Said::Refused(answer)) => {
                    return Err(self.refused(method, id, node.clone(), answer));
                }
                Some(_) => {}
                // One that was away, and is known not to have it, need not be told.
                None if round.is_mute(node) || !self.is_not_there(node, id) => {
                    silent.push(node.clone());
                }
                None => {}
            }
        }
        if !silent.is_empty() {
            silent.sort();
            return Err(self.not_asked(id, &silent));
        }
        // Without an answer no node was told, because no node can have it.
        let answer = round.deleted.as_ref().map(Answer::apart);
        Ok(answer.unwrap_or_else(|| Answer::of(frame::frame(&[]))))
    }

    /// Sends a delete to the only node, and returns the driver's own answer.
    async fn delete_at(
        &self,
        node: &NodeName,
        method: Method,
        id: &Id,
        call: &Call,
    ) -> Result<Answer, Error> {
        if self.queries.links().now(node).is_none() && self.is_not_there(node, id) {
            return Ok(Answer::of(frame::frame(&[])));
        }
        let mut call = self.without_secrets(1, method, call)?;
        let told = self.queries.node_call(node, method, Lane::Call, self.deadline);
        let answer = told.unary(&mut call).await;
        answer.map_err(|error| {
            log_untold(node, method, &call, &error);
            self.not_asked(id, std::slice::from_ref(node))
        })
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
        candidates(self.queries, self.store)
    }

    /// True if a node is known not to have an id.
    fn is_not_there(&self, node: &NodeName, id: &Id) -> bool {
        let driver = &self.queries.driver;
        self.store.read(|state| {
            state.driver(driver).is_some_and(|driver| is_known_without(driver, node, id))
        })
    }

    /// The snapshots that the caller names of a group. CSI: they "MUST match" the group's, so a
    /// driver may refuse a question without them.
    fn snapshot_ids(&self) -> Vec<String> {
        // A delete names them in the same field.
        let request = csi::GetVolumeGroupSnapshotRequest::decode(self.request.clone());
        request.unwrap_or_default().snapshot_ids
    }

    /// The time from which a node's word is enough. `None` if it is now.
    fn adopts_from(&self) -> Option<u64> {
        self.store.read(|state| state.adopts_from(&self.queries.driver, now()))
    }

    fn too_early(&self, id: &Id, nodes: &[NodeName]) -> Error {
        too_early(&self.queries.driver, id, nodes, self.adopts_from().unwrap_or_default())
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

/// The error of an id that these nodes may have, while the store is new: until `from`, in ms since
/// 1970.
pub(crate) fn too_early(driver: &DriverName, id: &Id, nodes: &[NodeName], from: u64) -> Error {
    let seconds = i64::try_from(from / 1000).ok();
    let from = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    Error::NewStore {
        driver: driver.clone(),
        id: id.text().into(),
        kind: id.word(),
        nodes: names(nodes),
        from: from.unwrap_or(Timestamp::MAX).to_string(),
    }
}

/// The answers of these nodes, and what the claimants say of the thing.
fn answers(round: &Round, nodes: &[NodeName]) -> (Answers, HashMap<NodeName, (Bytes, u64)>) {
    let mut answers = Answers::default();
    let mut entries = HashMap::new();
    for node in nodes {
        let of = match round.said(node) {
            Some(Said::Has { entry, since }) => {
                entries.insert(node.clone(), (entry.clone(), *since));
                &mut answers.claimants
            }
            Some(Said::Lacks | Said::Deleted(_)) => &mut answers.deniers,
            Some(Said::CannotSay) => &mut answers.unable,
            Some(Said::Refused(_)) | None => &mut answers.silent,
        };
        of.push(node.clone());
    }
    (answers, entries)
}

#[cfg(test)]
mod tests;
