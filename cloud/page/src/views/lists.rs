//! The lists: nodes, some at a time; volumes in trouble; certificates; what a search found.

use maud::{Markup, html};
use proto::admin::cells::ending;
use proto::admin::view::{Found, Hit, NodeCell, NodeState, PageTarget, Snapshot, TroubledVolume};
use proto::host::plain;
use serde::Deserialize;

use super::link;
use super::parts::Column::{Number, Text};
use super::parts::{badge, choice, date, facts, number, since, table};

/// Nodes on one page.
const PAGE: usize = 100;
/// Volumes that are shown.
const VOLUMES: usize = 500;
/// The states that can be chosen.
const STATES: [&str; 3] = ["absent", "claimed", "lost"];
/// Certificates that are shown.
const CERTIFICATES: usize = 200;

/// Which nodes are listed. An empty text takes all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeFilter {
    /// In this state only.
    state: Option<NodeState>,
    /// With this driver only.
    driver: String,
    /// With this text in the name only.
    name: String,
    /// After this node.
    after: String,
}

impl NodeFilter {
    fn takes(&self, node: &NodeCell) -> bool {
        let has = || node.drivers.iter().any(|of| of.as_str() == self.driver);
        self.state.is_none_or(|state| node.state == state)
            && (self.driver.is_empty() || has())
            && node.name.as_str().contains(&self.name)
    }

    /// The address of the page with those in this state after this node.
    fn href(&self, state: Option<NodeState>, after: &str) -> String {
        let state = state.map_or("", NodeState::name);
        let all =
            [("state", state), ("driver", &self.driver), ("name", &self.name), ("after", after)];
        let given = all.iter().filter(|(_, value)| !value.is_empty());
        let given = given.map(|(key, value)| format!("{key}={}", link::encode(value)));
        format!("/nodes?{}", given.collect::<Vec<_>>().join("&"))
    }
}

/// The nodes.
pub(crate) fn nodes(snapshot: &Snapshot, wanted: &NodeFilter) -> Markup {
    let found: Vec<_> = snapshot.nodes.iter().filter(|node| wanted.takes(node)).collect();
    let before = found.partition_point(|node| node.name.as_str() <= wanted.after.as_str());
    let rest = found.get(before..).unwrap_or_default();
    let (shown, more) = rest.split_at_checked(PAGE).unwrap_or((rest, &[]));
    html! {
        h1 { "Nodes" }
        (filters(wanted))
        p .muted {
            (number(found.len())) " of " (number(snapshot.nodes.len())) " nodes"
            @if !wanted.driver.is_empty() {
                " with driver " (plain(&wanted.driver)) " (" a href="/nodes" { "all" } ")"
            }
        }
        @if !shown.is_empty() { (listed(shown, snapshot.at)) }
        @if let Some(last) = shown.last().filter(|_| !more.is_empty()) {
            p .more { a rel="next" href=(wanted.href(wanted.state, last.name.as_str())) {
                "the next " (number(PAGE.min(more.len())))
            } }
        }
    }
}

fn filters(wanted: &NodeFilter) -> Markup {
    let states = std::iter::once(None).chain(NodeState::ALL.map(Some));
    let lists = states.map(|state| {
        let word = state.map_or("all", NodeState::label);
        (wanted.href(state, ""), word, wanted.state == state)
    });
    html! {
        div .bar {
            (choice("Nodes by state", lists))
            form .choice action="/nodes" {
                @if let Some(state) = wanted.state {
                    input type="hidden" name="state" value=(state.name());
                }
                label for="name" { "Name" }
                input #name type="search" name="name" value=(wanted.name) maxlength="253";
                button type="submit" { "Show" }
            }
        }
    }
}

fn listed(nodes: &[&NodeCell], now: u64) -> Markup {
    let columns = [
        Text("node"),
        Text("state"),
        Text("for"),
        Text("drivers"),
        Number("volumes"),
        Text("certificate"),
    ];
    let rows = nodes.iter().map(|node| {
        let drivers: Vec<_> = node.drivers.iter().map(|driver| driver.as_str()).collect();
        [
            link::node(&node.name),
            badge(node.state),
            html! { @if let Some(moment) = node.since { (since(moment, now)) } },
            html! { (drivers.join(", ")) },
            html! { (number(node.volumes)) },
            html! { @if let Some(end) = node.ends { (ending(end, now)) } },
        ]
    });
    table("Nodes", columns, rows)
}

/// The volumes in trouble, of one state; of all if it is empty.
pub(crate) fn volumes(found: &[TroubledVolume], state: &str) -> Markup {
    let is_wanted = |of: &&TroubledVolume| state.is_empty() || of.state == state;
    let wanted: Vec<_> = found.iter().filter(is_wanted).collect();
    let states = STATES.into_iter().map(|word| (format!("/volumes?state={word}"), word));
    let lists = std::iter::once(("/volumes".to_owned(), "all")).chain(states);
    let current = if state.is_empty() { "all" } else { state };
    let columns = [Text("volume or snapshot"), Text("state"), Text("node"), Text("driver")];
    let rows = wanted.iter().take(VOLUMES).map(|volume| {
        let TroubledVolume { driver, is_volume, id, node, state } = *volume;
        let named = match is_volume {
            true => link::volume(driver, id),
            false => html! { (link::short(&plain(id))) },
        };
        [named, html! { (state) }, link::node(node), html! { (driver) }]
    });
    html! {
        h1 { "Volumes in trouble" }
        (choice("Volumes by state", lists.map(|(href, word)| (href, word, word == current))))
        p .muted {
            "Absent: its node's driver no longer lists it. Claimed: several nodes say that they "
            "have it. Lost: its node was removed."
        }
        @if wanted.is_empty() {
            p .fine { "No volume is known to be in trouble. Search for any other by its id." }
        } @else {
            (table("Volumes", columns, rows))
        }
        @if wanted.len() > VOLUMES {
            p .muted { "The first " (number(VOLUMES)) " of " (number(wanted.len())) "." }
        }
    }
}

/// The certificates of csi-cloud, its CA, and the nodes that have a link.
pub(crate) fn certificates(snapshot: &Snapshot) -> Markup {
    let known = snapshot.nodes.iter().filter_map(|node| Some((node.ends?, node)));
    let mut nodes: Vec<(u64, &NodeCell)> = known.collect();
    nodes.sort_by_key(|(end, _)| *end);
    let own = snapshot
        .own_ends
        .iter()
        .map(|(of, end)| (&**of, Some(html! { (ending(*end, snapshot.at)) ", " (date(*end)) })));
    let columns = [Text("node"), Text("certificate"), Text("at"), Text("state")];
    let rows = nodes.iter().take(CERTIFICATES).map(|(end, node)| {
        [
            link::node(&node.name),
            html! { (ending(*end, snapshot.at)) },
            html! { (date(*end)) },
            badge(node.state),
        ]
    });
    html! {
        h1 { "Certificates" }
        (facts(own))
        p .muted {
            "The nodes whose certificates end first, of " (number(nodes.len()))
            " that have a link. "
            "csi-edge renews its certificate after half of its life."
        }
        @if !nodes.is_empty() { (table("Certificates of nodes", columns, rows)) }
    }
}

/// What was found for a text.
pub(crate) fn find(text: &str, found: &Found) -> Markup {
    html! {
        h1 { "Search" }
        @if text.is_empty() {
            p { "Write the name of a claim, a volume or a node into the field above." }
        } @else if found.hits.is_empty() {
            p { "Nothing is known by the name " b { (plain(text)) } "." }
        } @else {
            p .muted { "Found for " b { (plain(text)) } ":" }
            ul .hits {
                @for hit in &found.hits { (self::hit(hit)) }
            }
            @if found.is_cut { p .muted { "There is more; write more of the name." } }
        }
        ul .unknown {
            li { "A claim is found by its name. By NAMESPACE/NAME, Kubernetes is asked too." }
            li { "A volume is found by the begin of its id, or by its PersistentVolume." }
            li { "A node is found by any part of its name." }
        }
    }
}

fn hit(hit: &Hit) -> Markup {
    html! {
        li {
            span .kind { (kind(&hit.target)) } " "
            a href=(link::address(&hit.target)) { (hit.label) }
            @if let Some(state) = hit.state { " " (badge(state)) }
            @if !hit.detail.is_empty() { " " span .muted { (hit.detail) } }
        }
    }
}

fn kind(target: &PageTarget) -> &'static str {
    match target {
        PageTarget::Node(_) => "node",
        PageTarget::Claim { .. } => "claim",
        _ => "volume",
    }
}

/// The page of what was meant without doubt.
pub(crate) fn only(found: &Found, text: &str) -> Option<String> {
    let mut exact = found.hits.iter().filter(|hit| hit.label == text);
    match (found.hits.as_slice(), exact.next(), exact.next()) {
        ([only], ..) | (_, Some(only), None) => Some(link::address(&only.target)),
        _ => None,
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
            wanted.after = next.unwrap_or_default().to_owned();
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
        assert_eq!(rows(&NodeFilter { name: "shop".into(), ..NodeFilter::default() }), 2);
        assert_eq!(rows(&NodeFilter { driver: "d.example".into(), ..NodeFilter::default() }), 3);
        let other = NodeFilter { driver: "<e>".into(), ..NodeFilter::default() };
        assert_eq!(rows(&other), 0);
        assert!(nodes_of(&fleet, &other).contains("&lt;e&gt;"));
    }

    #[test]
    fn only_volumes_of_the_wanted_state_are_listed() {
        let of = |id: &str, state: &str| TroubledVolume {
            driver: "d.example".parse().unwrap(),
            is_volume: true,
            id: id.into(),
            node: "n1".parse().unwrap(),
            state: state.into(),
        };
        let found = [of("<v>", "lost"), of("w", "absent")];
        let rows = |state| volumes(&found, state).into_string().matches("scope=\"row\"").count();
        assert_eq!([rows(""), rows("lost"), rows("claimed")], [2, 1, 0]);
        let shown = volumes(&found, "lost").into_string();
        assert!(shown.contains("/volume/d.example/%3Cv%3E\">&lt;v&gt;<"), "{shown}");
    }

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

    #[test]
    fn what_was_searched_for_is_escaped_and_hits_are_links() {
        let nothing = find("<b>\u{1b}", &Found::default()).into_string();
        assert!(nothing.contains("&lt;b&gt;\\u{1b}"), "{nothing}");
        let hit = Hit {
            target: PageTarget::Node("n1".parse().unwrap()),
            label: "n1".into(),
            state: Some(NodeState::Away),
            detail: "d".into(),
        };
        let found = Found { hits: vec![hit], is_cut: true };
        let shown = find("n", &found).into_string();
        assert!(shown.contains("<a href=\"/node/n1\">n1</a>") && shown.contains("There is more"));
    }

    #[test]
    fn one_hit_or_one_exact_hit_is_what_was_meant() {
        let hit = |name: &str| Hit {
            target: PageTarget::Node(name.parse().unwrap()),
            label: name.into(),
            state: None,
            detail: String::new(),
        };
        let of = |names: &[&str]| Found {
            hits: names.iter().map(|name| hit(name)).collect(),
            is_cut: false,
        };
        assert_eq!(only(&of(&["n12"]), "n1").as_deref(), Some("/node/n12"));
        assert_eq!(only(&of(&["n12", "n1"]), "n1").as_deref(), Some("/node/n1"));
        assert_eq!(only(&of(&["n12", "n11"]), "n1"), None);
    }
}
