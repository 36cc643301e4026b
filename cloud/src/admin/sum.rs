//! What is summed up for operators: drivers, calls in flight, everything at a glance, and what Prometheus is told.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use proto::csi::{Capabilities, Local, Method};
use proto::names::{DriverName, NodeName};

use crate::admin::Insight;
use crate::admin::shown::{CallShown, DriverShown, TopDriver, TopShown};
use crate::csi::dispatch::MAX_CALLS;
use crate::state::capabilities;
use crate::state::known::OfDriver;
use crate::state::policy::{Placement, Scope};
use crate::telemetry::calls::{Running, Stage};
use crate::telemetry::metrics::{DriverNow, Now};

/// Calls that are shown at a glance.
const GLANCE: usize = 20;
impl Insight {
    /// All drivers that have a front or that a node ever had.
    pub(super) fn drivers(&self) -> Vec<DriverShown> {
        let (linked, in_flight) = (self.linked(), self.in_flight());
        let of_state: Vec<_> =
            self.store.read(|state| state.drivers().keys().map(|driver| (*driver).clone()).collect());
        let names: BTreeSet<_> = self.policies.keys().cloned().chain(of_state).collect();
        names.into_iter().map(|name| self.driver(name, &linked, &in_flight)).collect()
    }

    fn driver(
        &self,
        name: DriverName,
        linked: &HashSet<NodeName>,
        in_flight: &HashMap<DriverName, BTreeMap<Stage, usize>>,
    ) -> DriverShown {
        let policy = self.policies.get(&name);
        let word = policy.and_then(|policy| policy.scope);
        let calls = in_flight.get(&name).map_or(0, |stages| stages.values().sum());
        self.store.read(|state| {
            let of = state.driver(&name);
            let scope = word.or_else(|| of.map(|of| of.said().scope())).unwrap_or(Scope::Node);
            let placement = match policy.map(|policy| &policy.placement) {
                _ if scope == Scope::Shared => String::new(),
                Some(Placement::Pinned(node)) => format!("pinned {node}"),
                Some(Placement::Spread) | None => "spread".into(),
            };
            DriverShown {
                front: policy.is_some(),
                scope: if scope == Scope::Node { "node" } else { "shared" }.into(),
                scope_inferred: word.is_none(),
                placement,
                elected: of.filter(|_| scope == Scope::Shared).and_then(OfDriver::elected).cloned(),
                nodes: of.map_or(0, |of| of.nodes().len()),
                nodes_linked: of.map_or(0, |of| linked_of(of, linked)),
                homes: of.map_or(0, |of| of.homes().len()),
                intents_open: of.map_or(0, OfDriver::open_intents),
                calls,
                capabilities: of.and_then(|of| can(of, scope)),
                csidriver: self.kubernetes.as_ref().and_then(|published| published.csidriver(&name)),
                odd: of.iter().flat_map(|of| of.said().odd()).map(ToString::to_string).collect(),
                name,
            }
        })
    }

    /// The calls in flight, the oldest first.
    pub(super) fn calls(&self) -> Vec<CallShown> {
        self.calls.running().iter().map(|(number, call)| shown(*number, call)).collect()
    }

    /// Everything at a glance.
    pub(super) fn top(&self) -> TopShown {
        let now = self.now();
        let totals = self.calls.totals();
        let drivers = now.drivers.into_iter().map(|driver| {
            let totals = totals.get(&driver.driver).copied().unwrap_or_default();
            let in_flight: u64 = driver.in_flight.iter().map(|(_, calls)| calls).sum();
            TopDriver {
                name: driver.driver,
                nodes: driver.nodes.0,
                nodes_linked: driver.nodes.1,
                homes: driver.homes,
                intents_open: driver.intents,
                calls_in_flight: usize::try_from(in_flight).unwrap_or(usize::MAX),
                calls_answered: totals.calls,
                calls_failed: totals.failed,
                calls_ms: u64::try_from(totals.time.as_millis()).unwrap_or(u64::MAX),
            }
        });
        TopShown {
            nodes: now.nodes.0,
            nodes_linked: self.links.linked().len(),
            store_queue: now.queue,
            drivers: drivers.collect(),
            calls: self
                .calls
                .running()
                .iter()
                .take(GLANCE)
                .map(|(number, call)| shown(*number, call))
                .collect(),
        }
    }

    /// What Prometheus is told.
    pub(crate) fn metrics(&self) -> String {
        self.calls.metrics.text(&self.now())
    }

    fn now(&self) -> Now {
        let (linked, in_flight) = (self.linked(), self.in_flight());
        let by_transport = self.links.by_transport();
        let of = |driver: &DriverName| {
            self.store.read(|state| {
                let of = state.driver(driver);
                let stages = in_flight.get(driver);
                let calls = |stage| stages.and_then(|stages| stages.get(&stage)).copied().unwrap_or(0) as u64;
                DriverNow {
                    driver: driver.clone(),
                    nodes: of.map_or((0, 0), |of| (of.nodes().len(), linked_of(of, &linked))),
                    homes: of.map_or(0, |of| of.homes().len()),
                    intents: of.map_or(0, OfDriver::open_intents),
                    in_flight: Stage::ALL.map(|stage| (stage.name(), calls(stage))).into(),
                    limit: MAX_CALLS,
                }
            })
        };
        let removed = |state: &crate::state::known::State| {
            state.nodes().values().filter(|node| node.removed.is_some()).count()
        };
        Now {
            nodes: self.store.read(|state| (state.nodes().len(), removed(state))),
            links: ["wss", "quic"]
                .map(|transport| (transport, by_transport.get(transport).copied().unwrap_or(0)))
                .into(),
            link_ups: self.links.made(),
            queue: self.store.queued(),
            drivers: self.policies.keys().map(of).collect(),
        }
    }

    fn linked(&self) -> HashSet<NodeName> {
        self.links.linked().into_iter().collect()
    }

    fn in_flight(&self) -> HashMap<DriverName, BTreeMap<Stage, usize>> {
        let mut in_flight: HashMap<DriverName, BTreeMap<Stage, usize>> = HashMap::new();
        for (_, call) in self.calls.running() {
            let stages = in_flight.entry(call.driver.clone()).or_default();
            *stages.entry(call.progress().stage).or_default() += 1;
        }
        in_flight
    }
}

fn linked_of(of: &OfDriver, linked: &HashSet<NodeName>) -> usize {
    of.nodes().keys().filter(|node| linked.contains(*node)).count()
}

/// What the front says that the driver can, in words. RPCs that it does not implement are left out.
fn can(of: &OfDriver, scope: Scope) -> Option<BTreeMap<String, Vec<String>>> {
    let mut can = BTreeMap::new();
    let shows_ours = scope == Scope::Node && of.has_our_topology();
    for kind in Capabilities::ALL {
        let local = Local::Capabilities(kind);
        if let Some(answer) = of.said().answer(local, shows_ours).ok()? {
            can.insert(Method::answering(local).name().to_owned(), capabilities::words(kind, &answer));
        }
    }
    Some(can)
}

fn shown(number: u64, call: &Running) -> CallShown {
    let progress = call.progress();
    CallShown {
        number,
        rpc: call.rpc.into(),
        driver: call.driver.clone(),
        node: progress.node,
        subject: progress.subject,
        age_ms: u64::try_from(call.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        stage: progress.stage.name().into(),
    }
}
