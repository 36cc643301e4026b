//! A create, in five steps. The intent is durable before the driver is called, and the home before
//! the caller is answered.

use bytes::Bytes;
use http::Response;
use proto::csi::frame;
use proto::csi::{Id, Key, Learn, direct};
use proto::http2::forward::Body;
use proto::names::NodeName;
use tokio::time::Instant;
use tracing::{info, warn};

use super::request::IncomingCall;
use super::route::{source_text, topology_text};
use super::volume_call::{Sender, message_of};
use crate::error::Error;
use crate::nodes::node_call::HOLD;
use crate::rewrite::{created, message};
use crate::state::clock;
use crate::state::colocated::Colocated;
use crate::state::create_journal::{CreateFacts, CreateJournal};
use crate::state::policy::Scope;
use crate::state::record::NodeDriver;

const UNREADABLE: &str = "with what cannot be read";
const NO_ID: &str = "without an id of what it made";

/// The node of a create.
pub(crate) enum Target {
    /// The one of these with the fewest volumes.
    OneOf(Vec<NodeName>),
    /// The node of an earlier attempt.
    SentTo(NodeName),
}

/// Carries out the create with this name.
///
/// # Errors
/// It was not sent, its outcome is unknown, or its outcome is not durable.
pub(crate) async fn create(
    sender: &Sender<'_>,
    journal: &CreateJournal,
    name: &Id,
    target: Target,
    call: &mut IncomingCall,
) -> Result<Response<Body>, Error> {
    let is_shared = sender.scope == Scope::Shared;
    let facts = facts(call);
    // 1. Intend: the node is durable before anything is sent to it.
    let create = journal.begin(name);
    let node = match target {
        Target::OneOf(nodes) => create.intend(nodes, &facts, is_shared).await?,
        Target::SentTo(node) => node,
    };
    // 2. Send. A shared driver's topology is not rewritten.
    let at = sender.node_driver(&node).filter(|_| !is_shared);
    let rewrite = call.method.rewrite();
    let request = message::for_node(rewrite, &call.for_driver, at.as_ref());
    call.set_request(&request.map_err(|error| call.malformed(error))?);
    let answer = sender.send(&node, call).await?;
    if let Some(status) = answer.failure() {
        create.refused(status.code()).await;
        return Ok(answer.response());
    }
    // 3. Read: an answer of OK names everything that was created.
    let method = call.method;
    let message =
        message_of(&answer).ok_or_else(|| sender.bad_answer(&node, method, UNREADABLE))?;
    let made = match method.learn() {
        Learn::Made(read) => read(&message).ok(),
        Learn::Nothing
        | Learn::Gone
        | Learn::Attached(_)
        | Learn::Detached(_)
        | Learn::Resized(_) => None,
    };
    let made = made.ok_or_else(|| sender.bad_answer(&node, method, UNREADABLE))?;
    if made.first().is_none_or(|made| made.id.text().is_empty()) {
        return Err(sender.bad_answer(&node, method, NO_ID));
    }
    warn_of_other_size(sender, &node, call, &message);
    // 4. Record: the home is durable before the caller is answered.
    let colocated = at.as_ref().and_then(|at| colocated(sender, name, &node, at, call));
    create.made(&node, made, facts, is_shared).await?;
    if let Some(colocated) = colocated {
        sender.store.colocated().push(colocated);
    }
    // 5. Show: the answer gets our topology and the parameters of a direct volume.
    let mut shown = message::into_answer(rewrite, &message, &node, at.as_ref())
        .map_err(|_| sender.bad_answer(&node, method, UNREADABLE))?;
    let parameters = &call.extracted.parameters;
    if parameters.contains_key(direct::KEY) {
        shown = direct::into_created_volume(&shown, parameters).into();
    }
    Ok(if shown == message { answer } else { answer.with(frame::frame(&shown)) }.response())
}

/// The parts of the request that the journal keeps.
fn facts(call: &IncomingCall) -> CreateFacts {
    let left = call.deadline.map_or(HOLD, |end| end.saturating_duration_since(Instant::now()));
    let parameters = &call.extracted.parameters;
    CreateFacts {
        until: clock::after(left),
        claim: call.extracted.claim.clone(),
        parameters: (!parameters.is_empty()).then(|| Box::new(parameters.clone())),
    }
}

/// The colocation of a new volume whose source is outside the requested topology.
fn colocated(
    sender: &Sender<'_>,
    name: &Id,
    node: &NodeName,
    at: &NodeDriver,
    call: &IncomingCall,
) -> Option<Colocated> {
    let Key::Create { source: Some(source), topology, required, .. } = &call.key else {
        return None;
    };
    if at.is_requested(topology, *required) {
        return None;
    }
    let is_new = sender.store.read(|state| {
        let intent = state.driver(sender.driver).and_then(|driver| driver.intent(name));
        intent.is_none_or(|intent| intent.made.is_none())
    });
    if !is_new {
        return None;
    }
    let driver = sender.driver;
    let made_from = source_text(source);
    let requested = topology_text(topology);
    let claim = call.extracted.claim.clone();
    let claimed = claim.as_deref().map(|claim| format!("{}/{}", claim.namespace, claim.name));
    let name = name.text();
    info!(%driver, %node, name, claim = claimed, made_from, requested, "made beside its source");
    Some(Colocated { name: name.into(), claim: claim?, node: node.clone(), made_from, requested })
}

fn warn_of_other_size(sender: &Sender<'_>, node: &NodeName, call: &IncomingCall, answer: &Bytes) {
    let Some(range) = call.range else { return };
    let Some(size) = created::other_size(range, answer) else { return };
    warn!(
        driver = %sender.driver,
        %node,
        size,
        asked_for = format!("{}..{}", range.required, range.limit),
        "the driver made a volume of another size than was asked for"
    );
}
