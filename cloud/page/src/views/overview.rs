//! The first screen: how many nodes are how, what is wrong, calls and drivers, and the map.

use maud::{Markup, PreEscaped, html};
use proto::admin::view::{NodeState, ReplicaCell, Several, Snapshot};
use proto::host::plain;

use super::link;
use super::parts::Column::{Number, Text};
use super::parts::{badge, number, since, table};
use super::wrong;

/// A part of the first screen that changes while it is shown, by the id of its element; `None` if
/// this fleet has none.
pub(crate) fn region(id: &str, snapshot: &Snapshot) -> Option<Markup> {
    Some(match id {
        "counts" => counts(snapshot),
        "wrong" => wrong::first(snapshot),
        "flight" => flight(snapshot),
        "replicas" => replicas(snapshot.several.as_ref()?, snapshot.at),
        _ => return None,
    })
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
        // The csi-clouds that share the store.
        @if let Some(replicas) = region("replicas", snapshot) {
            section #replicas aria-labelledby="replicas-title" { (replicas) }
        }
        section #map aria-labelledby="map-title" { (PreEscaped(map)) }
    }
}

fn counts(snapshot: &Snapshot) -> Markup {
    let counts = snapshot.counts();
    html! {
        ul .counts {
            li { a href="/nodes" { b { (number(snapshot.nodes.len())) } " " span { "nodes" } } }
            @for state in NodeState::ALL {
                @let count = counts.get(&state).copied().unwrap_or_default();
                @if count > 0 || state == NodeState::Linked {
                    li .(state.name()) {
                        a href={"/nodes?state=" (state.name())} {
                            b { (number(count)) } " " (badge(state))
                        }
                    }
                }
            }
        }
    }
}

fn flight(snapshot: &Snapshot) -> Markup {
    let flight = &snapshot.in_flight;
    let columns = [Text("driver"), Number("volumes"), Number("calls"), Number("failed")];
    let rows = snapshot.drivers.iter().map(|driver| {
        let named = html! {
            (link::driver(&driver.name))
            @if driver.intents > 0 {
                p .note {
                    (number(driver.intents))
                    (if driver.intents == 1 { " create" } else { " creates" })
                    " with an outcome that is not known yet"
                }
            }
        };
        let [calls, failed] = [driver.answered, driver.failed].map(|of| html! { (number(of)) });
        [named, html! { (number(driver.homes)) }, calls, failed]
    });
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
        (table("Drivers", columns, rows))
    }
}

/// The csi-clouds that share a store: who leads, and how far each is.
fn replicas(several: &Several, now: u64) -> Markup {
    let leader = several.replicas.iter().find(|cell| cell.leads && !cell.this);
    let columns = [
        Text("name"),
        Text("part"),
        Text("since"),
        Number("epoch"),
        Number("commits behind"),
        Text("version"),
    ];
    let rows = several.replicas.iter().map(|cell| {
        [
            html! { (plain(&cell.name)) @if cell.this { " (this one)" } },
            html! { (part(cell)) },
            html! { @if let Some(begun) = cell.since { (since(begun, now)) } },
            html! { @if let Some(epoch) = cell.epoch { (epoch) } },
            html! { @if cell.version.is_some() { (number(cell.lag)) } },
            html! { @if let Some(version) = &cell.version { (plain(version)) } },
        ]
    });
    html! {
        h2 #replicas-title { "csi-clouds" }
        @if several.is_old {
            p .muted { "etcd does not answer; this is what it said last." }
        }
        @if let Some(leader) = leader {
            p {
                "This page is of a csi-cloud that follows. All nodes link to "
                (plain(&leader.name)) ", so they look away here: open the page there."
            }
        }
        (table("csi-clouds with this store", columns, rows))
    }
}

/// What it does, in a word or two.
fn part(cell: &ReplicaCell) -> &'static str {
    match (cell.version.is_some(), cell.leads, cell.drained) {
        (false, _, _) => "not running",
        (true, true, false) => "leads",
        (true, true, true) => "leads, drained",
        (true, false, true) => "drained",
        (true, false, false) => "follows",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto::admin::view::{DriverCell, InFlight};

    use super::*;
    use crate::views::tests::{fleet, replica};

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
        assert!(region("replicas", &fleet).is_some() && region("map", &fleet).is_none());
        for part in ["2 hang", "the oldest for", "5\u{202f}000", "2 creates with", "<p>map</p>"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
    }

    #[test]
    fn the_leader_and_those_that_are_behind_are_seen() {
        let since = Some(1_000);
        let a = ReplicaCell { leads: true, epoch: Some(7), this: true, since, ..replica("a") };
        let b = ReplicaCell { lag: 1_234, ..replica("b\u{1b}") };
        let gone = ReplicaCell { version: None, since: Some(60_000), ..replica("c") };
        let cells = vec![a, b, gone];
        let several = Several { replicas: cells, is_old: false };
        let shown = replicas(&several, 61_000).into_string();
        for part in [
            "a (this one)</th><td>leads</td><td><time",
            "<td class=\"number\">7</td>",
            "b\\u{1b}</th><td>follows</td><td></td>",
            "1\u{202f}234",
            "<td>not running</td>",
        ] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert!(!shown.contains("etcd does not answer") && !shown.contains("open the page there"));
        let old = Several { is_old: true, ..several };
        assert!(replicas(&old, 61_000).into_string().contains("etcd does not answer"));
    }

    #[test]
    fn a_page_of_a_follower_names_the_leader() {
        let leader = ReplicaCell { leads: true, ..replica("a") };
        let cells = [leader, ReplicaCell { this: true, ..replica("b") }];
        let shown = replicas(&Several { replicas: cells.into(), is_old: false }, 0).into_string();
        assert!(shown.contains("All nodes link to a, so they look away here"), "{shown}");
    }
}
