//! The capacity of several nodes together.
//!
//! Callers poll one topology after another, so no node may delay an answer. A slow node, or one
//! without a link, counts with its last answer. So does one whose driver is down. After the grace
//! it counts as full, and nothing is placed there. Of many nodes, those are not asked whose last
//! answer is recent.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use proto::csi;
use proto::csi::Method;
use proto::csi::wire::Malformed;
use proto::csi::{frame, wire};
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::forward::{Answer, Call, until};
use proto::names::NodeName;
use tokio::time::Instant;
use tonic::Code;
use tracing::debug;

use super::remembered;
use super::remembered::AskedOver;
use super::request::CallRequest;
use super::single_flight::{Pending, SingleFlight, wait, wait_end};
use crate::error::Error;
use crate::nodes::connections::Lane;
use crate::nodes::query::NodeQueries;
use crate::rewrite::message;
use crate::state::node_names::names;
use crate::state::policy::Policy;
use crate::state::set_apart::Reason;
use crate::state::store::writer::Store;

/// The time limit of a query. A late answer counts for the next caller.
const LONGEST: Duration = Duration::from_secs(30);
/// Answers in each half of [`LastCapacities`], about 100 bytes each.
const KEPT: usize = 65_536;

/// A node's answer, or why it has none.
type NodeAnswer = Result<Answer, Arc<Error>>;
/// A node, and the hash of the request.
type QueryKey = (NodeName, u64);

/// The capacity of one driver's nodes.
pub struct Capacities {
    queries: NodeQueries,
    store: Store,
    grace: Duration,
    always_asked: usize,
    in_flight: SingleFlight<QueryKey, NodeAnswer>,
    last: Arc<Mutex<LastCapacities>>,
    hasher: RandomState,
}

/// The last answers of nodes. When the newer half is full, it replaces the older one.
#[derive(Default)]
struct LastCapacities {
    newer: HashMap<QueryKey, LastCapacity>,
    older: HashMap<QueryKey, LastCapacity>,
}

/// A node's last answer, and when it was asked.
#[derive(Clone)]
struct LastCapacity {
    capacity: csi::GetCapacityResponse,
    asked: Option<AskedOver>,
}

/// The sum over the queried nodes.
#[derive(Default)]
struct Sum {
    /// True if any node counts.
    known: bool,
    /// The nodes in the total.
    nodes: usize,
    total: csi::GetCapacityResponse,
    /// Answers of drivers that refused.
    refused: Vec<Answer>,
    /// Nodes without any answer, now or before.
    unknown: Vec<NodeName>,
    /// True if a node answered just now.
    answered: bool,
    /// Nodes with useless answers, and the faults.
    no_use: Vec<(NodeName, &'static str)>,
}

impl Capacities {
    /// Queries run as tasks of this group. A node that has been away for the policy's grace counts
    /// as full.
    pub fn new(queries: NodeQueries, store: Store, policy: &Policy, tasks: Tasks) -> Self {
        Self {
            queries,
            store,
            grace: policy.grace,
            always_asked: policy.always_asked,
            in_flight: SingleFlight::new(tasks),
            last: Arc::default(),
            hasher: RandomState::new(),
        }
    }

    /// Answers a GetCapacity for all of these nodes. A single node's answer is passed on unchanged.
    ///
    /// # Errors
    /// The request is malformed, or no node has answered yet.
    pub(crate) async fn sum(
        &self,
        nodes: Vec<NodeName>,
        call: &CallRequest,
    ) -> Result<Response<Body>, Error> {
        let request = self.hasher.hash_one(meaning(&call.message));
        let end = wait_end(call.deadline);
        let is_single = nodes.len() == 1;
        let lane = if is_single { Lane::Call } else { Lane::FanOut };
        let oldest = remembered::oldest(nodes.len(), self.always_asked);
        let mut queried = Vec::with_capacity(nodes.len());
        let (mut sum, mut rested) = (Sum::default(), Duration::ZERO);
        for node in nodes {
            if let Some((age, capacity)) = oldest.and_then(|age| self.recent(&node, request, age)) {
                sum.add(&capacity);
                rested = rested.max(age);
                continue;
            }
            let pending = self.query(&node, request, lane, call);
            let pending = pending.map_err(|source| call.malformed(source))?;
            queried.push((node, pending));
        }
        if oldest.is_some() {
            call.running.rested_on(rested);
        }
        let asked = queried.iter().filter(|(_, pending)| pending.is_some()).count();
        for (node, pending) in queried {
            let answer = match pending {
                Some(pending) => wait(pending, end).await,
                None => None,
            };
            match answer {
                Some(Ok(answer)) if is_single => return Ok(answer.response()),
                Some(Ok(answer)) => match read(&answer) {
                    Some(capacity) => {
                        sum.answered = true;
                        sum.add(&capacity);
                    }
                    None => {
                        sum.no_use.extend(no_use(&answer).map(|why| (node.clone(), why)));
                        sum.refused.push(answer);
                        self.add_last(&mut sum, node, request);
                    }
                },
                Some(Err(error)) => {
                    let is_silent = matches!(*error, Error::DeadlinePassed(_));
                    if is_silent && self.queries.was_linked(&node, LONGEST) {
                        sum.no_use.push((node.clone(), "it does not come"));
                    }
                    self.add_last(&mut sum, node, request);
                }
                None => self.add_last(&mut sum, node, request),
            }
        }
        self.judge(&sum, call.method);
        self.answer(sum, asked)
    }

    /// Sets nodes apart for useless answers, if another node gave a good one. If none did, the
    /// request or the driver is wrong, and no single node.
    fn judge(&self, sum: &Sum, method: Method) {
        for (node, why) in sum.no_use.iter().filter(|_| sum.answered) {
            let reason = Reason::BadAnswer { method, why: (*why).into() };
            self.store.set_apart(node, Some(&self.queries.driver), reason);
        }
    }

    fn answer(&self, mut sum: Sum, asked: usize) -> Result<Response<Body>, Error> {
        // If all drivers refuse alike, the request is wrong, and earlier answers do not count. One
        // node does not decide for others that are silent.
        let is_refused = sum.refused.len() == asked && have_one_code(&sum.refused);
        if let Some(answer) = sum.refused.pop().filter(|_| is_refused) {
            return Ok(answer.response());
        }
        if !sum.known && !sum.unknown.is_empty() {
            let driver = self.queries.driver.clone();
            return Err(Error::NoCapacity { driver, nodes: names(&sum.unknown) });
        }
        Ok(Answer::of(frame::frame(&sum.total.encode_to_vec())).response())
    }

    /// Starts or joins the query of a node. None if the node has no link, or its driver is down.
    fn query(
        &self,
        node: &NodeName,
        request: u64,
        lane: Lane,
        call: &CallRequest,
    ) -> Result<Option<Pending<NodeAnswer>>, Malformed> {
        if self.away(node).is_some() {
            return Ok(None);
        }
        let at = self.store.read(|state| state.driver(&self.queries.driver)?.at(node).cloned());
        let for_node = message::for_node(call.method.rewrite(), &call.for_driver, at.as_ref())?;
        let key = (node.clone(), request);
        let queries = self.queries.clone();
        let last = self.last.clone();
        let method = call.method;
        let outbound = call.outbound(&for_node);
        Ok(Some(self.in_flight.run(key.clone(), lane, move || async move {
            let asked = queries.links().now(&key.0).as_ref().map(AskedOver::now);
            let answer = query_node(&queries, &key.0, method, lane, outbound).await;
            match &answer {
                Ok(answer) => {
                    if let Some(capacity) = read(answer) {
                        lock(&last).keep(key, LastCapacity { capacity, asked });
                    }
                }
                Err(error) => {
                    let error = chain(error);
                    debug!(node = %key.0, error, "a node does not say how much room it has");
                }
            }
            answer.map_err(Arc::new)
        })))
    }

    /// For how long the driver at a node has been away; none if it is there.
    fn away(&self, node: &NodeName) -> Option<Duration> {
        self.queries.links().driver_away(node, &self.queries.driver)
    }

    /// A linked node's last answer and its age, if it can be used instead of another question.
    fn recent(
        &self,
        node: &NodeName,
        request: u64,
        oldest: Duration,
    ) -> Option<(Duration, csi::GetCapacityResponse)> {
        let queries = &self.queries;
        let link = queries.links().now(node).filter(|_| self.away(node).is_none())?;
        let LastCapacity { capacity, asked } = lock(&self.last).get(&(node.clone(), request))?;
        let age = asked?.age(&link, &queries.driver, oldest)?;
        Some((age, capacity))
    }

    /// Adds a node's last answer. A node that has been away for the grace adds nothing.
    fn add_last(&self, sum: &mut Sum, node: NodeName, request: u64) {
        if self.away(&node).is_some_and(|away| away >= self.grace) {
            sum.known = true;
            return;
        }
        let key = (node, request);
        let last = lock(&self.last).get(&key);
        match last {
            Some(last) => sum.add(&last.capacity),
            None => sum.unknown.push(key.0),
        }
    }
}

async fn query_node(
    queries: &NodeQueries,
    node: &NodeName,
    method: Method,
    lane: Lane,
    mut call: Call,
) -> Result<Answer, Error> {
    let deadline = Some(Instant::now() + LONGEST);
    let node_call = queries.node_call(node, method, lane, deadline);
    until(deadline, std::pin::pin!(node_call.unary(&mut call))).await
}

/// The capacity in an answer. None if the driver refused.
fn read(answer: &Answer) -> Option<csi::GetCapacityResponse> {
    csi::GetCapacityResponse::decode(answer.message()?).ok()
}

/// The fault of an answer without a capacity; none if the driver refused the request.
fn no_use(answer: &Answer) -> Option<&'static str> {
    match answer.failure() {
        Some(status) if status.code() == Code::Unimplemented => {
            Some("UNIMPLEMENTED, though other nodes can")
        }
        Some(_) => None,
        None => Some("it is not the message that it should be"),
    }
}

/// True if all refusals have the same code.
fn have_one_code(refused: &[Answer]) -> bool {
    let failures = refused.iter().filter_map(|answer| answer.failure());
    let mut codes = failures.map(|status| status.code());
    let first = codes.next();
    codes.all(|code| Some(code) == first)
}

/// A canonical form of a request: callers encode the entries of a map in any order.
fn meaning(request: &Bytes) -> Vec<Vec<u8>> {
    let decoded = csi::GetCapacityRequest::decode(request.clone()).unwrap_or_default();
    let parameters: BTreeMap<_, _> = decoded.parameters.into_iter().collect();
    let topology = decoded.accessible_topology.map(|topology| {
        let segments: BTreeMap<_, _> = topology.segments.into_iter().collect();
        segments
    });
    let capabilities = decoded.volume_capabilities.iter();
    let mut meaning: Vec<_> = capabilities.map(Message::encode_to_vec).collect();
    for map in [Some(parameters), topology].into_iter().flatten() {
        meaning.push(Vec::new());
        meaning.extend(map.iter().map(|(key, value)| wire::entry(key, value)));
    }
    let unknown = wire::fields(request).map_while(Result::ok).filter(|field| field.number > 3);
    meaning.extend(unknown.map(|field| field.raw.to_vec()));
    meaning
}

fn lock(last: &Mutex<LastCapacities>) -> MutexGuard<'_, LastCapacities> {
    last.lock()
}

impl LastCapacities {
    fn keep(&mut self, key: QueryKey, last: LastCapacity) {
        if self.newer.len() >= KEPT && !self.newer.contains_key(&key) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, last);
    }

    fn get(&self, key: &QueryKey) -> Option<LastCapacity> {
        self.newer.get(key).or_else(|| self.older.get(key)).cloned()
    }
}

impl Sum {
    fn add(&mut self, node: &csi::GetCapacityResponse) {
        self.known = true;
        let total = &mut self.total;
        // A volume lives at one node, so the largest one counts. Who does not say it has what is
        // free, which the sum of several nodes does not tell.
        let largest = |of: &csi::GetCapacityResponse| {
            of.maximum_volume_size.unwrap_or_else(|| of.available_capacity.max(0))
        };
        total.maximum_volume_size = match self.nodes {
            0 => node.maximum_volume_size,
            _ => Some(largest(total).max(largest(node))),
        };
        self.nodes += 1;
        total.available_capacity =
            total.available_capacity.saturating_add(node.available_capacity.max(0));
        let minimums = total.minimum_volume_size.into_iter().chain(node.minimum_volume_size);
        total.minimum_volume_size = minimums.min();
    }
}

#[cfg(test)]
mod tests;
