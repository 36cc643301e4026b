//! One node: how it is, its drivers, its volumes, and the last calls there.

use std::time::Duration;

use maud::{Markup, html};
use proto::admin::cells::{age, ending};
use proto::admin::view::{NodeCell, NodeDetails, NodePage, VolumeDetails};
use proto::host::plain;

use super::link;
use super::parts::Column::Text;
use super::parts::{badge, facts, number, section, since, table};
use super::subject;
use super::subject::moments;

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
            (section("facts-title", "What is known of it", known(cell, &page.facts, now)))
            (section("drivers-title", "Its drivers", drivers(&page.facts)))
        }
        (section("volumes-title", "Its volumes", volumes(page)))
        (section("calls-title", "The last calls there", moments(&page.calls, now)))
    }
}

fn known(cell: &NodeCell, view: &NodeDetails, now: u64) -> Markup {
    let ago = |moment| html! { (since(moment, now)) " ago" };
    let not_taken = Some(view.not_taken).filter(|count| *count > 0);
    let apart = view.set_apart.iter().map(|apart| {
        let fact = html! {
            @if let Some(driver) = &apart.driver { "for " (driver) ": " }
            (plain(&apart.why)) ", for " (since(apart.since_ms, now))
        };
        ("set apart", Some(fact))
    });
    let all = [
        ("first linked", Some(ago(view.since_ms))),
        ("csi-edge", said(view.version.as_deref())),
        ("transport", said(view.transport.as_deref())),
        ("address", said(view.address.as_deref())),
        ("certificate", cell.ends.map(|end| html! { (ending(end, now)) })),
        ("removed", view.removed_ms.map(ago)),
        ("revoked", view.revoked_ms.map(ago)),
        ("not taken", not_taken.map(|count| html! { (count) " direct volumes" })),
    ];
    facts(all.into_iter().chain(apart))
}

/// What a peer says.
fn said(text: Option<&str>) -> Option<Markup> {
    text.map(|text| html! { (plain(text)) })
}

fn drivers(view: &NodeDetails) -> Markup {
    html! {
        @if view.drivers.is_empty() && view.unserved.is_empty() {
            p .muted { "It has none." }
        } @else {
            ul .plain {
                @for (driver, health) in &view.drivers {
                    li {
                        (link::driver(driver))
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
    let columns = [Text("volume"), Text("driver"), Text("claim"), Text("state")];
    let rows = page.volumes.iter().map(|volume| {
        [
            link::volume(&volume.driver, &volume.id),
            html! { (volume.driver) },
            html! { @if let Some(claim) = &volume.claim { (link::claim(claim)) } },
            html! { (volume.state) },
        ]
    });
    html! {
        @if page.volumes.is_empty() {
            p .muted { "It has none." }
        } @else {
            (table("Volumes", columns, rows))
            @if page.has_more {
                p .muted {
                    "The first " (number(page.volumes.len())) "; `csi-cloud volumes` shows all."
                }
            }
        }
    }
}

/// What is known of a volume.
pub(crate) fn volume(volume: &VolumeDetails, now: u64) -> Markup {
    let published = Some(volume.published.join(", ")).filter(|nodes| !nodes.is_empty());
    let all = [
        ("node", Some(link::node(&volume.node))),
        ("driver", Some(link::driver(&volume.driver))),
        ("claim", volume.claim.as_ref().map(link::claim)),
        ("PersistentVolume", said(volume.persistent_volume.as_deref())),
        ("size", volume.capacity_bytes.map(|bytes| html! { (size(bytes)) })),
        ("attached to", said(published.as_deref())),
        ("state", said(Some(&volume.state))),
        ("known", Some(html! { "for " (since(volume.since_ms, now)) })),
    ];
    section("facts-title", "What is known of it", facts(all))
}

/// A size in the largest unit in which it is whole.
fn size(bytes: i64) -> String {
    let mut left = bytes;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].into_iter();
    let mut unit = units.next();
    while left != 0 && left % 1024 == 0 && units.len() > 0 {
        left /= 1024;
        unit = units.next();
    }
    format!("{left} {}", unit.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto::admin::view::{ExplainAnswer, HealthDetails, NodeState};

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
        let health = HealthDetails { state: "failing".into(), for_s: 9, why: "<i>\u{7}".into() };
        let facts = NodeDetails {
            version: Some("0.1.0\u{1b}".into()),
            drivers: BTreeMap::from([(driver, Some(health))]),
            unserved: vec!["e.example".parse().unwrap()],
            not_taken: 3,
            since_ms: 1,
            ..NodeDetails::default()
        };
        let explanation = ExplainAnswer {
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
