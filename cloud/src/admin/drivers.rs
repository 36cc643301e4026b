//! `csi-cloud drivers`: scope, placement, capabilities and mismatches of each driver.

use proto::admin::command::{Command, Refusal, Row};
use proto::admin::view::HealthDetails;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use clap::Args;
use proto::csi::{Capabilities, Local, Method};
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};
use std::io;
use std::io::Write;

use crate::admin::admin_state::{AdminState, InFlight, count_linked, nodes_with};
use crate::state::capabilities;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::policy::{Placement, Policy, Scope};

/// Capabilities on a line.
const ON_A_LINE: usize = 4;
/// Nodes of a driver that are named for one reason; `csi-cloud nodes` and JSON have all.
const SHOWN: usize = 20;
/// The most drivers without a front that are shown.
const MAX_UNSERVED: usize = 256;

/// Show the drivers: scope, placement, capabilities, where nodes differ.
#[derive(Debug, Args, Serialize, Deserialize)]
pub struct ListDrivers {}

impl Command<AdminState> for ListDrivers {
    const NAME: &'static str = "drivers";
    const PATH: &'static str = "/drivers";
    const READS: bool = true;
    const NEEDS_LINKS: bool = true;
    type Answer = Vec<DriverView>;

    async fn carry_out(self, admin: &AdminState) -> Result<Vec<DriverView>, Refusal> {
        Ok(admin.drivers())
    }
}

/// A driver.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverView {
    /// Its name.
    pub name: DriverName,
    /// True if it has a front here.
    pub front: bool,
    /// `node` or `shared`.
    pub scope: String,
    /// True if the scope was inferred from the driver's answers, not set by the operator.
    pub scope_inferred: bool,
    /// `spread`, or `pinned NODE`; empty for a shared driver.
    pub placement: String,
    /// The node that carries out the calls of a shared driver.
    pub elected: Option<NodeName>,
    /// The number of nodes that have it.
    pub nodes: usize,
    /// The number of them that are linked.
    pub nodes_linked: usize,
    /// The linked nodes at which it is not up, and how it is there.
    #[serde(default)]
    pub not_up: BTreeMap<NodeName, HealthDetails>,
    /// The number of known volumes, snapshots and groups.
    pub homes: usize,
    /// The number of creates with an unknown outcome.
    pub intents_open: usize,
    /// The number of calls in flight.
    pub calls: usize,
    /// Its capabilities, by RPC; none before any node has reported them.
    pub capabilities: Option<BTreeMap<String, Vec<String>>>,
    /// Capabilities that some nodes have and others do not.
    #[serde(rename = "odd")]
    pub mismatches: Vec<String>,
    /// Its pinned profile; none before enough nodes agreed.
    #[serde(default)]
    pub profile: Option<ProfileView>,
    /// The nodes that are set apart for it, and why.
    #[serde(default)]
    pub set_apart: BTreeMap<NodeName, Vec<String>>,
    /// Its CSIDriver object: `ours`, `not yet`, or why it is left alone; none without Kubernetes.
    #[serde(default)]
    pub csidriver: Option<String>,
}

impl Row for DriverView {
    const HEADERS: &'static [&'static str] = &[
        "NAME",
        "FRONT",
        "SCOPE",
        "PLACEMENT",
        "NODES",
        "LINKED",
        "NOT UP",
        "HOMES",
        "OPEN",
        "CALLS",
        "CSIDRIVER",
        "NODES DIFFER",
        "SET APART",
    ];

    fn row(&self) -> Vec<String> {
        let inferred = if self.scope_inferred { " (inferred)" } else { "" };
        let elected = self.elected.as_ref().map(|node| format!("elected {node}"));
        vec![
            self.name.to_string(),
            if self.front { "yes" } else { "no" }.into(),
            format!("{}{inferred}", self.scope),
            elected.unwrap_or_else(|| self.placement.clone()),
            self.nodes.to_string(),
            self.nodes_linked.to_string(),
            self.not_up.len().to_string(),
            self.homes.to_string(),
            self.intents_open.to_string(),
            self.calls.to_string(),
            self.csidriver.clone().unwrap_or_default(),
            self.mismatches.join("; "),
            self.set_apart.len().to_string(),
        ]
    }

    fn below(all: &[Self], out: &mut dyn Write) -> io::Result<()> {
        for driver in all {
            write_not_up(out, driver)?;
            write_set_apart(out, driver)?;
            write_more(out, driver)?;
            write_capabilities(out, driver)?;
        }
        Ok(())
    }
}

fn write_not_up(out: &mut dyn Write, driver: &DriverView) -> io::Result<()> {
    let DriverView { name, not_up, .. } = driver;
    if not_up.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{name} is not up, by the word of its node, at:")?;
    for (node, health) in not_up.iter().take(SHOWN) {
        writeln!(out, "  {node}: {}", health.text())?;
    }
    and_more(out, not_up.len())
}

fn and_more(out: &mut dyn Write, all: usize) -> io::Result<()> {
    match all.saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}

fn write_set_apart(out: &mut dyn Write, driver: &DriverView) -> io::Result<()> {
    let DriverView { name, set_apart, .. } = driver;
    if set_apart.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{name} gets no new volumes at:")?;
    for (node, reasons) in set_apart.iter().take(SHOWN) {
        writeln!(out, "  {node}: {}", reasons.join("; "))?;
    }
    and_more(out, set_apart.len())
}

fn write_more(out: &mut dyn Write, driver: &DriverView) -> io::Result<()> {
    let name = &driver.name;
    let Some(profile) = driver.profile.as_ref().filter(|profile| !profile.more.is_empty()) else {
        return Ok(());
    };
    writeln!(
        out,
        "\n{name} can more at all nodes than its front says: {}; `csi-cloud driver profile {name} \
         --from NODE` takes that over",
        profile.more.join(", ")
    )
}

fn write_capabilities(out: &mut dyn Write, driver: &DriverView) -> io::Result<()> {
    writeln!(out, "\n{} says that it can:", driver.name)?;
    for (rpc, words) in driver.capabilities.iter().flatten() {
        if words.is_empty() {
            continue;
        }
        writeln!(out, "  {rpc}")?;
        for line in words.chunks(ON_A_LINE) {
            writeln!(out, "    {}", line.join(", "))?;
        }
    }
    Ok(())
}

/// The profile of a driver.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileView {
    /// Up to three of the nodes that agreed, or the one that an operator chose.
    pub from: Vec<NodeName>,
    /// Since when it holds, in ms since 1970.
    pub since_ms: u64,
    /// Capabilities that all nodes have by now, and that it lacks.
    pub more: Vec<String>,
}

impl AdminState {
    /// All drivers that have a front, that a node has, or that have homes or open creates.
    pub(super) fn drivers(&self) -> Vec<DriverView> {
        let linked = self.linked();
        let unserved = self.unserved();
        let in_flight = self.in_flight();
        let known: Vec<_> = self.store.read(|state| state.drivers().keys().cloned().collect());
        let served = self.policies.keys().cloned().chain(known);
        let names: BTreeSet<_> = served.chain(unserved.keys().cloned()).collect();
        let views = names.into_iter().map(|name| self.driver(name, &linked, &in_flight));
        let mut views: Vec<_> = views.collect();
        for view in &mut views {
            let naming = unserved.get(&view.name).copied().unwrap_or(0);
            view.nodes = view.nodes.max(naming);
            view.nodes_linked = view.nodes_linked.max(naming);
        }
        views.retain(|of| of.front || of.nodes > 0 || of.homes > 0 || of.intents_open > 0);
        views
    }

    /// The drivers without a front that linked nodes name, and by how many nodes. The first 256 by
    /// name, since a node can invent any number of them.
    fn unserved(&self) -> BTreeMap<DriverName, usize> {
        let mut naming = BTreeMap::new();
        for (_, drivers) in self.links.unserved() {
            for driver in drivers {
                *naming.entry(driver).or_default() += 1;
            }
        }
        naming.into_iter().take(MAX_UNSERVED).collect()
    }

    fn driver(
        &self,
        name: DriverName,
        linked: &HashSet<NodeName>,
        in_flight: &InFlight,
    ) -> DriverView {
        let mut view = self.store.read(|state| self.view(state, name, linked));
        view.calls = in_flight.get(&view.name).map_or(0, |stages| stages.values().sum());
        let published = self.kubernetes.as_ref();
        view.csidriver = published.and_then(|published| published.csidriver(&view.name));
        view
    }

    fn view(&self, state: &State, name: DriverName, linked: &HashSet<NodeName>) -> DriverView {
        let of = state.driver(&name);
        let policy = self.policies.get(&name);
        let configured = policy.and_then(|policy| policy.scope);
        let inferred = of.map(|of| of.info().scope());
        let scope = configured.or(inferred).unwrap_or(Scope::Node);
        let shared = of.filter(|_| scope == Scope::Shared);
        let mismatches = of.iter().flat_map(|of| of.info().mismatches());
        DriverView {
            front: policy.is_some(),
            scope: if scope == Scope::Node { "node" } else { "shared" }.into(),
            scope_inferred: configured.is_none(),
            placement: placement(policy, scope),
            elected: shared.and_then(DriverState::elected).cloned(),
            nodes: of.map_or(0, |of| nodes_with(of).count()),
            nodes_linked: of.map_or(0, |of| count_linked(of, linked)),
            not_up: of.map(|of| self.not_up(&name, of)).unwrap_or_default(),
            homes: of.map_or(0, |of| of.homes().len()),
            intents_open: of.map_or(0, DriverState::open_intents),
            calls: 0,
            capabilities: of.and_then(|of| reported(of, scope)),
            csidriver: None,
            profile: of.and_then(profile),
            set_apart: set_apart(state, &name),
            mismatches: mismatches.map(ToString::to_string).collect(),
            name,
        }
    }
}

impl AdminState {
    /// The linked nodes at which a driver is not up.
    fn not_up(&self, driver: &DriverName, of: &DriverState) -> BTreeMap<NodeName, HealthDetails> {
        let down = nodes_with(of).filter_map(|node| {
            let health = self.health(node, driver).filter(|health| !health.is_up())?;
            Some((node.clone(), health))
        });
        down.collect()
    }
}

fn placement(policy: Option<&Policy>, scope: Scope) -> String {
    match policy.map(|policy| &policy.placement) {
        _ if scope == Scope::Shared => String::new(),
        Some(Placement::Pinned(node)) => format!("pinned {node}"),
        Some(Placement::Spread) | None => "spread".into(),
    }
}

fn profile(of: &DriverState) -> Option<ProfileView> {
    let profile = of.profile()?;
    let more = of.info().more().to_vec();
    Some(ProfileView { from: profile.from.clone(), since_ms: profile.since, more })
}

/// The nodes that are set apart for a driver, each with all its reasons.
fn set_apart(state: &State, driver: &DriverName) -> BTreeMap<NodeName, Vec<String>> {
    let apart = state.apart();
    let nodes = apart.for_driver(driver).map(|(node, _)| node);
    let why = |node| apart.of(node, driver).map(|apart| apart.reason.to_string()).collect();
    nodes.map(|node| (node.clone(), why(node))).collect()
}

/// The capabilities that the front reports. RPCs that it does not implement are left out.
fn reported(of: &DriverState, scope: Scope) -> Option<BTreeMap<String, Vec<String>>> {
    let our_topology = scope == Scope::Node && of.has_our_topology();
    let mut reported = BTreeMap::new();
    for kind in Capabilities::ALL {
        let local = Local::Capabilities(kind);
        if let Some(answer) = of.info().answer(local, our_topology).ok()? {
            let method = Method::answering(local).name().to_owned();
            reported.insert(method, capabilities::capability_names(kind, &answer));
        }
    }
    Some(reported)
}
