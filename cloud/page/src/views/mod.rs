//! What is shown: each view is a function from values to markup.
//!
//! maud escapes every text. Texts of peers are made plain before, so that no control character or
//! mark of direction reaches a browser.

pub(crate) mod calls;
pub(crate) mod frame;
pub(crate) mod link;
pub(crate) mod lists;
pub(crate) mod map;
pub(crate) mod node;
pub(crate) mod overview;
mod parts;
pub(crate) mod subject;
pub(crate) mod wrong;

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use proto::admin::view::{
        NodeCell, NodeState, PageTarget, Problem, ReplicaCell, Severity, Snapshot,
    };

    /// A node of one driver.
    pub(crate) fn node(name: &str, state: NodeState) -> NodeCell {
        NodeCell {
            name: name.parse().unwrap(),
            state,
            since: Some(1_000),
            drivers: vec![Arc::new("d.example".parse().unwrap())],
            volumes: 2,
            ends: Some(1_000_000_000),
        }
    }

    /// Some nodes.
    pub(crate) fn fleet(nodes: &[(&str, NodeState)]) -> Snapshot {
        let nodes = nodes.iter().map(|(name, state)| node(name, *state)).collect();
        Snapshot { at: 61_000, nodes, ..Snapshot::default() }
    }

    /// A row about so many nodes.
    pub(crate) fn problem(text: &str, count: usize) -> Problem {
        let place = |number| {
            (format!("n{number}"), PageTarget::Node(format!("n{number}").parse().unwrap()))
        };
        Problem {
            severity: Severity::Fault,
            text: text.into(),
            next: "look there".into(),
            since: Some(1_000),
            latest: Some(1_000),
            count,
            places: (0..count.min(3)).map(place).collect(),
            all: (count > 3).then_some(PageTarget::Nodes { state: NodeState::Away, driver: None }),
        }
    }

    /// A csi-cloud that follows another one.
    pub(crate) fn replica(name: &str) -> ReplicaCell {
        ReplicaCell {
            name: name.into(),
            leads: false,
            epoch: None,
            lag: 0,
            version: Some("1".into()),
            drained: false,
            this: false,
            since: None,
        }
    }
}
