//! Values by which nodes can be grouped: of topology segments and of labels.

use std::collections::{BTreeMap, BTreeSet};

use proto::admin::view::GroupValues;
use proto::names::NodeName;

use crate::admin::admin_state::AdminState;

/// A key with more values is of no use as a group: a node's name, for example.
const VALUES: usize = 200;
/// The keys that are offered.
const KEYS: usize = 20;

/// The values of each node by key.
type Values = BTreeMap<String, BTreeMap<NodeName, String>>;

/// The keys, and the values of one of them.
pub(super) fn groups(state: &AdminState, key: Option<&str>) -> GroupValues {
    let mut values = values(state);
    let keys = values.keys().take(KEYS).cloned().collect();
    let of = key.and_then(|key| values.remove(key));
    GroupValues { keys, values: of.unwrap_or_default() }
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
