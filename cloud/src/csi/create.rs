//! A create, in five steps. The intent is durable before the driver is called, and the home before
//! the caller is answered. A decision that the class leaves open comes before them.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Response;
use proto::csi::frame;
use proto::csi::wire::Malformed;
use proto::csi::{Id, Key, Learn, Method, Rewrite, direct};
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::http2::body::Body;
use proto::http2::forward::Answer;
use proto::names::NodeName;
use tokio::time::Instant;
use tracing::info;

use super::decide_direct::decide;
use super::request::CallRequest;
use super::source_text::{source_text, topology_text};
use crate::csi::create_journal::{Attempt, CreateFacts, CreateJournal, Target};
use crate::error::Error;
use crate::nodes::node_call::{Ended, NodeCall, Sender};
use crate::rewrite::placed::{Placed, corrected, placed};
use crate::rewrite::{created, message};
use crate::state::affinity::NodesOf;
use crate::state::clock;
use crate::state::colocated::Colocated;
use crate::state::election::HOLD;
use crate::state::list_entry;
use crate::state::node_names::first_few;
use crate::state::record::NodeDriver;
use crate::state::store::writer::Store;
use crate::telemetry::calls::Running;

const UNREADABLE: &str = "with what cannot be read";
const NO_ID: &str = "without an id of what it made";

/// Carries out the creates of one front.
pub(crate) struct Creates<'a> {
    pub(crate) sender: Sender<'a>,
    pub(crate) store: &'a Store,
    pub(crate) journal: &'a CreateJournal,
}

impl Creates<'_> {
    /// Carries out the create with this name.
    ///
    /// # Errors
    /// It was not sent, its outcome is unknown, or its outcome is not durable.
    pub(crate) async fn create(
        &self,
        name: &Id,
        target: Target,
        call: &CallRequest,
    ) -> Result<Response<Body>, Error> {
        let is_shared = self.sender.in_doubt.is_some();
        let decided = decide(self.sender, self.store, name, call)?;
        let (parameters, for_driver) = match &decided {
            Some(decided) => (&decided.parameters, &decided.for_driver),
            None => (&call.extracted.parameters, &call.for_driver),
        };
        let begins_by = self.sender.begins_by(target.nodes());
        let is_direct = decided.as_ref().map(|decided| decided.is_direct);
        let facts = facts(call, parameters, is_direct, begins_by);
        // 1. Intend: the node is durable before anything is sent to it.
        self.check_linked(&target)?;
        let create = self.journal.begin(name);
        let intended = create.intend(target, &facts, is_shared).await;
        let attempt = intended.inspect_err(|error| note_full(error, &call.running))?;
        let node = attempt.node.clone();
        // 2. Send. A shared driver's topology is not rewritten.
        let at = self.node_driver(&node).filter(|_| !is_shared);
        let rewrite = call.method.rewrite();
        let to_node = NodeCall { begins_by, ..call.at(&node, self.sender) };
        let sent = self.send(&attempt, at.as_ref(), for_driver, to_node, call).await;
        if !sent.maybe_dispatched {
            create.not_dispatched(attempt).await;
            return sent.answer.map(Answer::response);
        }
        let answer = sent.answer?;
        if let Some(status) = answer.failure() {
            create.refused(&status, attempt).await?;
            return Ok(answer.response());
        }
        // 3. Read: an answer of OK names everything that was created.
        let method = call.method;
        let message = answer.message().ok_or_else(|| self.bad_answer(&node, method, UNREADABLE))?;
        let made = match method.learn() {
            Learn::Made(read) => read(&message).ok(),
            Learn::Nothing
            | Learn::Gone
            | Learn::Attached(_)
            | Learn::Detached(_)
            | Learn::Resized(_) => None,
        };
        let made = made.ok_or_else(|| self.bad_answer(&node, method, UNREADABLE))?;
        if made.first().is_none_or(|made| made.id.text().is_empty()) {
            return Err(self.bad_answer(&node, method, NO_ID));
        }
        if let Some(why) = made.iter().find_map(list_entry::why_too_large) {
            return Err(self.bad_answer(&node, method, why));
        }
        self.warn_of_other_size(&node, call, &message);
        // 4. Record: the home is durable before the caller is answered.
        let colocated = at.as_ref().and_then(|at| self.colocated(name, &node, at, call));
        create.made(&node, made, facts, is_shared).await?;
        if let Some(colocated) = colocated {
            self.store.colocated().push(colocated);
        }
        // 5. Show: the answer gets our topology and the parameters of a direct volume.
        let mut shown = message::into_answer(rewrite, &message, &node, at.as_ref())
            .and_then(|shown| self.placed(shown, &attempt, at.as_ref(), call))
            .map_err(|_| self.bad_answer(&node, method, UNREADABLE))?;
        if parameters.contains_key(direct::KEY) {
            shown = direct::into_created_volume(&shown, parameters).into();
        }
        Ok(if shown == message { answer } else { answer.with(frame::frame(&shown)) }.response())
    }

    /// Refuses to repeat a create at a node that has no link: there is nothing to count.
    fn check_linked(&self, target: &Target) -> Result<(), Error> {
        match target {
            Target::SentTo(node) if self.sender.links.now(node).is_none() => {
                Err(Error::NotLinked { node: node.clone(), driver: self.sender.driver.clone() })
            }
            Target::SentTo(_) | Target::OneOf(_) => Ok(()),
        }
    }

    /// Sends the create to the node of this attempt.
    async fn send(
        &self,
        attempt: &Attempt,
        at: Option<&NodeDriver>,
        for_driver: &Bytes,
        to_node: NodeCall<'_>,
        call: &CallRequest,
    ) -> Ended {
        let link = self.sender.links.now(&attempt.node);
        if link.is_some_and(|link| link.peer.is_elsewhere(attempt.machine)) {
            // An operator has just accepted another machine, and the link of this one ends.
            let (node, driver) = (attempt.node.clone(), self.sender.driver.clone());
            let answer = Err(Error::NotLinked { node, driver });
            return Ended { answer, maybe_dispatched: false };
        }
        let narrowed = attempt.narrowed.as_deref();
        match message::for_create(call.method.rewrite(), for_driver, at, narrowed) {
            Ok(message) => to_node.tracked(&mut call.outbound(&message)).await,
            Err(error) => Ended { answer: Err(call.malformed(error)), maybe_dispatched: false },
        }
    }

    /// The colocation of a new volume whose source is outside the requested topology.
    fn colocated(
        &self,
        name: &Id,
        node: &NodeName,
        at: &NodeDriver,
        call: &CallRequest,
    ) -> Option<Colocated> {
        let Key::Create { source: Some(source), topology, required, .. } = &call.key else {
            return None;
        };
        if at.is_requested(topology, *required) {
            return None;
        }
        let is_new = self.store.read(|state| {
            let intent = state.driver(self.sender.driver).and_then(|driver| driver.intent(name));
            intent.is_none_or(|intent| intent.made.is_none())
        });
        if !is_new {
            return None;
        }
        let driver = self.sender.driver;
        let made_from = source_text(source);
        let requested = topology_text(topology);
        let claim = call.extracted.claim.clone();
        let claimed = claim.as_deref().map(|claim| format!("{}/{}", claim.namespace, claim.name));
        let name = name.text();
        info!(
            call = %call.running.id, %driver, %node, name, claim = claimed, made_from, requested,
            "made beside its source"
        );
        Some(Colocated {
            name: name.into(),
            claim: claim?,
            node: node.clone(),
            made_from,
            requested,
        })
    }

    /// The answer with a topology of the node that made the volume, if it names other nodes alone
    /// and the operator says that a volume is where it was made. Only then is that known: with an
    /// inferred scope, the volume may well be where the driver says.
    fn placed(
        &self,
        shown: Bytes,
        attempt: &Attempt,
        at: Option<&NodeDriver>,
        call: &CallRequest,
    ) -> Result<Bytes, Malformed> {
        let is_volume = call.method.rewrite() == Rewrite::CreateVolume;
        let Some(at) = at.filter(|at| is_volume && at.has_own_topology()) else {
            return Ok(shown);
        };
        let (driver, node) = (self.sender.driver, &attempt.node);
        let policy = self.sender.links.authority().policy(driver);
        let placed = self.store.read(|state| {
            let Some(of) = state.driver(driver) else { return Ok(Placed::Unclear) };
            placed(&shown, node, at, NodesOf { driver: of, policy })
        })?;
        let named = match &placed {
            Placed::Here => return Ok(shown),
            Placed::Elsewhere(others) => first_few(others.iter().map(ToString::to_string)),
            Placed::Unclear => "an unknown place".to_owned(),
        };
        let is_corrected = placed.is_corrected(policy);
        peer_warn!(
            LogPeer::Node(node),
            call = %call.running.id, %driver, %node, named, is_corrected,
            "the driver says that its new volume is not at the node that made it"
        );
        if !is_corrected {
            return Ok(shown);
        }
        let own = attempt.narrowed.as_deref().cloned().unwrap_or_else(|| at.own_segments());
        corrected(&shown, &own)
    }

    fn warn_of_other_size(&self, node: &NodeName, call: &CallRequest, answer: &Bytes) {
        let Some(range) = call.range else { return };
        let Some(size) = created::other_size(range, answer) else { return };
        peer_warn!(
            LogPeer::Node(node),
            call = %call.running.id,
            driver = %self.sender.driver,
            %node,
            size,
            asked_for = format!("{}..{}", range.required, range.limit),
            "the driver made a volume of another size than was asked for"
        );
    }

    /// The record of the driver at a node.
    fn node_driver(&self, node: &NodeName) -> Option<NodeDriver> {
        self.store.read(|state| state.driver(self.sender.driver)?.at(node).cloned())
    }

    fn bad_answer(&self, node: &NodeName, method: Method, why: &'static str) -> Error {
        Error::BadAnswer {
            driver: self.sender.driver.clone(),
            node: node.clone(),
            method: method.name(),
            why,
        }
    }
}

/// Shows operators for which node a create was refused, though nothing was sent there.
fn note_full(error: &Error, running: &Running) {
    if let Error::OverQuota { node, .. } = error {
        running.refused_for(node);
    }
}

/// The parts of the request that the journal keeps.
fn facts(
    call: &CallRequest,
    parameters: &BTreeMap<String, String>,
    direct: Option<bool>,
    begins_by: Option<Instant>,
) -> CreateFacts {
    let requests_topology = call.method.rewrite() == Rewrite::CreateVolume
        && matches!(&call.key, Key::Create { topology, .. } if !topology.is_empty());
    let until = call.deadline.into_iter().chain(begins_by).min();
    let left = until.map_or(HOLD, |until| until.saturating_duration_since(Instant::now()));
    CreateFacts {
        call: Some(call.running.id),
        direct,
        until: clock::after(left),
        claim: call.extracted.claim.clone(),
        parameters: (!parameters.is_empty()).then(|| Box::new(parameters.clone())),
        requests_topology,
    }
}
