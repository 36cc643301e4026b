//! The map of all nodes: a square for each, a hundred in a block, so that it fits any screen.
//!
//! The squares of a block are in the order of its `data-nodes`, by which the script finds them.

use std::collections::BTreeMap;
use std::fmt;

use maud::{Markup, html};
use percent_encoding::percent_decode_str;
use proto::admin::view::{GroupValues, NodeCell, NodeState, Snapshot};
use proto::host::plain;
use serde::Deserialize;

use super::link;
use super::parts::{badge, number};

/// Squares in a row of a block.
const ROW: usize = 10;
/// Squares of a block.
const BLOCK: usize = 100;
/// From one square to the next.
const PITCH: usize = 11;
/// Pairs of fleet size and distance between squares in pixels: small fleets get large squares. A
/// fleet has the first pair whose size it does not exceed.
const SHOWN: [(usize, usize); 3] = [(300, 22), (2_000, 11), (usize::MAX, 6)];
/// The groups that are shown.
const GROUPS: usize = 300;

/// What the nodes are grouped by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(crate) enum By {
    /// All together.
    #[default]
    Nothing,
    /// The drivers that they have.
    Driver,
    /// The value of a segment or label.
    Key(String),
}

/// Reads `driver` or `key:KEY`, whose key is written as a part of an address.
impl From<String> for By {
    fn from(text: String) -> Self {
        match text.strip_prefix("key:") {
            Some(key) => Self::Key(percent_decode_str(key).decode_utf8_lossy().into()),
            None if text == "driver" => Self::Driver,
            None => Self::Nothing,
        }
    }
}

/// As it is read.
impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Driver => f.write_str("driver"),
            Self::Key(key) => write!(f, "key:{}", link::encode(key)),
        }
    }
}

impl By {
    /// The key of a segment or label.
    pub(crate) fn key(&self) -> Option<&str> {
        match self {
            Self::Key(key) => Some(key),
            Self::Nothing | Self::Driver => None,
        }
    }
}

/// The nodes by the name of their group.
fn groups<'a>(
    snapshot: &'a Snapshot,
    values: &GroupValues,
    by: &By,
) -> BTreeMap<String, Vec<&'a NodeCell>> {
    let mut groups: BTreeMap<String, Vec<&NodeCell>> = BTreeMap::new();
    for node in &snapshot.nodes {
        let names = match by {
            By::Nothing => vec![String::new()],
            By::Driver if node.drivers.is_empty() => vec!["no driver".into()],
            By::Driver => node.drivers.iter().map(ToString::to_string).collect(),
            By::Key(_) => {
                let value = values.values.get(&node.name);
                vec![value.map_or_else(|| "no value".into(), |value| plain(value))]
            }
        };
        for name in names {
            groups.entry(name).or_default().push(node);
        }
    }
    groups
}

/// The map, with the choice of groups.
pub(crate) fn map(snapshot: &Snapshot, values: &GroupValues, by: &By) -> Markup {
    let groups = groups(snapshot, values, by);
    let more = groups.len().saturating_sub(GROUPS);
    let pitch = SHOWN.into_iter().find(|(most, _)| snapshot.nodes.len() <= *most);
    let pitch = pitch.map_or(PITCH, |(_, pitch)| pitch);
    html! {
        div .bar {
            h2 #map-title { "All nodes" }
            (choice(values, by))
            p #pointed .muted aria-hidden="true" { "Point at a square for its node." }
        }
        div .map {
            @for (name, nodes) in groups.iter().take(GROUPS) {
                div .group {
                    @if !name.is_empty() {
                        h3 { (name) " " span .muted { (number(nodes.len())) } }
                    }
                    div .blocks {
                        @for nodes in nodes.chunks(BLOCK) { (block(nodes, pitch)) }
                    }
                }
            }
        }
        @if more > 0 {
            p .muted { "and " (number(more)) " more groups" }
        }
        ul .legend aria-label="Colours of the map" {
            @for state in NodeState::ALL { li { (badge(state)) } }
        }
    }
}

fn choice(values: &GroupValues, by: &By) -> Markup {
    html! {
        form .choice action="/" {
            label for="by" { "Grouped by" }
            select #by name="by" {
                option value="" selected[*by == By::Nothing] { "nothing" }
                option value="driver" selected[*by == By::Driver] { "driver" }
                @for key in &values.keys {
                    option value=(By::Key(key.clone())) selected[by.key() == Some(key)] {
                        (plain(key))
                    }
                }
            }
            button type="submit" { "Show" }
        }
    }
}

fn block(nodes: &[&NodeCell], pitch: usize) -> Markup {
    let rows = nodes.len().div_ceil(ROW);
    let columns = nodes.len().min(ROW);
    let (width, height) = (columns * PITCH, rows * PITCH);
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    html! {
        svg role="img" viewBox={"0 0 " (width) " " (height)} width=(columns * pitch)
            height=(rows * pitch) aria-label=(summary(nodes)) data-nodes=(names.join(" ")) {
            @for (place, node) in nodes.iter().enumerate() {
                @let (x, y) = (place % ROW * PITCH + 1, place / ROW * PITCH + 1);
                path .(node.state.name()) d={"M" (x) " " (y) "h9v9h-9z"} {}
            }
        }
    }
}

/// A block in words.
fn summary(nodes: &[&NodeCell]) -> String {
    let mut counts: BTreeMap<NodeState, usize> = BTreeMap::new();
    for node in nodes {
        *counts.entry(node.state).or_default() += 1;
    }
    let which = match nodes {
        [] => String::new(),
        [only] => format!("node {}", only.name),
        [first, .., last] => format!("nodes {} to {}", first.name, last.name),
    };
    let counts = counts.into_iter().map(|(state, count)| format!("{count} {}", state.label()));
    format!("{which}: {}", counts.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::fleet;

    #[test]
    fn every_node_has_a_square_and_every_block_its_words() {
        let names: Vec<_> = (0..250).map(|n| format!("n{n:03}")).collect();
        let nodes: Vec<_> = names.iter().map(|name| (name.as_str(), NodeState::Linked)).collect();
        let mut fleet = fleet(&nodes);
        fleet.nodes[3].state = NodeState::Away;
        let values = GroupValues { keys: vec!["zone\u{1b}".into()], ..GroupValues::default() };
        let shown = map(&fleet, &values, &By::Nothing).into_string();
        assert_eq!(shown.matches("data-nodes").count(), 3);
        let squares = shown.matches("<path").count() - NodeState::ALL.len();
        assert_eq!(squares, 250);
        assert!(shown.contains("nodes n000 to n099: 1 away, 99 linked"), "{shown}");
        assert!(shown.contains("<path class=\"away\" d=\"M34 1h9v9h-9z\">"), "{shown}");
        assert!(shown.contains("viewBox=\"0 0 110 55\" width=\"220\""), "half a block");
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn each_node_is_in_its_group_and_none_is_left_out() {
        let mut fleet =
            fleet(&[("a", NodeState::Linked), ("b", NodeState::Away), ("c", NodeState::Away)]);
        fleet.nodes[2].drivers.clear();
        let zones = [("a", "x"), ("b", "\u{1b}y")];
        let zones = zones.map(|(node, zone)| (node.parse().unwrap(), zone.to_owned()));
        let values = GroupValues { keys: vec!["zone".into()], values: zones.into() };
        let named = |by: &str| {
            let groups = groups(&fleet, &values, &By::from(by.to_owned()));
            let names = |nodes: Vec<&NodeCell>| {
                nodes.iter().map(|node| node.name.as_str()).collect::<String>()
            };
            let named = groups.into_iter().map(|(name, nodes)| format!("{name}={}", names(nodes)));
            named.collect::<Vec<_>>()
        };
        assert_eq!(named(""), ["=abc"]);
        assert_eq!(named("driver"), ["d.example=ab", "no driver=c"]);
        assert_eq!(named("key:zone"), ["\\u{1b}y=b", "no value=c", "x=a"]);
        for by in ["", "driver", "key:zone", "key:a%1Bb%2Fc"] {
            assert_eq!(By::from(by.to_owned()).to_string(), by);
        }
    }
}
