//! The first screen: how many nodes are how, what is wrong, calls and drivers, and the map.

use maud::{Markup, PreEscaped, html};
use proto::admin::view::{DriverCell, NodeState, Snapshot};

use super::link;
use super::replicas;
use super::time::{number, since};
use super::words::many;
use super::wrong;

/// The parts of the first screen that change while it is shown, by the ids of their elements.
pub(crate) fn regions(snapshot: &Snapshot) -> Vec<(&'static str, Markup)> {
    let all = [
        ("counts", Some(counts(snapshot))),
        ("wrong", Some(wrong::first(snapshot))),
        ("flight", Some(flight(snapshot))),
        ("replicas", several(snapshot)),
    ];
    all.into_iter().filter_map(|(id, markup)| Some((id, markup?))).collect()
}

/// The first screen. The map is rendered already.
pub(crate) fn overview(snapshot: &Snapshot, map: &str) -> Markup {
    html! {
        h1 .hidden { "The fleet" }
        section #counts aria-label="Nodes by state" { (counts(snapshot)) }
        div .columns {
            section #wrong aria-labelledby="wrong-title" { (wrong::first(snapshot)) }
            section #flight aria-labelledby="flight-title" { (flight(snapshot)) }
        }
        @if let Some(several) = several(snapshot) {
            section #replicas aria-labelledby="replicas-title" { (several) }
        }
        section #map aria-labelledby="map-title" { (PreEscaped(map)) }
    }
}

/// The csi-clouds that share the store; none if this one has it alone.
fn several(snapshot: &Snapshot) -> Option<Markup> {
    snapshot.several.as_ref().map(|several| replicas::replicas(several, snapshot.at))
}

fn counts(snapshot: &Snapshot) -> Markup {
    let counts = snapshot.counts();
    let count = |state: NodeState| counts.get(&state).copied().unwrap_or_default();
    let shown = |state: &NodeState| count(*state) > 0 || *state == NodeState::Linked;
    html! {
        ul .counts {
            li { a href="/nodes" { b { (number(snapshot.nodes.len())) } " " span { "nodes" } } }
            @for state in NodeState::ALL.into_iter().filter(shown) {
                li .(state.name()) {
                    a href={"/nodes?state=" (state.name())} {
                        b { (number(count(state))) } " "
                        span {
                            svg viewBox="0 0 11 11" width="11" height="11" aria-hidden="true" {
                                path .(state.name()) d="M1 1h9v9h-9z" {}
                            }
                            (state.label())
                        }
                    }
                }
            }
        }
    }
}

fn flight(snapshot: &Snapshot) -> Markup {
    let flight = &snapshot.in_flight;
    html! {
        h2 #flight-title { "Calls and drivers" }
        p .flight {
            a href="/calls" { b { (number(flight.calls)) } " in flight" }
            @if flight.waiting > 0 { ", " (number(flight.waiting)) " wait for a link" }
            @if flight.long > 0 { ", " strong { (number(flight.long)) " hang" } }
            @if let Some(oldest) = flight.oldest {
                ", the oldest for " (since(oldest, snapshot.at))
            }
        }
        div .scroll tabindex="0" role="region" aria-label="Drivers" {
            table {
                thead {
                    tr {
                        th scope="col" { "driver" }
                        th scope="col" .number { "volumes" }
                        th scope="col" .number { "calls" }
                        th scope="col" .number { "failed" }
                    }
                }
                tbody {
                    @for driver in &snapshot.drivers { (row(driver)) }
                }
            }
        }
    }
}

fn row(driver: &DriverCell) -> Markup {
    let calls = |calls: u64| number(usize::try_from(calls).unwrap_or(usize::MAX));
    html! {
        tr {
            th scope="row" { a href=(link::driver(&driver.name)) { (driver.name) } }
            td .number { (number(driver.homes)) }
            td .number { (calls(driver.answered)) }
            td .number { (calls(driver.failed)) }
        }
        @if driver.intents > 0 {
            tr .note {
                td colspan="4" {
                    (many(driver.intents, "create", "creates"))
                    " with an outcome that is not known yet"
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto::admin::view::{InFlight, Several};

    use super::*;
    use crate::views::tests::fleet;

    #[test]
    fn counts_are_links_to_the_nodes_that_are_counted() {
        let fleet =
            fleet(&[("a", NodeState::Away), ("b", NodeState::Away), ("c", NodeState::Apart)]);
        let shown = counts(&fleet).into_string();
        assert!(shown.contains("href=\"/nodes?state=away\"><b>2</b>"), "{shown}");
        assert!(shown.contains("<b>3</b> <span>nodes"), "{shown}");
        assert!(shown.contains("state=linked\"><b>0</b>"), "that nobody is linked is said");
        assert!(!shown.contains("state=revoked"), "{shown}");
    }

    #[test]
    fn the_first_screen_has_its_regions_once() {
        let mut fleet = fleet(&[("a", NodeState::Linked)]);
        let name = Arc::new("d.example".parse().unwrap());
        fleet.drivers.push(DriverCell { name, homes: 5_000, intents: 2, answered: 7, failed: 1 });
        fleet.in_flight = InFlight { calls: 3, waiting: 1, long: 2, oldest: Some(1_000) };
        let shown = overview(&fleet, "<p>map</p>").into_string();
        for id in ["counts", "wrong", "flight", "map"] {
            assert_eq!(shown.matches(&format!("id=\"{id}\"")).count(), 1, "{id}: {shown}");
        }
        assert!(!shown.contains("replicas"), "with one csi-cloud there is nothing of it: {shown}");
        fleet.several = Some(Several::default());
        assert_eq!(overview(&fleet, "").into_string().matches("id=\"replicas\"").count(), 1);
        assert_eq!(regions(&fleet).len(), 4);
        for part in ["2 hang", "the oldest for", "5\u{202f}000", "2 creates with", "<p>map</p>"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
    }
}
