//! Decides to which node a call goes. Pure: facts in, a plan or a reason out.
//!
//! Routing never guesses: a call without a certain node gets a reason. While a node may hold the
//! volume, the code is UNAVAILABLE. A final code would make the sidecars forget the volume.

use proto::csi::{Id, Key, Method, Segments};
use proto::names::NodeName;

use crate::csi::ending::{Ending, EndsAt};
use crate::csi::facts::{Plan, RoutingFacts};
use crate::csi::source_text::{
    NODE_ONLY, UNNAMED, no_controller, no_link, no_such_topology, source_text, topology_text,
};
use crate::csi::unclear::Unclear;
use crate::csi::unconfirmed::HomeUse;
use crate::nodes::driver_health::DriverStatus;
use crate::nodes::node_status::NodeStatus;
use crate::state::driver_state::DriverState;
use crate::state::policy::{Placement, Scope};
use crate::state::record::Intent;

/// The largest number of nodes compared for one create, so that large zones stay cheap.
const MAX_CANDIDATES: usize = 64;

/// The plan for a call.
///
/// # Errors
/// No node is certain.
pub fn route(method: Method, key: &Key, facts: &RoutingFacts<'_>) -> Result<Plan, Unclear> {
    let plan = decide(method, key, facts)?;
    if plan.takes_all_nodes()
        && let Some(why) = facts.nodes.why_uncounted()
    {
        return Err(Unclear::Yet(why.into()));
    }
    Ok(if method.streaming() { plan.streamed() } else { plan })
}

fn decide(method: Method, key: &Key, facts: &RoutingFacts<'_>) -> Result<Plan, Unclear> {
    if let Some(node) = facts.only.filter(|_| key.is_routed()) {
        return facts.at_front(method, key, node);
    }
    match (key, facts.scope) {
        (Key::Local, _) => Ok(Plan::Local),
        (Key::Node(_), _) => Ok(Plan::NodeOnly),
        (Key::Create { name, .. } | Key::Snapshot { name, .. }, Scope::Shared)
            if !name.is_empty() =>
        {
            facts.create_shared(Id::Name(method, name.clone()))
        }
        // The driver itself refuses a create without a name.
        (
            Key::Create { .. }
            | Key::Snapshot { .. }
            | Key::Home(_)
            | Key::Delete(_)
            | Key::All
            | Key::Capacity(_),
            Scope::Shared,
        ) => facts.elected().map(Plan::Node),
        (Key::Create { name, source: Some(source), topology, required }, Scope::Node) => {
            let name = Id::Name(method, name.clone());
            let requested = Requested { topology, required: *required };
            facts.sent(&name).unwrap_or_else(|| {
                match facts.before_sent(method, source, HomeUse::Request)? {
                    Some(plan) => Ok(plan),
                    None => facts.beside_source(name, source, &requested),
                }
            })
        }
        (Key::Create { name, source: None, topology, .. }, Scope::Node) => {
            let name = Id::Name(method, name.clone());
            facts.sent(&name).unwrap_or_else(|| facts.place(name, topology))
        }
        (Key::Snapshot { name, volumes }, Scope::Node) => {
            let name = Id::Name(method, name.clone());
            facts.sent(&name).unwrap_or_else(|| facts.snapshot(method, name, volumes))
        }
        (Key::Home(id), Scope::Node) => match facts.before_sent(method, id, HomeUse::Request)? {
            Some(plan) => Ok(plan),
            None => {
                facts.home(id).unwrap_or_else(|| facts.only_or(Plan::Discover(vec![id.clone()])))
            }
        },
        (Key::Delete(id), Scope::Node) => facts.end(method, id),
        (Key::All, Scope::Node) => facts.any().map(|()| Plan::All),
        (Key::Capacity(topology), Scope::Node) => {
            facts.any().map(|()| Plan::Capacity(facts.located(topology.as_ref())))
        }
    }
}

/// The topology requested for a new volume.
struct Requested<'a> {
    topology: &'a [Segments],
    required: bool,
}

impl RoutingFacts<'_> {
    /// The plan on a node's own front: that node, unless the home is another one.
    fn at_front(&self, method: Method, key: &Key, node: &NodeName) -> Result<Plan, Unclear> {
        match key {
            // The driver itself refuses a create without a name.
            Key::Create { name, source: Some(source), topology, required } if !name.is_empty() => {
                let name = Id::Name(method, name.clone());
                let requested = Requested { topology, required: *required };
                self.sent(&name)
                    .unwrap_or_else(|| self.create_beside(name, node.clone(), source, &requested))
            }
            Key::Create { name, .. } | Key::Snapshot { name, .. } if !name.is_empty() => {
                let name = Id::Name(method, name.clone());
                self.sent(&name).unwrap_or_else(|| self.create_at(name, node.clone()))
            }
            Key::Home(id) | Key::Delete(id) => self.home(id).unwrap_or_else(|| self.at(node)),
            Key::Create { .. }
            | Key::Snapshot { .. }
            | Key::Local
            | Key::All
            | Key::Capacity(_)
            | Key::Node(_) => self.at(node),
        }
    }

    /// The node to which a create was sent before: it goes nowhere else until its outcome is known.
    fn sent(&self, name: &Id) -> Option<Result<Plan, Unclear>> {
        let intent = self.driver?.intent(name)?;
        let node = intent.node.clone();
        let status = self.nodes.status(&node);
        Some(match status.apart {
            Some((why, _)) if intent.made.is_none() => {
                Err(Unclear::Apart { node, why, was_sent: true })
            }
            _ if status.removed => Err(Unclear::Removed(node)),
            _ => Ok(Plan::CreateAgain(name.clone(), node)),
        })
    }

    /// The plan for a delete or detach.
    fn end(&self, method: Method, id: &Id) -> Result<Plan, Unclear> {
        self.any()?;
        let Some(driver) = self.driver else { return Ok(Plan::Everywhere(id.clone())) };
        if let Some(only) = self.only_node() {
            return self.ended_at(method, self.home_node(id).unwrap_or(&only));
        }
        let ending = Ending {
            method,
            id,
            node_id: self.node_id.filter(|_| method.detaches()),
            driver,
            policy: self.policy,
            kubernetes: self.kubernetes.get(id.text()),
            awaits: self.nodes.awaits(),
            now: self.now,
        };
        match ending.destination(|node| self.is_removed(node)) {
            EndsAt::Node(node) => self.ended_at(method, &node),
            EndsAt::Claimed(node) => Ok(match self.ended_at(method, &node)? {
                Plan::Node(node) => Plan::Claimed(node),
                plan => plan,
            }),
            EndsAt::Detached(node) => Ok(Plan::WithoutSecrets(node)),
            EndsAt::Before { node, is_confirmed } => Ok(match self.nodes.status(&node) {
                NodeStatus { linked: true, removed: false, .. } if is_confirmed => Plan::Node(node),
                NodeStatus { linked: true, removed: false, .. } => Plan::Claimed(node),
                // It has said before that it deleted the id; what a removed one had is gone.
                _ => Plan::Done,
            }),
            EndsAt::Everywhere => Ok(Plan::Everywhere(id.clone())),
            EndsAt::Unasked(volume) => Ok(Plan::AskKubernetes(volume)),
            EndsAt::Unclear(why) => Err(Unclear::Yet(why)),
        }
    }

    /// A delete or detach at this node. What was at a removed node is detached.
    fn ended_at(&self, method: Method, node: &NodeName) -> Result<Plan, Unclear> {
        match self.is_removed(node) && method.detaches() {
            true => Ok(Plan::Done),
            false => self.at(node),
        }
    }

    fn is_removed(&self, node: &NodeName) -> bool {
        self.nodes.status(node).removed
    }

    fn home(&self, id: &Id) -> Option<Result<Plan, Unclear>> {
        self.home_node(id).map(|node| self.at(node))
    }

    fn home_node(&self, id: &Id) -> Option<&NodeName> {
        self.driver?.home(id).map(|home| &home.node)
    }

    fn at(&self, node: &NodeName) -> Result<Plan, Unclear> {
        self.admitted(node).map(Plan::Node)
    }

    fn admitted(&self, node: &NodeName) -> Result<NodeName, Unclear> {
        match self.is_removed(node) {
            true => Err(Unclear::Removed(node.clone())),
            false => Ok(node.clone()),
        }
    }

    /// Places a new volume at the home of its source.
    fn beside_source(
        &self,
        name: Id,
        source: &Id,
        requested: &Requested<'_>,
    ) -> Result<Plan, Unclear> {
        match self.home_node(source).cloned().or_else(|| self.only_home()) {
            Some(node) => self.create_beside(name, node, source, requested),
            None => Ok(Plan::Discover(vec![source.clone()])),
        }
    }

    /// Creates a volume at its source's node, unless the policy requires another topology.
    fn create_beside(
        &self,
        name: Id,
        node: NodeName,
        source: &Id,
        requested: &Requested<'_>,
    ) -> Result<Plan, Unclear> {
        let is_refusing = !self.policy.beside_source && self.scope == Scope::Node;
        let at = self.driver.and_then(|driver| driver.at(&node)).filter(|_| is_refusing);
        if at.is_some_and(|at| !at.is_requested(requested.topology, requested.required)) {
            return Err(Unclear::NotBesideSource {
                node: self.admitted(&node)?,
                made_from: source_text(source),
                topology: topology_text(requested.topology),
            });
        }
        self.create_at(name, node)
    }

    /// Places a new volume without a source: by the topology, else by the policy.
    ///
    /// Takes the first topology with a node that can do it now, or that was just left. Without one,
    /// a node gets the create although its driver is not up: its edge knows best.
    fn place(&self, name: Id, topology: &[Segments]) -> Result<Plan, Unclear> {
        let requested = || topology.iter().filter(|segments| !segments.is_empty());
        if requested().next().is_none() {
            return self.place_by_policy(name);
        }
        self.any()?;
        let able = requested().find_map(|segments| self.able_at(segments));
        let linked = || requested().find_map(|segments| self.linked_at(segments));
        let missing = || requested().find_map(|segments| self.missing_at(segments)).map(Err);
        match able.or_else(linked).or_else(missing) {
            Some(nodes) => nodes.map(|nodes| Plan::Create(name, nodes)),
            None => Err(Unclear::Nowhere(no_such_topology(self.driver, topology))),
        }
    }

    /// Places a create by the policy: on the pinned node, else on the least loaded linked one.
    fn place_by_policy(&self, name: Id) -> Result<Plan, Unclear> {
        if let Placement::Pinned(node) = &self.policy.placement {
            return self.create_at(name, node.clone());
        }
        let driver = self.driver.filter(|driver| !driver.nodes().is_empty()).ok_or_else(never)?;
        let able = self.candidates(driver.by_load(), NodeStatus::is_able);
        if let Some(nodes) = able.or_else(|| self.candidates(driver.by_load(), NodeStatus::is_free))
        {
            return Ok(Plan::Create(name, nodes));
        }
        match self.only_node() {
            Some(node) => self.create_at(name, node),
            None => Err(self.linked_apart(driver.by_load()).unwrap_or_else(|| none_linked(driver))),
        }
    }

    /// The first [`MAX_CANDIDATES`] of these nodes that are not removed, may have room, and that
    /// `is_fit` accepts. There is at least one.
    fn candidates<'a>(
        &self,
        nodes: impl Iterator<Item = &'a NodeName>,
        is_fit: fn(&NodeStatus) -> bool,
    ) -> Option<Vec<NodeName>> {
        let fit = nodes.filter(|node| {
            let status = self.nodes.status(node);
            !status.removed && is_fit(&status) && !self.exhausted.contains(node)
        });
        let fit: Vec<_> = fit.take(MAX_CANDIDATES).cloned().collect();
        (!fit.is_empty()).then_some(fit)
    }

    /// The first of these nodes that has a link and is set apart, as a reason.
    fn linked_apart<'a>(&self, mut nodes: impl Iterator<Item = &'a NodeName>) -> Option<Unclear> {
        nodes.find_map(|node| match self.nodes.status(node) {
            NodeStatus { linked: true, apart: Some((why, _)), .. } => {
                Some(Unclear::Apart { node: node.clone(), why, was_sent: false })
            }
            _ => None,
        })
    }

    /// The nodes at a topology that can carry out a create now. Without one, a node that was just
    /// left may be back soon, and the answer is UNAVAILABLE until then.
    fn able_at(&self, segments: &Segments) -> Option<Result<Vec<NodeName>, Unclear>> {
        if let Some(able) = self.candidates(self.located_at(segments), NodeStatus::is_able) {
            return Some(Ok(able));
        }
        let just_left = self.located_at(segments).find(|node| {
            let status = self.nodes.status(node);
            let is_back_soon = status.away.is_some_and(|away| away < self.policy.grace);
            is_back_soon && !status.removed && status.apart.is_none()
        });
        just_left.map(|node| Err(Unclear::Away(node.clone())))
    }

    /// The nodes at a topology that have a link and are not set apart, though their driver is not
    /// up. With `reschedule`, a driver that is down for long gives the claim back instead.
    fn linked_at(&self, segments: &Segments) -> Option<Result<Vec<NodeName>, Unclear>> {
        let linked = self.candidates(self.located_at(segments), NodeStatus::is_free)?;
        match linked.first() {
            Some(node)
                if self.policy.reschedule && linked.iter().all(|node| self.is_down(node)) =>
            {
                Some(Err(Unclear::Down(node.clone())))
            }
            _ => Some(Ok(linked)),
        }
    }

    /// True if the driver at a node has been down for the grace period, by the node's word.
    fn is_down(&self, node: &NodeName) -> bool {
        match self.nodes.status(node).driver {
            DriverStatus::Down(lasts) => lasts >= self.policy.grace,
            DriverStatus::Up | DriverStatus::Unknown => false,
        }
    }

    /// The reason why no node at a topology may get a create. None if no node is there.
    fn missing_at(&self, segments: &Segments) -> Option<Unclear> {
        let is_admitted = |node: &&NodeName| !self.nodes.status(node).removed;
        let away = self.located_at(segments).find(is_admitted)?;
        let apart = self.linked_apart(self.located_at(segments).filter(is_admitted));
        Some(apart.unwrap_or_else(|| Unclear::Away(away.clone())))
    }

    /// The nodes at a topology.
    fn located_at<'a>(&'a self, segments: &'a Segments) -> impl Iterator<Item = &'a NodeName> {
        self.driver.into_iter().flat_map(|driver| driver.located(segments))
    }

    /// Places a snapshot at the home of its volumes, which must be one node.
    fn snapshot(&self, method: Method, name: Id, volumes: &[Id]) -> Result<Plan, Unclear> {
        let mut nodes = Vec::new();
        let mut unknown = Vec::new();
        for id in volumes {
            match self.home_node(id) {
                Some(node) => nodes.push(node.clone()),
                None => unknown.push(id.clone()),
            }
        }
        if !unknown.is_empty() || volumes.is_empty() {
            return match self.only_home() {
                Some(node) => self.create_at(name, node),
                None if volumes.is_empty() => self.place_by_policy(name),
                None => Ok(Plan::Discover(unknown)),
            };
        }
        for id in volumes {
            if let Some(plan) = self.before_sent(method, id, HomeUse::Copy)? {
                return Ok(plan);
            }
        }
        nodes.sort();
        nodes.dedup();
        match nodes.as_slice() {
            [node] => self.snapshot_at(name, node.clone()),
            _ => Err(Unclear::SeveralHomes(nodes)),
        }
    }

    /// Takes a snapshot at the home of its volumes. A node that is set apart still serves them.
    fn snapshot_at(&self, name: Id, node: NodeName) -> Result<Plan, Unclear> {
        match self.nodes.status(&node) {
            NodeStatus { removed: true, .. } => Err(Unclear::Removed(node)),
            NodeStatus { linked: true, .. } => Ok(Plan::Create(name, vec![node])),
            _ => Err(Unclear::Away(node)),
        }
    }

    /// Creates at this node. A node that has no link or is set apart gets no intent.
    fn create_at(&self, name: Id, node: NodeName) -> Result<Plan, Unclear> {
        match self.nodes.status(&node) {
            NodeStatus { removed: true, .. } => Err(Unclear::Removed(node)),
            NodeStatus { apart: Some((why, _)), .. } => {
                Err(Unclear::Apart { node, why, was_sent: false })
            }
            NodeStatus { linked: true, .. } => Ok(Plan::Create(name, vec![node])),
            _ => Err(Unclear::Away(node)),
        }
    }

    /// The plan with the driver's only node, or else this plan.
    fn only_or(&self, plan: Plan) -> Result<Plan, Unclear> {
        self.any()?;
        Ok(self.only_home().map_or(plan, Plan::Node))
    }

    fn any(&self) -> Result<(), Unclear> {
        self.driver.filter(|driver| !driver.nodes().is_empty()).map(|_| ()).ok_or_else(never)
    }

    fn located(&self, topology: Option<&Segments>) -> Vec<NodeName> {
        let Some(driver) = self.driver else { return Vec::new() };
        let mut counted: Vec<_> = match topology.filter(|segments| !segments.is_empty()) {
            Some(segments) => driver.located(segments).cloned().collect(),
            None => driver.nodes().keys().cloned().collect(),
        };
        counted.retain(|node| {
            let status = self.nodes.status(node);
            !status.removed && status.apart.is_none()
        });
        counted
    }

    fn elected(&self) -> Result<NodeName, Unclear> {
        let driver = self.driver.filter(|driver| !driver.nodes().is_empty()).ok_or_else(never)?;
        // The operator may have changed the controllers since the election.
        let elected = driver.elected().filter(|node| self.policy.may_elect(node));
        elected.cloned().ok_or_else(|| self.none_elected(driver))
    }

    fn none_elected(&self, driver: &DriverState) -> Unclear {
        if driver.is_node_only() {
            return Unclear::Yet(NODE_ONLY.into());
        }
        if self.policy.controllers.is_none() {
            return Unclear::Yet(UNNAMED.into());
        }
        if driver.nodes().keys().any(|node| self.policy.may_elect(node)) {
            return none_linked(driver);
        }
        Unclear::Yet(no_controller(driver))
    }

    /// Creates with a shared driver, unless another node may still begin the same create.
    fn create_shared(&self, name: Id) -> Result<Plan, Unclear> {
        let elected = self.elected()?;
        match self.driver.and_then(|driver| driver.intent(&name)) {
            Some(intent) if intent.made.is_some() => Ok(Plan::CreateAgain(name, elected)),
            Some(intent) if intent.node != elected && self.may_begin(intent) => {
                let node = &intent.node;
                let reason = format!("it was sent to {node} and may still be carried out there");
                Err(Unclear::Yet(reason))
            }
            Some(_) | None => self.create_at(name, elected),
        }
    }

    fn may_begin(&self, intent: &Intent) -> bool {
        intent.until > self.now && !self.nodes.status(&intent.node).removed
    }
}

fn never() -> Unclear {
    Unclear::Yet("no node with this driver has ever linked; is csi-edge running there?".into())
}

fn none_linked(driver: &DriverState) -> Unclear {
    Unclear::Yet(no_link(driver))
}

#[cfg(test)]
mod tests;
