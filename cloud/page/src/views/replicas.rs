//! The csi-clouds that share a store: who leads, and how far each is.

use maud::{Markup, html};
use proto::admin::view::{ReplicaCell, Several};
use proto::host::plain;

use super::time::{number, since};

/// The table of them.
pub(crate) fn replicas(several: &Several, now: u64) -> Markup {
    html! {
        h2 #replicas-title { "csi-clouds" }
        @if several.is_old {
            p .muted { "etcd does not answer; this is what it said last." }
        }
        @if let Some(leader) = elsewhere(several) {
            p {
                "This page is of a csi-cloud that follows. All nodes link to " (plain(leader))
                ", so they look away here: open the page there."
            }
        }
        div .scroll tabindex="0" role="region" aria-label="csi-clouds with this store" {
            table {
                thead {
                    tr {
                        th scope="col" { "name" }
                        th scope="col" { "part" }
                        th scope="col" { "since" }
                        th scope="col" .number { "epoch" }
                        th scope="col" .number { "commits behind" }
                        th scope="col" { "version" }
                    }
                }
                tbody {
                    @for cell in &several.replicas { (row(cell, now)) }
                }
            }
        }
    }
}

/// The leader, if it is another one.
fn elsewhere(several: &Several) -> Option<&str> {
    let leads = |cell: &&ReplicaCell| cell.leads && !cell.this;
    several.replicas.iter().find(leads).map(|cell| &*cell.name)
}

fn row(cell: &ReplicaCell, now: u64) -> Markup {
    let lag = usize::try_from(cell.lag).unwrap_or(usize::MAX);
    html! {
        tr {
            th scope="row" { (plain(&cell.name)) @if cell.this { " (this one)" } }
            td { (part(cell)) }
            td { @if let Some(begun) = cell.since { (since(begun, now)) } }
            td .number { @if let Some(epoch) = cell.epoch { (epoch) } }
            td .number { @if cell.version.is_some() { (number(lag)) } }
            td { @if let Some(version) = &cell.version { (plain(version)) } }
        }
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
    use super::*;
    use crate::views::tests::replica;

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
