//! The capacity of several nodes together. Whoever asks polls all of them, one question after another, so no node
//! may hold it up: one that is slow or away counts with what it said last, and one that is away for longer with
//! nothing, so that nothing is placed there.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Error;
use bytes::Bytes;
use http::Response;
use prost::Message;
use proto::csi;
use proto::csi::Method;
use proto::csi::wire::Malformed;
use proto::csi::{frame, wire};
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::http2::forward::{Answer, Body, Call, until};
use proto::names::NodeName;
use tokio::time::Instant;
use tonic::Code;
use tracing::debug;

use super::questions::{Answer as Pending, Questions, end, wait};
use super::request::IncomingCall;
use crate::nodes::node_call::NodeCall;
use crate::nodes::query::NodeQueries;
use crate::rewrite::message;
use crate::state::node_names::names;
use crate::state::store::writer::Store;

/// How long a node may take, so that what it says is known the next time.
const LONGEST: Duration = Duration::from_secs(30);
/// Half of what is kept of what nodes said, about 100 bytes each.
const KEPT: usize = 65_536;

/// What a node says, or why it said nothing.
type Said = Result<Answer, Arc<Error>>;
/// A node, and the hash of what it is asked.
type Asked = (NodeName, u64);

/// The capacity of one driver's nodes.
pub struct Capacities {
    asker: NodeQueries,
    store: Store,
    grace: Duration,
    questions: Questions<Asked, Said>,
    last: Arc<Mutex<Last>>,
    hasher: RandomState,
}

/// What nodes said last. Of the two halves the older is thrown away when the newer is full.
#[derive(Default)]
struct Last {
    newer: HashMap<Asked, csi::GetCapacityResponse>,
    older: HashMap<Asked, csi::GetCapacityResponse>,
}

/// What is known of the nodes that were asked.
#[derive(Default)]
struct Sum {
    known: bool,
    all: csi::GetCapacityResponse,
    /// Answers of drivers that refused.
    refused: Vec<Answer>,
    /// Nodes of which nothing is known.
    unknown: Vec<NodeName>,
}

impl Capacities {
    /// Asks nodes by tasks of this group. `grace` is how long a node may be away until it counts as full.
    pub fn new(asker: NodeQueries, store: Store, grace: Duration, tasks: Tasks) -> Self {
        let (last, hasher) = Default::default();
        Self { asker, store, grace, questions: Questions::new(tasks), last, hasher }
    }

    /// Answers a GetCapacity for all of these nodes. A single node's answer is passed on as it call.
    ///
    /// # Errors
    /// Nothing is known of any of them yet.
    pub(crate) async fn sum(
        &self,
        nodes: Vec<NodeName>,
        call: &IncomingCall,
    ) -> Result<Response<Body>, Error> {
        let (question, end) = (self.hasher.hash_one(meaning(&call.message)), end(call.deadline));
        let single = nodes.len() == 1;
        let ask = |node: NodeName| Ok((self.ask(&node, question, call)?, node));
        let asked: Vec<_> = nodes
            .into_iter()
            .map(ask)
            .collect::<Result<_, Malformed>>()
            .map_err(|source| call.malformed(source))?;
        let (mut sum, mut linked) = (Sum::default(), 0);
        for (answer, node) in asked {
            let said = match answer {
                Some(answer) => wait(answer, end).await,
                None => None,
            };
            linked += usize::from(said.is_some());
            match said {
                Some(Ok(answer)) if single => return Ok(answer.response()),
                Some(Ok(answer)) if is_unimplemented(&answer) => return Ok(answer.response()),
                Some(Ok(answer)) => match read(&answer) {
                    Some(said) => sum.add(&said),
                    None => {
                        sum.refused.push(answer);
                        self.add_last(&mut sum, node, question);
                    }
                },
                _ => self.add_last(&mut sum, node, question),
            }
        }
        self.answer(sum, linked)
    }

    fn answer(&self, mut sum: Sum, answered: usize) -> Result<Response<Body>, Error> {
        // They all say that the question is wrong, so what one of them said before does not count.
        let codes =
            || sum.refused.iter().filter_map(|answer| answer.failure()).map(|status| status.code());
        let first = codes().next();
        let alike = sum.refused.len() == answered && codes().all(|code| Some(code) == first);
        if let Some(answer) = sum.refused.pop().filter(|_| alike) {
            return Ok(answer.response());
        }
        if !sum.known && !sum.unknown.is_empty() {
            let (driver, nodes) = (self.asker.driver.clone(), names(&sum.unknown));
            return Err(Error::NoCapacity { driver, nodes });
        }
        Ok(Answer::of(frame::frame(&sum.all.encode_to_vec())).response())
    }

    /// Asks a node that has a link.
    fn ask(
        &self,
        node: &NodeName,
        question: u64,
        call: &IncomingCall,
    ) -> Result<Option<Pending<Said>>, Malformed> {
        if self.asker.links().now(node).is_none() {
            return Ok(None);
        }
        let at = self.store.read(|state| state.driver(&self.asker.driver)?.at(node).cloned());
        let request = message::for_node(call.method.rewrite(), &call.for_driver, at.as_ref())?;
        let (asked, asker, last) =
            ((node.clone(), question), self.asker.clone(), self.last.clone());
        let method = call.method;
        let mut call = call.clone();
        call.send(&request);
        Ok(Some(self.questions.ask(asked.clone(), move || async move {
            let said = one(&asker, &asked.0, method, call.call).await;
            match &said {
                Ok(answer) => {
                    if let Some(said) = read(answer) {
                        lock(&last).keep(asked, said);
                    }
                }
                Err(error) => {
                    debug!(node = %asked.0, error = chain(error), "a node does not say how much room it has");
                }
            }
            said.map_err(Arc::new)
        })))
    }

    /// What a node said last, or nothing if it is away for good.
    fn add_last(&self, sum: &mut Sum, node: NodeName, question: u64) {
        if self.asker.links().away(&node).is_some_and(|away| away >= self.grace) {
            sum.known = true;
            return;
        }
        let asked = (node, question);
        let last = lock(&self.last).of(&asked);
        match last {
            Some(said) => sum.add(&said),
            None => sum.unknown.push(asked.0),
        }
    }
}

async fn one(
    asker: &NodeQueries,
    node: &NodeName,
    method: Method,
    mut call: Call,
) -> Result<Answer, Error> {
    let deadline = Some(Instant::now() + LONGEST);
    let (links, driver, authority) = (&**asker.links(), &asker.driver, asker.authority());
    let passage = NodeCall { links, driver, authority, node, method, deadline, call: None };
    until(deadline, std::pin::pin!(passage.unary(&mut call))).await
}

/// What a driver says; none if it refused.
fn read(answer: &Answer) -> Option<csi::GetCapacityResponse> {
    let message = frame::message(answer.ok()?).ok()?;
    csi::GetCapacityResponse::decode(message).ok()
}

fn is_unimplemented(answer: &Answer) -> bool {
    answer.failure().is_some_and(|status| status.code() == Code::Unimplemented)
}

/// What a request asks for. Callers write the entries of a map in any order.
fn meaning(request: &Bytes) -> Vec<Vec<u8>> {
    let asks = csi::GetCapacityRequest::decode(request.clone()).unwrap_or_default();
    let parameters: BTreeMap<_, _> = asks.parameters.into_iter().collect();
    let topology =
        asks.accessible_topology.map(|at| at.segments.into_iter().collect::<BTreeMap<_, _>>());
    let mut meaning: Vec<_> =
        asks.volume_capabilities.iter().map(|capability| capability.encode_to_vec()).collect();
    for map in [Some(parameters), topology].into_iter().flatten() {
        meaning.push(Vec::new());
        meaning.extend(map.iter().map(|(key, value)| wire::entry(key, value)));
    }
    let newer = wire::fields(request).map_while(Result::ok).filter(|field| field.number > 3);
    meaning.extend(newer.map(|field| field.raw.to_vec()));
    meaning
}

fn lock(last: &Mutex<Last>) -> MutexGuard<'_, Last> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Last {
    fn keep(&mut self, asked: Asked, said: csi::GetCapacityResponse) {
        if self.newer.len() >= KEPT && !self.newer.contains_key(&asked) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(asked, said);
    }

    fn of(&self, asked: &Asked) -> Option<csi::GetCapacityResponse> {
        self.newer.get(asked).or_else(|| self.older.get(asked)).cloned()
    }
}

impl Sum {
    fn add(&mut self, said: &csi::GetCapacityResponse) {
        let all = &mut self.all;
        self.known = true;
        all.available_capacity =
            all.available_capacity.saturating_add(said.available_capacity.max(0));
        // A volume lives at one node: the largest is what the best of them takes.
        all.maximum_volume_size = all.maximum_volume_size.max(said.maximum_volume_size);
        let both = all.minimum_volume_size.into_iter().chain(said.minimum_volume_size);
        all.minimum_volume_size = both.min();
    }
}

#[cfg(test)]
mod tests;
