//! The list of nodes, some at a time.

use maud::{Markup, html};
use proto::admin::cells::ending;
use proto::admin::view::{NodeCell, NodeState, Snapshot};

use super::link;
use super::time::{number, since};

/// Nodes on one page.
const PAGE: usize = 100;

/// Which nodes are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFilter {
    /// In this state only.
    pub(crate) state: Option<NodeState>,
    /// With this driver only.
    pub(crate) driver: Option<String>,
    /// With this text in the name only.
    pub(crate) text: String,
    /// After this node.
    pub(crate) after: Option<String>,
}

impl NodeFilter {
    fn takes(&self, node: &NodeCell) -> bool {
        let has = |driver: &String| node.drivers.iter().any(|of| of.as_str() == driver);
        self.state.is_none_or(|state| node.state == state)
            && self.driver.as_ref().is_none_or(has)
            && node.name.as_str().contains(&self.text)
    }

    /// The address of the page with those after this node.
    fn href(&self, state: Option<NodeState>, after: Option<&str>) -> String {
        let driver = self.driver.as_ref().map(|driver| format!("driver={}", link::encode(driver)));
        let state = state.map(|state| format!("state={}", state.name()));
        let text = Some(&self.text).filter(|text| !text.is_empty());
        let text = text.map(|text| format!("name={}", link::encode(text)));
        let after = after.map(|after| format!("after={}", link::encode(after)));
        let parts: Vec<_> = [state, driver, text, after].into_iter().flatten().collect();
        if parts.is_empty() { "/nodes".into() } else { format!("/nodes?{}", parts.join("&")) }
    }
}

/// The list.
pub(crate) fn nodes(snapshot: &Snapshot, wanted: &NodeFilter) -> Markup {
    let found: Vec<_> = snapshot.nodes.iter().filter(|node| wanted.takes(node)).collect();
    let is_after = |node: &&&NodeCell| {
        wanted.after.as_ref().is_none_or(|after| node.name.as_str() > after.as_str())
    };
    let rest: Vec<_> = found.iter().filter(is_after).copied().collect();
    let shown = rest.get(..PAGE.min(rest.len())).unwrap_or_default();
    let next = shown.last().filter(|_| rest.len() > PAGE);
    html! {
        h1 { "Nodes" }
        (filters(wanted))
        p .muted {
            (number(found.len())) " of " (number(snapshot.nodes.len())) " nodes"
            @if let Some(driver) = &wanted.driver {
                " with driver " (proto::host::plain(driver)) " ("
                a href="/nodes" { "all" } ")"
            }
        }
        @if !shown.is_empty() { (table(shown, snapshot.at)) }
        @if let Some(last) = next {
            p .more { a rel="next" href=(wanted.href(wanted.state, Some(last.name.as_str()))) {
                "the next " (number(PAGE.min(rest.len() - PAGE)))
            } }
        }
    }
}

fn filters(wanted: &NodeFilter) -> Markup {
    html! {
        div .bar {
            nav aria-label="Nodes by state" {
                ul .filters {
                    li {
                        a href=(wanted.href(None, None))
                            aria-current=[wanted.state.is_none().then_some("true")] { "all" }
                    }
                    @for state in NodeState::ALL {
                        @let is_current = wanted.state == Some(state);
                        li {
                            a href=(wanted.href(Some(state), None))
                                aria-current=[is_current.then_some("true")] { (state.label()) }
                        }
                    }
                }
            }
            form .choice action="/nodes" {
                @if let Some(state) = wanted.state {
                    input type="hidden" name="state" value=(state.name());
                }
                label for="name" { "Name" }
                input #name type="search" name="name" value=(wanted.text) maxlength="253";
                button type="submit" { "Show" }
            }
        }
    }
}

fn table(nodes: &[&NodeCell], now: u64) -> Markup {
    html! {
        div .scroll tabindex="0" role="region" aria-label="Nodes" {
            table {
                thead {
                    tr {
                        th scope="col" { "node" }
                        th scope="col" { "state" }
                        th scope="col" { "for" }
                        th scope="col" { "drivers" }
                        th scope="col" .number { "volumes" }
                        th scope="col" { "certificate" }
                    }
                }
                tbody { @for node in nodes { (row(node, now)) } }
            }
        }
    }
}

fn row(node: &NodeCell, now: u64) -> Markup {
    let drivers: Vec<_> = node.drivers.iter().map(ToString::to_string).collect();
    html! {
        tr {
            th scope="row" { a href=(link::node(&node.name)) { (node.name) } }
            td { (badge(node.state)) }
            td { @if let Some(moment) = node.since { (since(moment, now)) } }
            td { (drivers.join(", ")) }
            td .number { (number(usize::try_from(node.volumes).unwrap_or(usize::MAX))) }
            td { @if let Some(end) = node.ends { (ending(end, now)) } }
        }
    }
}

/// A state in its colour and in words.
pub(crate) fn badge(state: NodeState) -> Markup {
    html! {
        span .badge {
            svg viewBox="0 0 11 11" width="11" height="11" aria-hidden="true" {
                path .(state.name()) d="M1 1h9v9h-9z" {}
            }
            (state.label())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::fleet;

    #[test]
    fn a_list_of_any_length_comes_in_pages_that_neither_miss_nor_repeat() {
        let names: Vec<_> = (0..250).map(|n| format!("n{n:03}")).collect();
        let nodes: Vec<_> = names.iter().map(|name| (name.as_str(), NodeState::Away)).collect();
        let fleet = fleet(&nodes);
        let mut wanted = NodeFilter { state: Some(NodeState::Away), ..NodeFilter::default() };
        let mut seen = 0;
        for (rows, next) in [(100, Some("n099")), (100, Some("n199")), (50, None)] {
            let shown = nodes_of(&fleet, &wanted);
            assert_eq!(shown.matches("<th scope=\"row\">").count(), rows);
            seen += rows;
            let href = next.map(|after| format!("/nodes?state=away&amp;after={after}"));
            assert!(href.is_none_or(|href| shown.contains(&href)), "{shown}");
            wanted.after = next.map(str::to_owned);
        }
        assert_eq!(seen, 250);
    }

    fn nodes_of(fleet: &Snapshot, wanted: &NodeFilter) -> String {
        nodes(fleet, wanted).into_string()
    }

    #[test]
    fn only_the_wanted_nodes_are_listed() {
        let fleet = fleet(&[
            ("shop-1", NodeState::Linked),
            ("shop-2", NodeState::Away),
            ("x", NodeState::Away),
        ]);
        let rows =
            |wanted: &NodeFilter| nodes_of(&fleet, wanted).matches("<th scope=\"row\">").count();
        assert_eq!(rows(&NodeFilter::default()), 3);
        assert_eq!(rows(&NodeFilter { state: Some(NodeState::Away), ..NodeFilter::default() }), 2);
        assert_eq!(rows(&NodeFilter { text: "shop".into(), ..NodeFilter::default() }), 2);
        assert_eq!(
            rows(&NodeFilter { driver: Some("d.example".into()), ..NodeFilter::default() }),
            3
        );
        let other = NodeFilter { driver: Some("<e>".into()), ..NodeFilter::default() };
        assert_eq!(rows(&other), 0);
        assert!(nodes_of(&fleet, &other).contains("&lt;e&gt;"));
    }
}
