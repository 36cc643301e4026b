//! The whole fleet at one moment, and what changes from one moment to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::node_state::NodeState;
use crate::admin::cells::age;
use crate::names::{DriverName, NodeName};

/// The fleet at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The moment, in ms since 1970.
    pub at: u64,
    /// All nodes by name.
    pub nodes: Vec<NodeCell>,
    /// The drivers that have a front.
    pub drivers: Vec<DriverCell>,
    /// What is wrong, the worst first.
    pub problems: Vec<Problem>,
    /// The calls in flight.
    pub in_flight: InFlight,
    /// The ends of csi-cloud's own certificate and of its CA, in ms since 1970.
    pub own_ends: Vec<(String, u64)>,
    /// The SHA-256 of each public key of the CA of the nodes, in hexadecimal digits.
    pub node_ca: BTreeSet<String>,
    /// The csi-clouds that share the store; `None` if this one has it alone.
    pub several: Option<Several>,
    /// Volumes in trouble.
    pub troubled: Vec<TroubledVolume>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCell {
    /// Its name.
    pub name: NodeName,
    /// Its state.
    pub state: NodeState,
    /// The begin of that state, in ms since 1970, as far as is known.
    pub since: Option<u64>,
    /// The drivers that it has.
    pub drivers: Vec<Arc<DriverName>>,
    /// Volumes that live or are being made there.
    pub volumes: u64,
    /// The end of the certificate of its link, in ms since 1970.
    pub ends: Option<u64>,
}

/// A driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverCell {
    /// Its name.
    pub name: Arc<DriverName>,
    /// Volumes, snapshots and groups.
    pub homes: usize,
    /// Creates with an outcome that is not known.
    pub intents: usize,
    /// Calls answered since csi-cloud began.
    pub answered: u64,
    /// Those of them that failed.
    pub failed: u64,
}

/// The health of a driver at a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthDetails {
    /// `up`, `starting`, `gone` or `failing`.
    pub state: String,
    /// The time in this state, in s.
    pub for_s: u64,
    /// The reason why it is not up; empty if it is.
    pub why: String,
}

/// The calls in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    /// All of them.
    pub calls: usize,
    /// Those that wait for their node's next link.
    pub waiting: usize,
    /// Those that take longer than they should.
    pub long: usize,
    /// The begin of the oldest, in ms since 1970.
    pub oldest: Option<u64>,
}

/// The csi-clouds that share a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Several {
    /// All of them by name.
    pub replicas: Vec<ReplicaCell>,
    /// Whether etcd gave no answer since.
    pub is_old: bool,
}

/// One of several csi-clouds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaCell {
    /// Its name.
    pub name: String,
    /// True if it leads.
    pub leads: bool,
    /// The epoch of its calls, if it leads.
    pub epoch: Option<u64>,
    /// The number of commits that it lacks.
    pub lag: u64,
    /// Its version; `None` if it does not run.
    pub version: Option<String>,
    /// True if it shall not lead.
    pub drained: bool,
    /// True for the csi-cloud that says this.
    pub this: bool,
    /// The time since which it does what it does, in ms since 1970, as far as is known.
    pub since: Option<u64>,
}

/// A page about something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageTarget {
    /// The first screen.
    Overview,
    /// The certificates.
    Certificates,
    /// The calls.
    Calls,
    /// A node.
    Node(NodeName),
    /// A driver.
    Driver(DriverName),
    /// A volume, or the name under which one is to be made.
    Volume {
        /// Its driver.
        driver: DriverName,
        /// Its id or name.
        id: String,
    },
    /// A claim.
    Claim {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The nodes in a state.
    Nodes {
        /// The state.
        state: NodeState,
        /// With this driver only.
        driver: Option<DriverName>,
    },
    /// The volumes in trouble of one word.
    Volumes {
        /// `absent`, `claimed` or `lost`.
        state: String,
    },
}

/// The weight of a problem. The worse comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something does not work.
    Fault,
    /// Something will not work for long, or works in part.
    Warning,
}

/// What is wrong, as one row: what, since when, where, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Its weight.
    pub severity: Severity,
    /// What is wrong.
    pub text: String,
    /// What to do next; empty if there is nothing to do.
    pub next: String,
    /// The time since which the oldest of them is there.
    pub since: Option<u64>,
    /// The time since which the newest of them is there.
    pub latest: Option<u64>,
    /// The number of its places.
    pub count: usize,
    /// The first places: what is shown, and its page.
    pub places: Vec<(String, PageTarget)>,
    /// The list of all places, if there are more than are named.
    pub all: Option<PageTarget>,
}

/// A volume in trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TroubledVolume {
    /// Its driver.
    pub driver: DriverName,
    /// True for a volume; false for a snapshot or a group.
    pub is_volume: bool,
    /// Its id.
    pub id: String,
    /// Its home node.
    pub node: NodeName,
    /// `absent`, `claimed` or `lost`.
    pub state: String,
}

/// A line of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FleetMessage {
    /// The whole fleet: the first line, and again if changes were missed.
    Snapshot(Box<Snapshot>),
    /// What is different from the line before.
    Change(Box<FleetChange>),
}

/// What is different one look later. What is absent is as before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetChange {
    /// The moment of the look, in ms since 1970.
    pub at: u64,
    /// Nodes that are new, or in which anything is different.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeCell>,
    /// Nodes that are gone.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub gone: BTreeSet<NodeName>,
    /// All drivers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drivers: Option<Vec<DriverCell>>,
    /// All problems.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problems: Option<Vec<Problem>>,
    /// The calls in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<InFlight>,
    /// The ends of csi-cloud's own certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_ends: Option<Vec<(String, u64)>>,
    /// The public keys of the CA of the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_ca: Option<BTreeSet<String>>,
    /// The csi-clouds that share the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub several: Option<Several>,
    /// All volumes in trouble.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub troubled: Option<Vec<TroubledVolume>>,
    /// Ids, names and nodes about which calls began or ended.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub subjects: BTreeSet<String>,
}

impl Snapshot {
    /// The number of nodes in each state.
    pub fn counts(&self) -> BTreeMap<NodeState, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.nodes {
            *counts.entry(node.state).or_default() += 1;
        }
        counts
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&NodeCell> {
        let at = self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()?;
        self.nodes.get(at)
    }

    /// Becomes the fleet after a change.
    pub fn apply(&mut self, change: FleetChange) {
        self.at = change.at;
        if !change.gone.is_empty() {
            self.nodes.retain(|node| !change.gone.contains(&node.name));
        }
        for node in change.nodes {
            match self.nodes.binary_search_by(|known| known.name.cmp(&node.name)) {
                Ok(at) => {
                    self.nodes.get_mut(at).into_iter().for_each(|known| *known = node.clone())
                }
                Err(at) => self.nodes.insert(at, node),
            }
        }
        replace(&mut self.drivers, change.drivers);
        replace(&mut self.problems, change.problems);
        replace(&mut self.in_flight, change.in_flight);
        replace(&mut self.own_ends, change.own_ends);
        replace(&mut self.node_ca, change.node_ca);
        replace(&mut self.troubled, change.troubled);
        if change.several.is_some() {
            self.several = change.several;
        }
    }

    /// Whether the same is wrong as before, apart from ages in the words.
    pub fn has_same_problems(&self, before: &Self) -> bool {
        self.problems.len() == before.problems.len()
            && self.problems.iter().zip(&before.problems).all(|(now, then)| now.is_same(then))
    }

    /// Whether the same number of calls is in flight as before.
    pub fn has_same_calls(&self, before: &Self) -> bool {
        let (now, then) = (&self.in_flight, &before.in_flight);
        (now.calls, now.waiting, now.long) == (then.calls, then.waiting, then.long)
            && near(now.oldest, then.oldest)
    }
}

fn replace<T>(old: &mut T, new: Option<T>) {
    if let Some(new) = new {
        *old = new;
    }
}

impl FleetChange {
    /// What is different between two looks. `subjects` are those about which calls began or ended.
    /// With `words`, problems are sent though only ages in their words are different.
    pub fn between(
        before: &Snapshot,
        now: &Snapshot,
        subjects: BTreeSet<String>,
        words: bool,
    ) -> Self {
        let differs = |node: &&NodeCell| before.node(node.name.as_str()) != Some(*node);
        let is_gone = |node: &&NodeCell| now.node(node.name.as_str()).is_none();
        let has_new_problems = words || !now.has_same_problems(before);
        Self {
            at: now.at,
            nodes: now.nodes.iter().filter(differs).cloned().collect(),
            gone: before.nodes.iter().filter(is_gone).map(|node| node.name.clone()).collect(),
            drivers: changed(&before.drivers, &now.drivers),
            problems: has_new_problems.then(|| now.problems.clone()),
            in_flight: (!now.has_same_calls(before)).then(|| now.in_flight.clone()),
            own_ends: changed(&before.own_ends, &now.own_ends),
            node_ca: changed(&before.node_ca, &now.node_ca),
            several: changed(&before.several, &now.several).flatten(),
            troubled: changed(&before.troubled, &now.troubled),
            subjects,
        }
    }
}

fn changed<T: PartialEq + Clone>(before: &T, now: &T) -> Option<T> {
    (before != now).then(|| now.clone())
}

impl Problem {
    /// Whether it is the same row as before, apart from ages in its words.
    fn is_same(&self, before: &Self) -> bool {
        self.severity == before.severity
            && self.next == before.next
            && self.count == before.count
            && self.places == before.places
            && near(self.since, before.since)
            && near(self.latest, before.latest)
    }
}

/// Whether two moments are the same; each look computes them anew, and misses by some ms.
pub fn near(one: Option<u64>, other: Option<u64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.abs_diff(other) < 2000,
        (one, other) => one == other,
    }
}

impl HealthDetails {
    /// True if new volumes may go to it.
    pub fn is_up(&self) -> bool {
        self.state == "up"
    }

    /// For people.
    pub fn text(&self) -> String {
        let Self { state, for_s, why } = self;
        let lasts = age(Duration::from_secs(*for_s));
        format!("{state} for {lasts}{}{why}", if why.is_empty() { "" } else { ": " })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: NodeState) -> NodeCell {
        let drivers = vec![Arc::new("d.example".parse().unwrap())];
        let name = name.parse().unwrap();
        NodeCell { name, state, since: Some(1_000), drivers, volumes: 2, ends: None }
    }

    fn fleet(at: u64, nodes: &[(&str, NodeState)]) -> Snapshot {
        let nodes = nodes.iter().map(|(name, state)| node(name, *state)).collect();
        Snapshot { at, nodes, ..Snapshot::default() }
    }

    fn problem(since: u64, text: &str) -> Problem {
        Problem {
            severity: Severity::Fault,
            text: text.into(),
            next: String::new(),
            since: Some(since),
            latest: Some(since),
            count: 1,
            places: vec![("a".into(), PageTarget::Node("a".parse().unwrap()))],
            all: None,
        }
    }

    #[test]
    fn a_change_over_the_wire_makes_the_later_fleet_of_the_earlier_one() {
        let before = fleet(1, &[("a", NodeState::Linked), ("b", NodeState::Linked)]);
        let mut now = fleet(2, &[("a", NodeState::Away), ("c", NodeState::Linked)]);
        now.problems = vec![problem(5_000, "a is away")];
        now.in_flight.calls = 7;
        now.several = Some(Several::default());
        now.node_ca.insert("00".into());
        now.own_ends = vec![("the CA's certificate".into(), 9)];
        let change = FleetChange::between(&before, &now, ["v".to_owned()].into(), false);
        assert_eq!(change.gone, ["b".parse().unwrap()].into());
        let line = serde_json::to_string(&FleetMessage::Change(Box::new(change))).unwrap();
        let mut later = before.clone();
        match serde_json::from_str(&line).unwrap() {
            FleetMessage::Change(change) => later.apply(*change),
            FleetMessage::Snapshot(_) => panic!("it is a change"),
        }
        assert_eq!(later, now);
        assert_eq!(now.node("c").map(|node| node.state), Some(NodeState::Linked));
        assert_eq!((now.node("b"), now.counts().get(&NodeState::Away)), (None, Some(&1)));
    }

    #[test]
    fn a_second_in_which_nothing_changes_is_a_line_of_some_bytes() {
        let before = fleet(1, &[("a", NodeState::Linked)]);
        let now = Snapshot { at: 2, ..before.clone() };
        let change = FleetChange::between(&before, &now, BTreeSet::new(), false);
        assert_eq!(serde_json::to_string(&change).unwrap(), "{\"at\":2}");
    }

    #[test]
    fn a_problem_is_sent_again_for_its_words_only_if_they_are_wanted() {
        let with = |since, text: &str| {
            let problems = vec![problem(since, text)];
            Snapshot { problems, ..Snapshot::default() }
        };
        let before = with(10_000, "for 5s");
        let sent = |now: &Snapshot, words| {
            FleetChange::between(&before, now, BTreeSet::new(), words).problems.is_some()
        };
        let older = with(10_900, "for 6s");
        assert!(!sent(&older, false) && sent(&older, true));
        assert!(sent(&with(30_000, "for 5s"), false));
        assert!(near(None, None) && !near(None, Some(1)));
    }
}
