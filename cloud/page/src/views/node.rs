//! One node: how it is, its drivers, its volumes, and the last calls there.

use std::time::Duration;

use maud::{Markup, html};
use proto::admin::cells::{age, ending};
use proto::admin::view::{NodeCell, NodeFacts, NodePage, VolumeFacts};
use proto::host::plain;

use super::link;
use super::nodes::badge;
use super::subject;
use super::time::{number, since};
use super::timeline::moments;

/// A node.
pub(crate) fn node(cell: &NodeCell, page: &NodePage, now: u64) -> Markup {
    html! {
        p .kind { "Node" }
        h1 { (cell.name) }
        p .state {
            (badge(cell.state))
            @if let Some(moment) = cell.since { " for " (since(moment, now)) }
        }
        (subject::explanation(&page.explanation))
        div .columns {
            section aria-labelledby="facts-title" {
                h2 #facts-title { "What is known of it" }
                (list(cell, &page.facts, now))
            }
            section aria-labelledby="drivers-title" {
                h2 #drivers-title { "Its drivers" }
                (drivers(&page.facts))
            }
        }
        section aria-labelledby="volumes-title" {
            h2 #volumes-title { "Its volumes" }
            (volumes(page))
        }
        section aria-labelledby="calls-title" {
            h2 #calls-title { "The last calls there" }
            (moments(&page.calls, now))
        }
    }
}

fn list(cell: &NodeCell, view: &NodeFacts, now: u64) -> Markup {
    html! {
        dl {
            dt { "first linked" } dd { (since(view.since_ms, now)) " ago" }
            @if let Some(version) = &view.version { dt { "csi-edge" } dd { (plain(version)) } }
            @if let Some(transport) = &view.transport { dt { "transport" } dd { (transport) } }
            @if let Some(address) = &view.address { dt { "address" } dd { (address) } }
            @if let Some(end) = cell.ends {
                dt { "certificate" } dd { (ending(end, now)) }
            }
            @if let Some(removed) = view.removed_ms {
                dt { "removed" } dd { (since(removed, now)) " ago" }
            }
            @if let Some(revoked) = view.revoked_ms {
                dt { "revoked" } dd { (since(revoked, now)) " ago" }
            }
            @if view.not_taken > 0 {
                dt { "not taken" } dd { (view.not_taken) " direct volumes" }
            }
            @for apart in &view.set_apart {
                dt { "set apart" }
                dd {
                    @if let Some(driver) = &apart.driver { "for " (driver) ": " }
                    (plain(&apart.why)) ", for " (since(apart.since_ms, now))
                }
            }
        }
    }
}

fn drivers(view: &NodeFacts) -> Markup {
    html! {
        @if view.drivers.is_empty() && view.unserved.is_empty() {
            p .muted { "It has none." }
        } @else {
            ul .plain {
                @for (driver, health) in &view.drivers {
                    li {
                        a href=(link::driver(driver)) { (driver) }
                        @if let Some(health) = health {
                            " " span .outcome .up[health.is_up()] { (health.state) }
                            " for " (age(Duration::from_secs(health.for_s)))
                            @if !health.why.is_empty() { ": " (plain(&health.why)) }
                        }
                    }
                }
                @for driver in &view.unserved {
                    li { (driver) " " span .muted { "has no front here" } }
                }
            }
        }
    }
}

fn volumes(page: &NodePage) -> Markup {
    let volumes = &page.volumes;
    html! {
        @if volumes.is_empty() {
            p .muted { "It has none." }
        } @else {
            div .scroll tabindex="0" role="region" aria-label="Volumes" {
                table {
                    thead {
                        tr {
                            th scope="col" { "volume" }
                            th scope="col" { "driver" }
                            th scope="col" { "claim" }
                            th scope="col" { "state" }
                        }
                    }
                    tbody { @for volume in volumes { (row(volume)) } }
                }
            }
            @if page.has_more {
                p .muted { "The first " (number(volumes.len())) "; `csi-cloud volumes` shows all." }
            }
        }
    }
}

/// A volume in a table.
fn row(volume: &VolumeFacts) -> Markup {
    html! {
        tr {
            th scope="row" {
                a href=(link::volume(&volume.driver, &volume.id)) {
                    (link::short(&plain(&volume.id)))
                }
            }
            td { (volume.driver) }
            td {
                @if let Some((namespace, name)) = claim(volume) {
                    a href=(link::claim(namespace, name)) { (plain(namespace)) "/" (plain(name)) }
                }
            }
            td { (volume.state) }
        }
    }
}

/// What is known of a volume.
pub(crate) fn volume(volume: &VolumeFacts, now: u64) -> Markup {
    html! {
        section aria-labelledby="facts-title" {
            h2 #facts-title { "What is known of it" }
            dl {
                dt { "node" } dd { a href=(link::node(&volume.node)) { (volume.node) } }
                dt { "driver" } dd { a href=(link::driver(&volume.driver)) { (volume.driver) } }
                @if let Some((namespace, name)) = claim(volume) {
                    dt { "claim" }
                    dd {
                        a href=(link::claim(namespace, name)) {
                            (plain(namespace)) "/" (plain(name))
                        }
                    }
                }
                @if let Some(name) = &volume.persistent_volume {
                    dt { "PersistentVolume" } dd { (plain(name)) }
                }
                @if let Some(bytes) = volume.capacity_bytes {
                    dt { "size" } dd { (size(bytes)) }
                }
                @if !volume.published.is_empty() {
                    dt { "attached to" } dd { (plain(&volume.published.join(", "))) }
                }
                dt { "state" } dd { (volume.state) }
                dt { "known" } dd { "for " (since(volume.since_ms, now)) }
            }
        }
    }
}

/// The namespace and name of its claim.
fn claim(volume: &VolumeFacts) -> Option<(&str, &str)> {
    volume.claim.as_ref().map(|(namespace, name)| (&**namespace, &**name))
}

/// A size in the largest unit in which it is whole.
fn size(bytes: i64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut left = bytes;
    let mut unit = 0;
    while left != 0 && left % 1024 == 0 && unit + 1 < units.len() {
        left /= 1024;
        unit += 1;
    }
    format!("{left} {}", units.get(unit).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto::admin::view::{DriverHealth, Explanation, NodeState};

    use super::*;
    use crate::views::tests::node as cell;

    #[test]
    fn a_size_is_whole() {
        let sizes = [0, 1000, 1024, 5 << 30, 3 << 40].map(size);
        assert_eq!(sizes, ["0 B", "1000 B", "1 KiB", "5 GiB", "3 TiB"]);
    }

    #[test]
    fn what_a_peer_says_is_escaped() {
        let driver = "d.example".parse().unwrap();
        let health = DriverHealth { state: "failing".into(), for_s: 9, why: "<i>\u{7}".into() };
        let facts = NodeFacts {
            version: Some("0.1.0\u{1b}".into()),
            drivers: BTreeMap::from([(driver, Some(health))]),
            unserved: vec!["e.example".parse().unwrap()],
            not_taken: 3,
            since_ms: 1,
            ..NodeFacts::default()
        };
        let explanation = Explanation {
            steps: Vec::new(),
            is_fine: false,
            text: "why".into(),
            next: String::new(),
        };
        let (volumes, calls) = (Vec::new(), Vec::new());
        let page = NodePage { facts, explanation, volumes, has_more: false, calls };
        let shown = node(&cell("n1", NodeState::Down), &page, 61_000).into_string();
        for part in [
            "&lt;i&gt;\\u{7}",
            "0.1.0\\u{1b}",
            "driver down",
            "has no front",
            ">why</p>",
            "3 direct",
        ] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert!(!shown.contains('\u{1b}') && !shown.contains("<i>"), "{shown}");
    }
}
