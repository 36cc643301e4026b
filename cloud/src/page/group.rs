//! Groups of nodes on the map: by driver, by a topology segment, or by a label.

use std::collections::{BTreeMap, BTreeSet};

use percent_encoding::percent_decode_str;
use proto::host::plain;
use proto::names::NodeName;

use super::snapshot::Snapshot;
use super::views::link;
use crate::admin::admin_state::AdminState;

/// A key with more values is no use as a group: a node's name, for example.
const VALUES: usize = 200;
/// The keys that are offered.
const KEYS: usize = 20;

/// What the nodes are grouped by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum By {
    /// All together.
    #[default]
    Nothing,
    /// The drivers that they have.
    Driver,
    /// The value of a segment or label.
    Key(String),
}

/// The nodes in their groups, as places in the snapshot.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Groups {
    /// The keys by which nodes can be grouped.
    pub(super) keys: Vec<String>,
    /// The groups by name.
    pub(super) groups: Vec<(String, Vec<usize>)>,
}

/// The values of each node by key.
type Values = BTreeMap<String, BTreeMap<NodeName, String>>;

impl By {
    /// Reads `driver` or `key:KEY`, whose key is written as a part of an address.
    pub(super) fn of(text: &str) -> Self {
        match (text, text.strip_prefix("key:")) {
            ("driver", _) => Self::Driver,
            (_, Some(key)) => Self::Key(percent_decode_str(key).decode_utf8_lossy().into()),
            _ => Self::Nothing,
        }
    }

    /// As it is read.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Driver => "driver".into(),
            Self::Key(key) => format!("key:{}", link::encode(key)),
        }
    }
}

/// The groups of all nodes.
pub(super) fn groups(state: &AdminState, snapshot: &Snapshot, by: &By) -> Groups {
    of(snapshot, &values(state), by)
}

fn values(state: &AdminState) -> Values {
    let mut values = state.store.read(|known| {
        let mut values = Values::new();
        for driver in state.policies.keys() {
            let nodes = known.driver(driver).into_iter().flat_map(|of| of.nodes());
            for (node, at) in nodes {
                for segment in &at.segments {
                    note(&mut values, &segment.0, node, &segment.1);
                }
            }
        }
        values
    });
    let labels = state.policies.values().find_map(|policy| policy.labels());
    for (node, of) in labels.and_then(|labels| labels.all()).unwrap_or_default() {
        for (key, value) in of {
            note(&mut values, &key, &node, &value);
        }
    }
    values.retain(|_, of| (2..=VALUES).contains(&of.values().collect::<BTreeSet<_>>().len()));
    values
}

fn note(values: &mut Values, key: &str, node: &NodeName, value: &str) {
    if !values.contains_key(key) {
        values.insert(key.to_owned(), BTreeMap::new());
    }
    if let Some(of) = values.get_mut(key) {
        of.insert(node.clone(), value.to_owned());
    }
}

fn of(snapshot: &Snapshot, values: &Values, by: &By) -> Groups {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, node) in snapshot.nodes.iter().enumerate() {
        let names: Vec<String> = match by {
            By::Nothing => vec![String::new()],
            By::Driver if node.drivers.is_empty() => vec!["no driver".into()],
            By::Driver => node.drivers.iter().map(ToString::to_string).collect(),
            By::Key(key) => {
                let value = values.get(key).and_then(|of| of.get(&node.name));
                vec![value.map_or_else(|| "no value".into(), |value| plain(value))]
            }
        };
        for name in names {
            groups.entry(name).or_default().push(place);
        }
    }
    let keys = values.keys().take(KEYS).cloned().collect();
    Groups { keys, groups: groups.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::node_state::NodeState;
    use crate::page::snapshot::tests::fleet;

    #[test]
    fn each_node_is_in_its_group_and_none_is_left_out() {
        let mut fleet =
            fleet(&[("a", NodeState::Linked), ("b", NodeState::Away), ("c", NodeState::Away)]);
        fleet.nodes[2].drivers.clear();
        let zones = [("a", "x"), ("b", "\u{1b}y")];
        let zones = zones.map(|(node, zone)| (node.parse().unwrap(), zone.to_owned())).into();
        let values = Values::from([("zone".to_owned(), zones)]);
        let named = |by: &str| {
            let groups = of(&fleet, &values, &By::of(by)).groups;
            groups.into_iter().map(|(name, nodes)| format!("{name}={nodes:?}")).collect::<Vec<_>>()
        };
        assert_eq!(named(""), ["=[0, 1, 2]"]);
        assert_eq!(named("driver"), ["d.example=[0, 1]", "no driver=[2]"]);
        assert_eq!(named("key:zone"), ["\\u{1b}y=[1]", "no value=[2]", "x=[0]"]);
        assert_eq!(of(&fleet, &values, &By::Nothing).keys, ["zone"]);
        for by in ["", "driver", "key:zone", "key:a%1Bb%2Fc"] {
            assert_eq!(By::of(by).text(), by);
        }
    }
}
