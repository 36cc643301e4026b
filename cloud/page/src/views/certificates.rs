//! Certificates, those that end first at the top.

use maud::{Markup, html};
use proto::admin::cells::ending;
use proto::admin::view::{NodeCell, Snapshot};

use super::link;
use super::nodes::badge;
use super::time::{date, number};

/// Certificates that are shown.
const MOST: usize = 200;

/// The certificates of csi-cloud, its CA, and the nodes that have a link.
pub(crate) fn certificates(snapshot: &Snapshot) -> Markup {
    let known = snapshot.nodes.iter().filter_map(|node| Some((node.ends?, node)));
    let mut nodes: Vec<(u64, &NodeCell)> = known.collect();
    nodes.sort_by_key(|(end, _)| *end);
    html! {
        h1 { "Certificates" }
        @if !snapshot.own_ends.is_empty() {
            dl {
                @for (of, end) in &snapshot.own_ends {
                    dt { (of) } dd { (ending(*end, snapshot.at)) ", " (date(*end)) }
                }
            }
        }
        p .muted {
            "The nodes whose certificates end first, of " (number(nodes.len()))
            " that have a link. "
            "csi-edge renews its certificate after half of its life."
        }
        @if !nodes.is_empty() { (table(&nodes, snapshot.at)) }
    }
}

fn table(nodes: &[(u64, &NodeCell)], now: u64) -> Markup {
    html! {
        div .scroll tabindex="0" role="region" aria-label="Certificates of nodes" {
            table {
                thead {
                    tr {
                        th scope="col" { "node" }
                        th scope="col" { "certificate" }
                        th scope="col" { "at" }
                        th scope="col" { "state" }
                    }
                }
                tbody {
                    @for (end, node) in nodes.iter().take(MOST) {
                        tr {
                            th scope="row" { a href=(link::node(&node.name)) { (node.name) } }
                            td { (ending(*end, now)) }
                            td { (date(*end)) }
                            td { (badge(node.state)) }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::fleet;
    use proto::admin::view::NodeState;

    #[test]
    fn the_certificate_that_ends_first_is_the_first() {
        let mut fleet =
            fleet(&[("a", NodeState::Linked), ("b", NodeState::Ending), ("c", NodeState::Away)]);
        fleet.nodes[1].ends = Some(90_000);
        fleet.nodes[2].ends = None;
        fleet.own_ends = vec![("the CA's certificate".into(), 60_000)];
        let shown = certificates(&fleet).into_string();
        assert!(shown.find("/node/b") < shown.find("/node/a"), "{shown}");
        assert!(!shown.contains("/node/c") && shown.contains("of 2 that have a link"));
        assert!(shown.contains("ended 1s ago") && shown.contains("ends in 29s"), "{shown}");
    }
}
