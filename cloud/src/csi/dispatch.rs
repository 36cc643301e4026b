//! Gathers the facts for routing and carries out the resulting plan.
//!
//! A shared driver's node is elected here, before its call is routed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use proto::csi::frame;
use proto::csi::{DirectCall, Id, Key};
use proto::http2::body::Body;
use proto::http2::forward::Answer;
use proto::names::{DriverName, NodeName};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tonic::Code;
use tracing::info;

use super::after_start;
use super::capacity::Capacities;
use super::create::Creates;
use super::exhausted::ExhaustedNodes;
use super::identity::FrontIdentity;
use super::lists::merged::Lists;
use super::request::CallRequest;
use super::route::route;
use super::unclear::Unclear;
use super::volume_call::VolumeCalls;
use crate::csi::create_journal::{CreateJournal, Target};
use crate::csi::facts::{Nodes, Plan, RoutingFacts};
use crate::error::Error;
use crate::lease::attach;
use crate::nodes::discover::Discovery;
use crate::nodes::driver_health::DriverStatus;
use crate::nodes::in_doubt::{Elsewhere, InDoubt, Settled};
use crate::nodes::inquiry::Inquiries;
use crate::nodes::links::Links;
use crate::nodes::node_call::Sender;
use crate::nodes::node_status::NodeStatus;
use crate::nodes::query::NodeQueries;
use crate::state::affinity::{Age, VolumeAnswer};
use crate::state::clock::now;
use crate::state::driver_state::DriverState;
use crate::state::election::{Availability, elect};
use crate::state::known::State;
use crate::state::policy::{Policy, Scope};
use crate::state::store::writer::Store;
use crate::telemetry::calls::outcome;

/// So many nodes that a request to them has no secrets.
const SEVERAL: usize = 2;
/// Calls of one driver in flight. More are refused, since each holds its request and its answer.
pub(crate) const MAX_FRONT_CALLS: usize = 1024;

/// Carries out the calls of one front.
pub(crate) struct Dispatcher {
    /// The node of a node's own front.
    pub(crate) only: Option<NodeName>,
    pub(crate) policy: Policy,
    pub(crate) store: Store,
    pub(crate) queries: NodeQueries,
    pub(crate) journal: Arc<CreateJournal>,
    pub(crate) lists: Lists,
    pub(crate) capacities: Capacities,
    pub(crate) inquiries: Inquiries,
    pub(crate) in_doubt: InDoubt,
    pub(crate) exhausted: ExhaustedNodes,
    /// Held while another node is elected.
    pub(crate) electing: Mutex<()>,
    pub(crate) permits: Semaphore,
}

/// The result of a discovery.
enum Discovered {
    /// All ids have a home now.
    All,
    /// The answer is a list without entries.
    EmptyList,
}

impl Dispatcher {
    /// Answers a call.
    ///
    /// # Errors
    /// It was not carried out, or its outcome is unknown.
    pub(crate) async fn dispatch(&self, call: &CallRequest) -> Result<Response<Body>, Error> {
        // A shared driver reports a missing field itself.
        if let Some(field) = call.key.missing().filter(|_| self.scope() == Scope::Node) {
            return Err(Error::Missing(call.method.name(), field));
        }
        let Some(plan) = self.plan_with_homes(call).await? else { return Ok(empty()) };
        let sender = self.sender();
        match plan {
            Plan::Local => self.identity().answer(call.method),
            Plan::NodeOnly => Err(Error::NodeOnly(call.method.name())),
            Plan::Done => Ok(empty()),
            // Asked once, it is not asked again.
            Plan::AskKubernetes(id) => Err(self.no_such_thing(&id)),
            Plan::Discover(ids) => {
                Err(self.no_such_thing(ids.first().map(Id::text).unwrap_or_default()))
            }
            Plan::Node(node) => {
                let _permit = self.admit()?;
                let _running = settled(sender, call, &node)?;
                self.check_delete(call)?;
                let answered =
                    self.volume_calls(sender).call_node(&node, call, &call.for_driver).await;
                self.look_again(&node, call, &answered);
                answered
            }
            Plan::WithoutSecrets(node) | Plan::Claimed(node) => {
                let _permit = self.admit()?;
                self.check_delete(call)?;
                let message = self.queries.for_nodes(SEVERAL, call.method, &call.for_driver)?;
                self.volume_calls(sender).call_node(&node, call, &message).await
            }
            Plan::Stream(node) => {
                let _permit = self.admit()?;
                let _running = settled(sender, call, &node)?;
                call.at(&node, sender).stream(&mut call.outbound(&call.for_driver)).await
            }
            Plan::Create(name, nodes) => {
                let _permit = self.admit()?;
                // A shared driver's create has one node.
                let node = nodes.first();
                let _running = node.map(|node| settled(sender, call, node)).transpose()?;
                self.create(sender, &name, nodes, call).await
            }
            Plan::CreateAgain(name, node) => {
                let _permit = self.admit()?;
                let _running = settled(sender, call, &node)?;
                self.creates(sender).create(&name, Target::SentTo(node), call).await
            }
            Plan::Everywhere(id) => {
                let _permit = self.admit()?;
                self.check_delete(call)?;
                self.volume_calls(sender).delete_everywhere(&id, call).await
            }
            Plan::All => {
                let _permit = self.admit()?;
                self.list(sender, call).await
            }
            Plan::Capacity(nodes) => {
                let _permit = self.admit()?;
                self.capacities.sum(nodes, call).await
            }
        }
    }

    /// Creates at one of these nodes. If it has no room, the next able node is asked, and so on,
    /// each once.
    async fn create(
        &self,
        sender: Sender<'_>,
        name: &Id,
        mut nodes: Vec<NodeName>,
        call: &CallRequest,
    ) -> Result<Response<Body>, Error> {
        let mut tried = Vec::new();
        loop {
            let target = Target::OneOf(nodes.clone());
            let answered = self.creates(sender).create(name, target, call).await;
            match &answered {
                // All of them are full.
                Err(Error::OverQuota { .. }) => tried.append(&mut nodes),
                Ok(_) => tried.extend(call.running.progress().node),
                Err(_) => return answered,
            }
            match self.next_nodes(name, call, &answered, &tried).await {
                Some(next) => nodes = next,
                None => return answered,
            }
        }
    }

    /// The nodes to which a create goes on, if those that were tried have no room for it and its
    /// name is free again. `None` also if the scheduler chose the node, or that is not known: it
    /// learns of the refusal, and chooses anew.
    async fn next_nodes(
        &self,
        name: &Id,
        call: &CallRequest,
        answered: &Result<Response<Body>, Error>,
        tried: &[NodeName],
    ) -> Option<Vec<NodeName>> {
        let is_placed = matches!(call.key, Key::Create { source: None, .. });
        let is_fixed = self.only.is_some() || self.scope() == Scope::Shared;
        if !is_placed || is_fixed || tried.is_empty() {
            return None;
        }
        match outcome(answered).code {
            Code::ResourceExhausted if !self.has_intent(name) => {}
            Code::Ok => {
                self.exhausted.forget(name);
                return None;
            }
            _ => return None,
        }
        let claim = call.extracted.claim.as_deref()?;
        let links = self.queries.links();
        let (namespace, claim) = (&claim.namespace, &claim.name);
        if links.has_selected_node(namespace, claim, call.deadline).await != Some(false) {
            return None;
        }
        self.exhausted.note(name, tried);
        let mut passed_over = self.exhausted.of(name);
        passed_over.extend_from_slice(tried);
        if let Ok(Plan::Create(_, mut next)) = self.decide(call, &BTreeMap::new(), &passed_over) {
            next.retain(|node| !passed_over.contains(node));
            if !next.is_empty() {
                let driver = self.driver();
                info!(%driver, name = name.text(), ?tried, "no room there; the next node is asked");
                return Some(next);
            }
        }
        // Every node refused it: the next attempt begins anew.
        self.exhausted.forget(name);
        None
    }

    /// Holds a create back in the first seconds after a start, if the store does not know its name
    /// and csi-cloud chooses its node.
    async fn hold_new(&self, call: &CallRequest) {
        let Key::Create { name, .. } = &call.key else { return };
        let links = self.queries.links();
        let is_chosen = self.only.is_none() && self.scope() == Scope::Node;
        if is_chosen
            && after_start::is_early(links)
            && !self.has_intent(&Id::Name(call.method, name.clone()))
        {
            after_start::half_linked(links, call.deadline).await;
        }
    }

    fn has_intent(&self, name: &Id) -> bool {
        self.store.read(|state| {
            state.driver(self.driver()).is_some_and(|driver| driver.intent(name).is_some())
        })
    }

    /// Lists a node anew, because its driver does not know a volume with its home there.
    fn look_again(
        &self,
        node: &NodeName,
        call: &CallRequest,
        answered: &Result<Response<Body>, Error>,
    ) {
        let Key::Home(id) = &call.key else { return };
        if self.scope() == Scope::Node && outcome(answered).code == Code::NotFound {
            self.lists.look_for(node, id);
        }
    }

    /// The plan, after Kubernetes and the nodes were asked for the ids that it needs. None for an
    /// empty list.
    async fn plan_with_homes(&self, call: &CallRequest) -> Result<Option<Plan>, Error> {
        self.hold_new(call).await;
        let mut said = BTreeMap::new();
        let mut is_discovered = false;
        let plan = loop {
            match self.plan(call, &said).await? {
                Plan::AskKubernetes(volume) if !said.contains_key(&volume) => {
                    let answer = self.ask_of_volume(&volume, call).await;
                    said.insert(volume, answer);
                }
                Plan::Discover(ids) if !is_discovered => {
                    is_discovered = true;
                    match self.discover(&ids, call).await? {
                        Discovered::All => {}
                        Discovered::EmptyList => return Ok(None),
                    }
                }
                plan => break plan,
            }
        };
        let is_sought = matches!(plan, Plan::Everywhere(_) | Plan::WithoutSecrets(_));
        let Key::Delete(sought) = &call.key else { return Ok(Some(plan)) };
        if !is_sought {
            return Ok(Some(plan));
        }
        let _permit = self.admit()?;
        let discovery = self.discovery(call);
        if matches!(plan, Plan::Everywhere(_)) {
            discovery.check_away(sought).await?;
        }
        match discovery.discover_deleted(sought).await {
            Ok(true) => self.plan(call, &said).await.map(Some),
            Ok(false) => Ok(Some(plan)),
            // Nobody claims it: the node with the node id can be told all the same.
            Err(Error::NotAsked { .. }) if matches!(plan, Plan::WithoutSecrets(_)) => {
                Ok(Some(plan))
            }
            Err(error) => Err(error),
        }
    }

    /// What Kubernetes says of a volume. For a delete it is read anew: another PersistentVolume may
    /// have got the id meanwhile.
    async fn ask_of_volume(&self, volume: &str, call: &CallRequest) -> VolumeAnswer {
        let age = match &call.key {
            Key::Delete(_) if call.method.detaches() => Age::Minute,
            Key::Delete(_) => Age::Now,
            _ => Age::MinuteIfKnown,
        };
        self.queries.links().ask_of_volume(self.driver(), volume, age, call.deadline).await
    }

    /// The plan for a call.
    ///
    /// # Errors
    /// No node is certain, or an election is not durable.
    async fn plan(
        &self,
        call: &CallRequest,
        said: &BTreeMap<String, VolumeAnswer>,
    ) -> Result<Plan, Error> {
        let scope = self.scope();
        let is_elected = scope == Scope::Shared && self.only.is_none();
        if is_elected && call.key.is_routed() {
            self.elect().await?;
        }
        let exhausted = match &call.key {
            Key::Create { name, .. } => self.exhausted.of(&Id::Name(call.method, name.clone())),
            _ => Vec::new(),
        };
        let decided = match self.decide(call, said, &exhausted) {
            // No other node is there: those may have room by now.
            Err(_) if !exhausted.is_empty() => self.decide(call, said, &[]),
            decided => decided,
        };
        // An earlier attempt with a shared driver may still be carried out.
        let may_reschedule = self.policy.reschedule && scope == Scope::Node;
        decided.map_err(|unclear| unclear.error(self.driver(), call.method, may_reschedule))
    }

    /// The plan for a call, by what is known now.
    fn decide(
        &self,
        call: &CallRequest,
        said: &BTreeMap<String, VolumeAnswer>,
        exhausted: &[NodeName],
    ) -> Result<Plan, Unclear> {
        self.store.read(|state| {
            let facts = RoutingFacts {
                driver: state.driver(self.driver()),
                nodes: &self.nodes_now(state),
                only: self.only.as_ref(),
                scope: self.scope(),
                policy: &self.policy,
                now: now(),
                kubernetes: said,
                request: &call.message,
                node_id: call.node_id.as_deref(),
                exhausted,
            };
            route(call.method, &call.key, &facts)
        })
    }

    /// Elects another node after the elected one had no link, or its driver was down, for the
    /// grace.
    ///
    /// One call decides at a time, and the others wait until that is durable. Otherwise they would
    /// go to the old node if it comes back meanwhile, or decide anew.
    async fn elect(&self) -> Result<(), Error> {
        self.in_doubt.forget(|node| self.store.read(|state| state.is_removed(node)));
        let _deciding = self.electing.lock().await;
        let Some((former, next)) = self.store.read(|state| self.candidate(state)) else {
            return Ok(());
        };
        let driver = self.driver().clone();
        info!(%driver, node = %next, "elected for a shared driver");
        let written = self.store.write(move |txn| {
            if txn.elected(&driver).map(|elected| &elected.node) == former.as_ref() {
                txn.elect(&driver, next, now());
            }
        });
        written.await.map_err(|source| Error::NotDurable { source: source.into() })
    }

    /// The elected node, if there is one, and the node to elect in its place.
    fn candidate(&self, state: &State) -> Option<(Option<NodeName>, NodeName)> {
        let driver = state.driver(self.driver())?;
        let standing = |node: &NodeName| self.availability(state, driver, node);
        let members = || driver.members().map(|(node, _)| node);
        let former = driver.elected();
        let next = elect(former, members, standing, self.policy.grace)?;
        Some((former.cloned(), next.clone()))
    }

    /// How a node is, for an election. One that does not count has been away for the longest time.
    fn availability(&self, state: &State, driver: &DriverState, node: &NodeName) -> Availability {
        let status = self.nodes_now(state).status(node);
        let down = match status.driver {
            DriverStatus::Down(lasts) => Some(lasts),
            DriverStatus::Up | DriverStatus::Unknown => None,
        };
        if !driver.is_member(node) || !self.policy.may_elect(node) {
            return Availability { away: Some(Duration::MAX), down };
        }
        Availability { away: status.away.max(status.apart.map(|(_, lasts)| lasts)), down }
    }

    fn nodes_now<'a>(&'a self, state: &'a State) -> NodesNow<'a> {
        NodesNow { state, links: self.queries.links(), driver: self.driver() }
    }

    fn discovery<'a>(&'a self, call: &'a CallRequest) -> Discovery<'a> {
        Discovery {
            queries: &self.queries,
            inquiries: &self.inquiries,
            store: &self.store,
            deadline: call.deadline,
            request: &call.message,
        }
    }

    /// Asks the nodes for ids without a home, and records the homes.
    async fn discover(&self, ids: &[Id], call: &CallRequest) -> Result<Discovered, Error> {
        let discovery = self.discovery(call);
        let _permit = self.admit()?;
        for id in ids {
            discovery.check_away(id).await?;
            match discovery.discover(id).await {
                Ok(()) => {}
                // CSI: the list of a snapshot that does not exist is empty.
                Err(Error::NoSuchThing { .. }) if call.method.lists().is_some() => {
                    return Ok(Discovered::EmptyList);
                }
                // A missing required field is reported first, whether or not the id exists.
                Err(error @ (Error::NoSuchThing { .. } | Error::NobodyCanSay { .. })) => {
                    return Err(match call.method.incomplete(&call.message) {
                        Some(field) => Error::Missing(call.method.name(), field),
                        None => error,
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Discovered::All)
    }

    fn no_such_thing(&self, id: &str) -> Error {
        Error::NoSuchThing { driver: self.driver().clone(), id: id.into() }
    }

    fn driver(&self) -> &DriverName {
        &self.queries.driver
    }

    /// The driver's scope: as configured, or else as the driver reports.
    pub(crate) fn scope(&self) -> Scope {
        if let Some(scope) = self.policy.scope {
            return scope;
        }
        let reported = self.store.read(|state| Some(state.driver(self.driver())?.info().scope()));
        reported.unwrap_or(Scope::Node)
    }

    fn identity(&self) -> FrontIdentity<'_> {
        FrontIdentity {
            driver: self.driver(),
            only: self.only.as_ref(),
            placement: &self.policy.placement,
            scope: self.scope(),
            store: &self.store,
        }
    }

    fn sender(&self) -> Sender<'_> {
        let in_doubt = Some(&self.in_doubt).filter(|_| self.scope() == Scope::Shared);
        Sender { in_doubt, ..self.queries.sender() }
    }

    fn creates<'a>(&'a self, sender: Sender<'a>) -> Creates<'a> {
        Creates { sender, store: &self.store, journal: &self.journal }
    }

    fn volume_calls<'a>(&'a self, sender: Sender<'a>) -> VolumeCalls<'a> {
        VolumeCalls {
            sender,
            queries: &self.queries,
            inquiries: &self.inquiries,
            store: &self.store,
        }
    }

    fn admit(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.permits.try_acquire().map_err(|_| Error::Full(MAX_FRONT_CALLS))
    }

    /// Refuses to delete a volume while a guest holds its lease.
    fn check_delete(&self, call: &CallRequest) -> Result<(), Error> {
        if call.method.direct() != Some(DirectCall::Delete) {
            return Ok(());
        }
        let Key::Delete(id) = &call.key else { return Ok(()) };
        attach::check_delete(&self.store, self.queries.links(), self.driver(), id)
    }

    /// Lists all nodes. The driver's only node answers directly, byte for byte.
    async fn list(&self, sender: Sender<'_>, call: &CallRequest) -> Result<Response<Body>, Error> {
        let Some(single) = self.lists.single_node(call) else {
            return self.lists.list(call).await;
        };
        let answer =
            call.at(&single.node, sender).unary(&mut call.outbound(&call.for_driver)).await?;
        if let Some(message) = answer.message() {
            self.lists.record(single, &message).await;
        }
        Ok(answer.response())
    }
}

/// Refuses a shared driver's call while an earlier one about the same runs or is in doubt
/// elsewhere. Until the result is dropped, calls about the same go to this node only.
fn settled<'a>(
    sender: Sender<'a>,
    call: &CallRequest,
    node: &NodeName,
) -> Result<Option<Settled<'a>>, Error> {
    let Some(in_doubt) = sender.in_doubt else { return Ok(None) };
    let begun = in_doubt.begin(call.method.about(&call.key), &sender.place(node));
    begun.map(Some).map_err(|elsewhere| {
        let why = match elsewhere {
            Elsewhere::Runs(at) => format!("another one about the same runs at {at}"),
            Elsewhere::InDoubt(at, time) => format!(
                "another one about the same was sent to {at} and may begin there for {} s more",
                time.as_secs() + 1
            ),
        };
        Error::NoRoute { driver: sender.driver.clone(), why }
    })
}

/// An answer of OK whose message has no fields.
fn empty() -> Response<Body> {
    Answer::of(frame::frame(&[])).response()
}

/// The nodes of a driver, as the store and the links have them at the moment.
struct NodesNow<'a> {
    state: &'a State,
    links: &'a Links,
    driver: &'a DriverName,
}

impl Nodes for NodesNow<'_> {
    fn status(&self, node: &NodeName) -> NodeStatus {
        NodeStatus::new(self.state, self.links, node, self.driver)
    }

    fn awaits(&self) -> bool {
        self.state.awaited(self.driver).next().is_some()
    }

    fn why_uncounted(&self) -> Option<&'static str> {
        self.state.why_uncounted(self.driver)
    }

    fn may_grow(&self) -> bool {
        self.state.adopts_from(self.driver, now()).is_some()
    }
}
