//! The map of all nodes: a square for each, a hundred in a block, so that it fits any screen.
//!
//! The squares of a block are in the order of its `data-nodes`, by which the script finds them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::{Markup, html};

use super::time::number;
use crate::page::group::{By, Groups};
use crate::page::node_state::NodeState;
use crate::page::snapshot::{NodeCell, Snapshot};

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

/// The map, with the choice of groups.
pub(in crate::page) fn map(snapshot: &Snapshot, groups: &Groups, by: &By) -> Markup {
    let more = groups.groups.len().saturating_sub(GROUPS);
    html! {
        div .bar {
            h2 #map-title { "All nodes" }
            (choice(groups, by))
            p #pointed .muted aria-hidden="true" { "Point at a square for its node." }
        }
        div .map {
            @for (name, nodes) in groups.groups.iter().take(GROUPS) {
                (group(snapshot, name, nodes, shown(snapshot.nodes.len())))
            }
        }
        @if more > 0 {
            p .muted { "and " (number(more)) " more groups" }
        }
        (legend())
    }
}

fn choice(groups: &Groups, by: &By) -> Markup {
    let text = by.text();
    html! {
        form .choice action="/" {
            label for="by" { "Grouped by" }
            select #by name="by" {
                option value="" selected[*by == By::Nothing] { "nothing" }
                option value="driver" selected[*by == By::Driver] { "driver" }
                @for key in &groups.keys {
                    @let value = By::Key(key.clone()).text();
                    option value=(value) selected[value == text] { (proto::host::plain(key)) }
                }
            }
            button type="submit" { "Show" }
        }
    }
}

/// From one square to the next on the screen.
fn shown(nodes: usize) -> usize {
    let pitch = SHOWN.into_iter().find(|(most, _)| nodes <= *most);
    pitch.map_or(PITCH, |(_, pitch)| pitch)
}

fn group(snapshot: &Snapshot, name: &str, places: &[usize], pitch: usize) -> Markup {
    let nodes: Vec<_> = places.iter().filter_map(|place| snapshot.nodes.get(*place)).collect();
    html! {
        div .group {
            @if !name.is_empty() {
                h3 { (name) " " span .muted { (number(nodes.len())) } }
            }
            div .blocks {
                @for block in nodes.chunks(BLOCK) { (self::block(block, pitch)) }
            }
        }
    }
}

fn block(nodes: &[&NodeCell], pitch: usize) -> Markup {
    let rows = nodes.len().div_ceil(ROW);
    let columns = nodes.len().min(ROW);
    let (width, height) = (columns * PITCH, rows * PITCH);
    html! {
        svg role="img" viewBox={"0 0 " (width) " " (height)} width=(columns * pitch)
            height=(rows * pitch) aria-label=(summary(nodes)) data-nodes=(names(nodes)) {
            @for (place, node) in nodes.iter().enumerate() {
                path .(node.state) d=(square(place)) {}
            }
        }
    }
}

fn square(place: usize) -> String {
    let (x, y) = (place % ROW * PITCH + 1, place / ROW * PITCH + 1);
    format!("M{x} {y}h9v9h-9z")
}

fn names(nodes: &[&NodeCell]) -> String {
    let mut names = String::with_capacity(nodes.len() * 16);
    for node in nodes {
        if !names.is_empty() {
            names.push(' ');
        }
        names.push_str(node.name.as_str());
    }
    names
}

/// A block in words.
fn summary(nodes: &[&NodeCell]) -> String {
    let mut counts: BTreeMap<NodeState, usize> = BTreeMap::new();
    for node in nodes {
        *counts.entry(node.state).or_default() += 1;
    }
    let mut summary = match nodes {
        [] => String::new(),
        [only] => format!("node {}:", only.name),
        [first, .., last] => format!("nodes {} to {}:", first.name, last.name),
    };
    for (state, count) in counts {
        // Writing to a String cannot fail.
        let _ = write!(summary, " {count} {},", state.label());
    }
    summary.trim_end_matches(',').to_owned()
}

fn legend() -> Markup {
    html! {
        ul .legend aria-label="Colours of the map" {
            @for state in NodeState::ALL {
                li {
                    svg viewBox="0 0 11 11" width="11" height="11" aria-hidden="true" {
                        path .(state) d="M1 1h9v9h-9z" {}
                    }
                    (state.label())
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::snapshot::tests::fleet;

    #[test]
    fn every_node_has_a_square_and_every_block_its_words() {
        let names: Vec<_> = (0..250).map(|n| format!("n{n:03}")).collect();
        let nodes: Vec<_> = names.iter().map(|name| (name.as_str(), NodeState::Linked)).collect();
        let mut fleet = fleet(&nodes);
        fleet.nodes[3].state = NodeState::Away;
        let groups = Groups {
            keys: vec!["zone\u{1b}".into()],
            groups: vec![(String::new(), (0..250).collect())],
        };
        let shown = map(&fleet, &groups, &By::Nothing).into_string();
        assert_eq!(shown.matches("data-nodes").count(), 3);
        let squares = shown.matches("<path").count() - NodeState::ALL.len();
        assert_eq!(squares, 250);
        assert!(shown.contains("nodes n000 to n099: 1 away, 99 linked"), "{shown}");
        assert!(shown.contains("<path class=\"away\" d=\"M34 1h9v9h-9z\">"), "{shown}");
        assert!(shown.contains("viewBox=\"0 0 110 55\" width=\"220\""), "half a block");
        assert!(!shown.contains('\u{1b}'));
    }
}
